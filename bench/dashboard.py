"""The page of a cluster of 1,000 nodes: how long until it is seen, how late it is, and what server and browser need for it.

The real routes are served over HTTP to the real Chromium; the cluster is only thought of. The baseline is the same page,
fetched as a whole whenever anything has changed, which is what the page of one machine does.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import urlopen

from cluster.waiting import wait_for
from release.browser import browser_running, why_no_browser
from release.errors import ReleaseError

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
    """Measure with the browser that the tests use; ReleaseError where there is none."""
    if why := why_no_browser():
        raise ReleaseError(f"there is no browser: {why}")
    with browser_running() as browser:
        ours = _watched(browser, as_a_whole=False)
        theirs = _watched(browser, as_a_whole=True)
    report.section(
        f"A page of {NODES:,} nodes",
        f"The page shows a simulated cluster with {GPUS:,} GPUs, {SLICES:,} slices and {CHANGES} changes a second.",
        "In the last column, the browser fetches the whole page again whenever something changes.",
    )
    rows: Sequence[tuple[str, str, Callable[[_Watched], float]]] = (
        ("first render with all rows, median", " s", lambda each: median(each.first)),
        ("delay of a change, p50", " ms", lambda each: median(each.late)),
        ("delay of a change, p99", " ms", lambda each: quantiles(each.late, n=100)[98]),
        ("busy time of the page's main thread", "%", lambda each: 100 * each.seconds_busy / _SECONDS),
        ("the page's memory", " MiB", lambda each: each.page),
        ("the server's memory", " MiB", lambda each: each.server),
    )
    report.table(
        ["", "only changed rows", "the whole page again"],
        [[words, *(f"{figure(of(each))}{unit}" for each in (ours, theirs))] for words, unit, of in rows],
    )
    report.verdict(
        f"The first render and 99% of the changes take at most {_TARGET_SECONDS:g} s.",
        max(median(ours.first), quantiles(ours.late, n=100)[98] / 1000) <= _TARGET_SECONDS,
    )


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


def _watched(browser: Any, *, as_a_whole: bool) -> _Watched:
    seen = _Watched()
    with _serving(CHANGES) as server:
        for _ in range(_FIRST_RUNS):
            page = _page(browser, as_a_whole=as_a_whole)
            page.goto(server.address)
            # Not by wait_for_function, which asks the page for an eval that its policy forbids.
            wait_for("all rows are drawn", partial(page.evaluate, "window.drawn > 0"), timeout=60)
            seen.first.append(page.evaluate("window.drawn") / 1000)
            page.context.close()
        page = _page(browser, as_a_whole=as_a_whole)
        page.goto(server.address)
        page.locator("#live.live").wait_for()
        before = page.context.new_cdp_session(page)
        before.send("Performance.enable")
        busy = _metric(before, "TaskDuration")
        page.evaluate("watchRows()")
        began = time.time()
        page.wait_for_timeout(1000 * _SECONDS)
        arrived = page.evaluate("arrived")
        seen.seconds_busy = _metric(before, "TaskDuration") - busy
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


def _resident(pid: int) -> float:
    """What a process has in memory, in MiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)
