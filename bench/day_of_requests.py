"""How many requests of a day find a place at once, with slices, with parts of uncut GPUs, and with both.

Requests arrive at random at an even rate and never wait: what finds no place is lost. They ask for the amounts of memory that
notebooks, small models and training ask for; a tenth ask for whole GPUs. All three see the same day, and decide as `tranche run`
does. The load is so chosen that about half of the memory would be in use if nothing were lost. On a second day a fifth of those
who ask for memory accept nothing that others share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from statistics import mean

from bench.machine import idle_gpu
from bench.report import Report
from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.errors import TrancheError
from tranche.core.quantity import GIB
from tranche.core.request import GpuMemory, Isolation, Request, WholeGpus
from tranche.core.sharing import NO_SHARING, GpuPolicy, MachineSharing, Sharing
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.steps.plan import apply

_ARRIVALS = 3_000
_SEEDS = range(3)
_HOURS = 24.0
_MPS = MachineSharing(frozenset({Sharing.MPS}), mps_clients=48)
_AMOUNTS: Mapping[int, int] = {1: 20, 2: 20, 3: 15, 4: 15, 8: 12, 12: 4, 16: 2, 20: 2}
"""GiB of memory, and how many of a hundred requests ask for them; the rest ask for whole GPUs."""
_LOAD = 0.5
_HARD = 0.2
"""How many of those who ask for memory accept nothing that others share, on the second day."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request: when it comes and for how long it stays, in hours."""

    time: float
    stay: float
    request: Request


def run(report: Report) -> None:
    report.section(
        "Requests placed at once during a day",
        f"{_ARRIVALS:,} requests arrive at random times. If all were placed, they would use "
        f"{100 * _LOAD:.0f}% of the memory on average.",
        f"Most request 1 to {max(_AMOUNTS)} GiB, and {100 - sum(_AMOUNTS.values())}% request a whole GPU.",
        f"In the rows with `hard`, {100 * _HARD:.0f}% of the requests for memory accept only hard isolation.",
        f"Each cell gives the percentage of requests that are placed immediately, as the mean of {len(_SEEDS)} seeds.",
    )
    machines = {"one T4": (t4(),), "one A100 40 GB": a100s(1), "eight A100 40 GB": a100s(8)}
    rows = []
    for hard in (0.0, _HARD):
        for name, gpus in machines.items():
            days = [day_of(sum(gpu.memory for gpu in gpus), seed, hard) for seed in _SEEDS]
            cells = [mean(served(machine(gpus, use, means), day) for day in days) for use, means in WAYS.values()]
            rows.append([f"{name}, `hard`" if hard else name, *(f"{100 * each:.0f}%" for each in cells)])
    report.table(["", *WAYS], rows)


WAYS: Mapping[str, tuple[GpuPolicy, MachineSharing]] = {
    "slices and whole GPUs": (GpuPolicy.MIG, NO_SHARING),
    "parts of whole GPUs": (GpuPolicy.SHARED, _MPS),
    "Tranche's choice": (GpuPolicy.AUTO, _MPS),
}


def day_of(memory: int, seed: int, hard: float = 0.0) -> list[Visit]:
    """The visits to a machine with so many bytes of memory; `hard` is the part of those below a whole GPU that share nothing."""
    random = Random(seed)
    kinds = [*_AMOUNTS, 0]
    weights = [*_AMOUNTS.values(), 100 - sum(_AMOUNTS.values())]
    asked = [amount * GIB for amount in random.choices(kinds, weights, k=_ARRIVALS)]
    gap = _HOURS / _ARRIVALS
    # A whole GPU counts with forty GiB: the same day is offered to cards that are smaller.
    each = mean(amount or 40 * GIB for amount in asked)
    stay = _LOAD * memory / each * gap
    now, found = 0.0, []
    for amount in asked:
        now += random.expovariate(1 / gap)
        demand = GpuMemory(amount) if amount else WholeGpus(1)
        stays = random.expovariate(1 / stay)
        isolation = Isolation.HARD if hard and amount and random.random() < hard else Isolation.SOFT
        found.append(Visit(now, stays, Request(demand, isolation)))
    return found


def served(view: NodeView, day: Sequence[Visit]) -> float:
    """Which part of the visits found a place."""
    here: list[tuple[float, int]] = []
    served = 0
    for number, visit in enumerate(day):
        while here and here[0][0] <= visit.time:
            gone = str(heappop(here)[1])
            view = replace(view, allocations=tuple(each for each in view.allocations if each.id != gone))
        try:
            decision = decide(view, visit.request)
        except TrancheError:
            continue  # no state of this machine could serve it
        if not isinstance(decision, Granted):
            continue
        allocation = Allocation(str(number), visit.request, decision.grants, Phase.ACTIVE, 0.0)
        view = replace(apply(decision.plan, view), allocations=(*view.allocations, allocation))
        heappush(here, (visit.time + visit.stay, number))
        served += 1
    return served / len(day)


def machine(gpus: Sequence[GpuState], use: GpuPolicy, means: MachineSharing) -> NodeView:
    return NodeView(NodeState(tuple(gpus), sharing=means), uses={gpu.uuid: use for gpu in gpus})


def a100s(number: int) -> tuple[GpuState, ...]:
    return tuple(
        replace(idle_gpu(index), mode=MigMode.DISABLED, pending_mode=MigMode.DISABLED) for index in range(number)
    )


def t4() -> GpuState:
    """A card without MIG. The catalogue's boards have all been cut; this takes its kind from documents."""
    memory = 15 * GIB
    return replace(
        idle_gpu(0),
        name="Tesla T4",
        architecture="Turing",
        memory=memory,
        memory_free=memory,
        mode=MigMode.UNSUPPORTED,
        pending_mode=MigMode.UNSUPPORTED,
        mode_change_needs_reset=False,
        memory_slices=0,
        profiles=(),
    )
