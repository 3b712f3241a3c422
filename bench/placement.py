"""Placement decisions per second on one core, and whether the number of GPUs matters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from statistics import median
from time import perf_counter

from bench.acceptance import Placer
from bench.report import Report, figure
from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.board import Board, board_by_key
from tranche.core.request import parse_request
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.allocate import Granted, decide
from tranche.planning.fleet import MigFleet, Spot
from tranche.planning.tables import Geometry, geometry_of

SEED = 7
SIZES = (100, 1_000, 10_000, 100_000)
WEIGHTS = (45, 10, 20, 15, 5, 5)
FILL = 0.85
REPETITIONS = 5


class Scan:
    """First-fit by looking at one GPU after another: what a scheduler without an index does."""

    def __init__(self, geometry: Geometry, masks: list[int]) -> None:
        self._shapes = [shape.masks for shape in geometry.shapes]
        self._masks = masks

    def place(self, shape: int) -> Spot | None:
        """Take the first place there is."""
        masks = self._shapes[shape]
        for gpu, taken in enumerate(self._masks):
            for mask in masks:
                if not mask & taken:
                    self._masks[gpu] = taken | mask
                    return Spot(gpu, mask)
        return None

    def release(self, spot: Spot) -> None:
        """Give a place back."""
        self._masks[spot.gpu] ^= spot.slices


@dataclass(frozen=True, slots=True)
class Rate:
    """Decisions (a place or a release each) per second, and the share of places that found room."""

    per_second: float
    found: float


def run(report: Report) -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    assert board.memory_slices is not None
    geometry = geometry_of(board.memory_slices, board.profiles)
    decisions = 2_000_000 if report.long else 200_000
    report.section(
        "Placement decisions per second, one core, plain Python",
        f"{board.key}; {FILL:.0%} of the memory slices taken, then a release of a random slice and a place in turn;",
        f"{decisions:,} decisions for the index, fewer for the scan; median of {REPETITIONS} repetitions; seed {SEED}.",
    )
    _one_machine(report, board)
    rows, medians = [], []
    for gpus in SIZES:
        fleet, live = _filled(geometry, gpus)
        scan = Scan(geometry, [fleet.mask(gpu) for gpu in range(gpus)])
        scan_decisions = min(20_000, max(40, 2_000_000 // gpus))
        live_of_scan = list(live)
        scanned = [_rate(scan, live_of_scan, scan_decisions) for _ in range(REPETITIONS)]
        indexed = [_rate(fleet, live, decisions) for _ in range(REPETITIONS)]
        ours, theirs = median(r.per_second for r in indexed), median(r.per_second for r in scanned)
        found = median(r.found for r in indexed)
        medians.append(ours)
        rows.append([f"{gpus:,}", figure(ours), figure(theirs), f"{ours / theirs:,.1f}", f"{found:.1%}"])
    report.table(["GPUs", "mask index", "scan, first-fit", "ratio", "places found"], rows)
    report.verdict("at least 200,000 decisions per second at every size", min(medians) >= 200_000)
    report.verdict("the slowest size has more than half the rate of the fastest", min(medians) * 2 > max(medians))


def _filled(geometry: Geometry, gpus: int) -> tuple[MigFleet, list[Spot]]:
    random = Random(SEED)
    fleet = MigFleet(geometry, gpus)
    live: list[Spot] = []
    taken = 0
    while taken < FILL * geometry.units * gpus:
        spot = fleet.place(random.choices(range(len(geometry.shapes)), WEIGHTS)[0])
        if spot is None:
            break
        live.append(spot)
        taken += spot.slices.bit_count()
    return fleet, live


def _rate(placer: Placer, live: list[Spot], decisions: int) -> Rate:
    random = Random(SEED)
    shapes = random.choices(range(len(WEIGHTS)), WEIGHTS, k=decisions // 2)
    picks = [random.random() for _ in shapes]
    found = 0
    start = perf_counter()
    for shape, pick in zip(shapes, picks, strict=True):
        chosen = int(pick * len(live))
        live[chosen], live[-1] = live[-1], live[chosen]
        placer.release(live.pop())
        spot = placer.place(shape)
        if spot is not None:
            live.append(spot)
            found += 1
    return Rate(decisions / (perf_counter() - start), found / len(shapes))


def _one_machine(report: Report, board: Board) -> None:
    """The whole of `decide` as `tranche run` calls it: from the observed state to the plan."""
    view = NodeView(NodeState(tuple(_gpu(board, index) for index in range(8))))
    request = parse_request(gpu_memory="8Gi")
    calls = 200
    times = []
    for _ in range(calls):
        start = perf_counter()
        granted = decide(view, request)
        times.append(1000 * (perf_counter() - start))
        assert isinstance(granted, Granted)
        if len(view.allocations) < 20:
            number = str(len(view.allocations))
            held = Allocation(number, request, granted.grants, Phase.ACTIVE, 0.0)
            view = replace(view, allocations=(*view.allocations, held))
    report.table(
        ["decide() on 8 GPUs with 20 slices held", "ms"],
        [["first call, tables computed", figure(times[0])], [f"median of {calls} calls", figure(median(times))]],
    )


def _gpu(board: Board, index: int) -> GpuState:
    assert board.memory is not None
    assert board.memory_slices is not None
    return GpuState(
        index=index,
        uuid=f"GPU-{index}",
        name=board.products[0],
        pci_bus_id=f"00000000:{index:02X}:00.0",
        pci_device_id=board.pci_device_ids[0],
        pci_subsystem_id="",
        architecture=board.architecture,
        memory=board.memory,
        memory_free=board.memory,
        mode=MigMode.ENABLED,
        pending_mode=MigMode.ENABLED,
        mode_change_needs_reset=board.mode_change_needs_reset,
        memory_slices=board.memory_slices,
        profiles=board.profiles,
        profiles_source="catalogue",
    )
