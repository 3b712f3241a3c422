"""How many requests of a day find a place at once, with slices alone, with parts of uncut GPUs alone, and with both.

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
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which part of the visits found a place, and which part of those that asked for memory have it for themselves."""

    accepted: float
    alone: float


def run(report: Report) -> None:
    amounts = ", ".join(f"{weight} % of {amount} GiB" for amount, weight in _AMOUNTS.items())
    report.section(
        "Requests of a day that find a place at once",
        f"{_ARRIVALS:,} requests, seeds {_SEEDS[0]} to {_SEEDS[-1]}; offered load {_LOAD:.0%} of the memory; isolation soft",
        f"{amounts}, {100 - sum(_AMOUNTS.values())} % of a whole GPU",
    )
    machines = {"one T4": (t4(),), "one A100 40 GB": a100s(1), "p4d.24xlarge": a100s(8)}
    rows = []
    for hard in (0.0, _HARD):
        for name, gpus in machines.items():
            days = [day_of(sum(gpu.memory for gpu in gpus), seed, hard) for seed in _SEEDS]
            found = [[served(machine(gpus, use, means), day) for day in days] for use, means in WAYS.values()]
            cells = [_percent(mean(day.accepted for day in each)) for each in found]
            alone = _percent(mean(day.alone for day in found[-1]))
            rows.append((f"{name}, {hard:.0%} hard" if hard else name, *cells, alone))
    report.table(("of all requests, served on", *WAYS, "of those with memory, alone"), rows)


WAYS: Mapping[str, tuple[GpuPolicy, MachineSharing]] = {
    "slices and whole GPUs": (GpuPolicy.MIG, NO_SHARING),
    "parts and whole GPUs": (GpuPolicy.SHARED, _MPS),
    "all of them": (GpuPolicy.AUTO, _MPS),
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


def served(view: NodeView, day: Sequence[Visit]) -> Outcome:
    here: list[tuple[float, int]] = []
    served = asked = alone = 0
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
        asked += isinstance(visit.request.demand, GpuMemory)
        alone += isinstance(visit.request.demand, GpuMemory) and not isinstance(decision.grants[0], FractionalShare)
    return Outcome(served / len(day), alone / asked if asked else 0.0)


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


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
