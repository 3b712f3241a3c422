"""The page of a cluster of 1,000 nodes: how long until it is seen, how late it is, and what server and browser need for it.

The real routes are served over HTTP to the real Chromium; the cluster is only thought of. The baseline is the same page,
fetched as a whole whenever anything has changed, which is what the page of one machine does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import urlopen

from cluster.waiting import wait_for
from release.browser import browser_running, why_no_browser

from bench.report import Report, figure

NODES, GPUS, SLICES, CHANGES = 1_000, 8_000, 56_000, 50
_SECONDS = 20.0
_FIRST_RUNS = 5
_TARGET_SECONDS = 1.0
_WATCH_ROWS = """
(() => {
  const arrived = (window.arrived = []);
  const take = (row) => { if (row.dataset?.changed) arrived.push([Number(row.dataset.changed), Date.now()]); };
  window.watchRows = () => new MutationObserver((records) => {
    for (const record of records) for (const node of record.addedNodes) {
      if (node.nodeName === "TR") take(node);
      else if (node.id === "view") for (const row of node.querySelectorAll("#rows > tr")) take(row);
    }
  }).observe(document.body, { childList: true, subtree: true });
  // The second frame after the whole document is there has been drawn with all of its rows.
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame((when) => { window.drawn = when; }));
  document.addEventListener("DOMContentLoaded", drawn);
})();
"""
# Before its scripts run, so that the page is kept true as that of one machine is.
_AS_A_WHOLE = """
document.addEventListener("readystatechange", () => { if (document.body) delete document.body.dataset.feed; });
"""


def run(report: Report) -> None:
    """Measure with the browser that the tests use, else without one, and say what was not measured."""
    report.section(
        f"A page of {NODES:,} nodes, {GPUS:,} GPUs, {SLICES:,} slices",
        f"{CHANGES} changes a second in a simulated cluster, real server and browser on this machine, {_SECONDS:.0f} s each",
    )
    with _serving(0) as server:
        _first_answers(report, server)
    if why := why_no_browser():
        report.section("Not measured: what a browser shows, and when", f"there is none: {why}")
        return
    with browser_running() as browser:
        ours = _watched(browser, as_a_whole=False)
        theirs = _watched(browser, as_a_whole=True)
    _told(report, ours, theirs)


@dataclass(slots=True)
class _Server:
    process: subprocess.Popen[str]
    out: Path
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def made(self) -> dict[int, float]:
        """When each version of the snapshot was made, in seconds since the epoch."""
        lines = self.out.read_text().splitlines()[1:-1]
        return {int(version): float(when) for version, when in map(str.split, lines)}

    def memory(self) -> float:
        return _resident(self.process.pid)


@dataclass(slots=True)
class _Watched:
    """What was seen of a page: seconds until a picture with all rows, milliseconds from each change to its row."""

    first: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    server: float = 0.0
    page: float = 0.0
    seconds_busy: float = 0.0
    server_busy: float = 0.0


@contextlib.contextmanager
def _serving(changes: float) -> Iterator[_Server]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        with out.open("w") as stdout:
            command = [sys.executable, "-m", "bench.dashboard_server", str(NODES), str(changes)]
            process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL, text=True)
            try:
                wait_for("the server has a port", lambda: out.read_text().endswith("\n"), timeout=30)
                server = _Server(process, out, int(out.read_text().split()[0]))
                wait_for("the server answers", lambda: urlopen(f"{server.address}static/page.js").close() is None)
                yield server
            finally:
                process.kill()
                process.wait()


def _first_answers(report: Report, server: _Server) -> None:
    spent, size = [], 0
    for _ in range(_FIRST_RUNS + 1):
        began = time.perf_counter()
        with urlopen(server.address) as answer:
            size = len(answer.read())
        spent.append(1000 * (time.perf_counter() - began))
    report.table(
        ["the page over HTTP", ""],
        [
            ["first viewer of this server", f"{figure(spent[0])} ms"],
            [f"next ({_FIRST_RUNS} times, median)", f"{figure(median(spent[1:]))} ms"],
            ["size", f"{figure(size / 1e6)} MB"],
            ["the server's memory", f"{figure(server.memory())} MiB"],
        ],
    )


def _watched(browser: Any, *, as_a_whole: bool) -> _Watched:
    seen = _Watched()
    with _serving(CHANGES) as server:
        for _ in range(_FIRST_RUNS):
            page = _page(browser, as_a_whole=as_a_whole)
            page.goto(server.address)
            page.wait_for_function("window.drawn > 0")
            seen.first.append(page.evaluate("window.drawn") / 1000)
            page.context.close()
        page = _page(browser, as_a_whole=as_a_whole)
        page.goto(server.address)
        page.locator("#live.live").wait_for()
        before = page.context.new_cdp_session(page)
        before.send("Performance.enable")
        busy, spent = _metric(before, "TaskDuration"), _processor_seconds(server.process.pid)
        page.evaluate("watchRows()")
        began = time.time()
        page.wait_for_timeout(1000 * _SECONDS)
        arrived = page.evaluate("arrived")
        seen.seconds_busy = _metric(before, "TaskDuration") - busy
        seen.server_busy = _processor_seconds(server.process.pid) - spent
        seen.late = _lateness(server.made(), arrived, began)
        seen.server, seen.page = server.memory(), _renderer_memory()
        page.context.close()
    return seen


def _page(browser: Any, *, as_a_whole: bool) -> Any:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(60_000)
    context.add_init_script(_WATCH_ROWS)
    if as_a_whole:
        context.add_init_script(_AS_A_WHOLE)
    return context.new_page()


def _metric(session: Any, name: str) -> float:
    found: float = next(
        each["value"] for each in session.send("Performance.getMetrics")["metrics"] if each["name"] == name
    )
    return found


def _lateness(made: dict[int, float], arrived: list[list[float]], began: float) -> list[float]:
    """Of each version that a row showed, the milliseconds from its making to its first being in the page."""
    first: dict[int, float] = {}
    for version, when in arrived:
        first.setdefault(int(version), when / 1000)
    return [1000 * (when - made[version]) for version, when in first.items() if made.get(version, 0.0) > began]


def _renderer_memory() -> float:
    """What the largest process that draws pages has in memory, in MiB."""
    found = [0.0]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"--type=renderer" in path.read_bytes():
                found.append(_resident(int(path.parent.name)))
    return max(found)


def _processor_seconds(pid: int) -> float:
    """Processor time of a process so far; that of the simulated cluster is in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """What a process has in memory, in MiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def _told(report: Report, ours: _Watched, theirs: _Watched) -> None:
    rows = [
        (word, *(f"{figure(of(each))} {unit}" for each in (ours, theirs)))
        for word, unit, of in (
            (f"picture with all rows, median of {_FIRST_RUNS}", "s", lambda each: median(each.first)),
            ("a change until it is in the page, p50", "ms", lambda each: median(each.late)),
            ("p99", "ms", lambda each: quantiles(each.late, n=100)[98]),
            (f"changes seen of {_SECONDS * CHANGES:.0f}", "", lambda each: float(len(each.late))),
            ("the page's thread was busy", "%", lambda each: 100 * each.seconds_busy / _SECONDS),
            ("the server was busy", "%", lambda each: 100 * each.server_busy / _SECONDS),
            ("memory of the server", "MiB", lambda each: each.server),
            ("memory of the page's process", "MiB", lambda each: each.page),
        )
    ]
    report.table(["", "rows that changed", "the whole page anew"], rows)
    late = quantiles(ours.late, n=100)[98]
    report.verdict(
        f"the first picture within {_TARGET_SECONDS:g} s: {figure(median(ours.first))} s",
        median(ours.first) <= _TARGET_SECONDS,
    )
    report.verdict(
        f"99 of 100 changes within {_TARGET_SECONDS:g} s: {figure(late / 1000)} s", late <= 1000 * _TARGET_SECONDS
    )
