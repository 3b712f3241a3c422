"""What sharing one GPU gives and costs: tenants' compute, the time to be let in, and the requests of a day that find a place.

The GPU is the simulator's model, which divides its time by rules from documents. So the first table shows that the mechanisms are
set up as they should be, not how fast a real GPU is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from bench import day_of_requests
from bench.commands import TRANCHE, environment_of, tranche
from bench.report import Report
from tranche_simulator.machine import SimulatedMachine

_TENANT = (sys.executable, str(Path(__file__).with_name("tenant.py")))
_TENANTS = (1, 5, 10)
_WINDOW = 3.0
_BLOCKS = {"large": 1000, "small": 4}
"""How many blocks the kernels have; the GPU has 40 multiprocessors."""
_RUNS = 60
_DRIVER_WITHOUT_LIMITS = "470.82.01"
"""Its MPS limits no memory, so whoever accepts that takes turns."""
_CHILD = ("sh", "-c", "date +%s%N")


@dataclass(frozen=True, slots=True)
class Site:
    """A simulated machine, and the environment in which commands see it."""

    machine: SimulatedMachine
    environment: Mapping[str, str]

    @classmethod
    def make(cls, root: Path, kind: str, *, time_scale: float, driver: str = "") -> Site:
        machine = SimulatedMachine.create(kind, machine_type=kind, root=root, time_scale=time_scale, driver=driver)
        return cls(machine, environment_of(root, TRANCHE_SIMULATE=kind))

    def close(self) -> None:
        """End what commands left running for the next share."""
        tranche(self.environment, "run", "-q", "--gpus", "1", "--", "true")


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as folder, ExitStack() as stack:

        def site(name: str, kind: str, *, time_scale: float = 0, driver: str = "") -> Site:
            made = Site.make(Path(folder) / name, kind, time_scale=time_scale, driver=driver)
            stack.callback(made.close)
            return made

        card = "g4dn.xlarge"
        by_mps, by_turns = site("m", card, time_scale=1), site("t", card, time_scale=1, driver=_DRIVER_WITHOUT_LIMITS)
        _tenants(report, {"MPS": by_mps, "time-slicing": by_turns})
        _admission(report, site("c", card), site("s", "p4d.24xlarge"))
    day_of_requests.run(report)


def _tenants(report: Report, sites: Mapping[str, Site]) -> None:
    report.section(
        "Sharing",
        "Tenants share a simulated T4. Each tenant uses `tranche run` with 1 GB and a program that is always busy.",
        "A large kernel fills the GPU, and a small kernel fills a tenth of it.",
        "Each cell shows how much of the GPU the tenants use together.",
    )
    rows = []
    worst = 0.0
    for kernels, blocks in _BLOCKS.items():
        for mechanism, site in sites.items():
            found = [
                _shares(site, number, blocks, ("--gpu-memory", "1G", "--isolation", "none")) for number in _TENANTS
            ]
            worst = max(worst, *((max(shares) - min(shares)) / max(shares) for shares in found))
            rows.append([f"{kernels} kernels, {mechanism}", *(f"{100 * sum(shares):.0f}%" for shares in found)])
    report.table(["", *(f"tenants: {number}" for number in _TENANTS)], rows)
    report.verdict("In each run, the tenants' portions of the GPU differ by at most 2%.", worst <= 0.02)


def _shares(site: Site, number: int, blocks: int, request: Sequence[str]) -> list[float]:
    """Of the GPU, what each of so many tenants has during the window."""
    with _busy(site, number, blocks, request) as pids:
        before, began = _computed(site), time.monotonic()
        time.sleep(_WINDOW)
        after, seconds = _computed(site), time.monotonic() - began
    return [(after[pid] - before.get(pid, 0.0)) / seconds for pid in pids]


@contextmanager
def _busy(site: Site, number: int, blocks: int, request: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """So many tenants at work; their pids."""
    command = (*TRANCHE, "run", "-q", *request, "--", *_TENANT, str(blocks))
    with ExitStack() as stack:
        tenants = [
            stack.enter_context(
                subprocess.Popen(
                    command, env=site.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(number)
        ]
        for tenant in tenants:
            assert tenant.stdout is not None
            assert tenant.stdout.readline() == "ready\n"
        yield tuple(_child_of(tenant.pid) for tenant in tenants)


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _computed(site: Site) -> dict[int, float]:
    """Seconds of a whole GPU that each process has had."""
    return {client.pid: client.compute_seconds for client in site.machine.clients()}


def _admission(report: Report, card: Site, cut: Site) -> None:
    report.section(
        "From `tranche run` to the command's start",
        f"Times are in milliseconds, from {_RUNS} consecutive runs. GPU operations take no time.",
    )
    share, whole, small = ("--gpu-memory", "1G"), ("--gpus", "1"), ("--gpu-memory", "4Gi", "--isolation", "hard")
    rows = [
        _times("the command without Tranche", None, ()),
        _times("a whole GPU", card, whole),
        _times("a share of a shared GPU", card, share),
        _times("a share that starts an MPS daemon", card, share, before=whole),
        _times("an idle slice", cut, small),
    ]
    report.table(("", "p50", "p99"), rows)


def _times(name: str, site: Site | None, request: Sequence[str], before: Sequence[str] = ()) -> tuple[str, str, str]:
    """The row of a request. `before` each run, and outside of its time, another one is served, which ends idle daemons."""
    environment = None if site is None else site.environment
    prefix = (*TRANCHE, "run", "-q", *request, "--") if request else ()
    taken = []
    for turn in range(_RUNS + 1):
        if before and environment:
            tranche(environment, "run", "-q", *before, "--", "true")
        began = time.time_ns()
        done = subprocess.run((*prefix, *_CHILD), env=environment, check=True, stdout=subprocess.PIPE)
        if turn:  # the first is the only one to find nothing there
            taken.append((int(done.stdout) - began) / 1e6)
    return name, f"{median(taken):.0f}", f"{quantiles(taken, n=100)[98]:.0f}"
