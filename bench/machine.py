"""Eight or a hundred A100 40 GB, on which slices come and go by the product's own decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import NamedTuple

from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.board import GpuInstanceProfile, board_by_key
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.decide.allocate import granted
from tranche.planning.decide.answers import Preference, asked_gpus
from tranche.planning.decide.options import Option
from tranche.planning.decide.tables import geometry_of
from tranche.planning.steps.plan import apply

BOARD = "A100-40GB"
_board = board_by_key(BOARD)
assert _board is not None
assert _board.memory is not None
assert _board.memory_slices is not None
GEOMETRY = geometry_of(_board.memory_slices, _board.profiles)
_plain = {(p.size, p.starts): p for p in _board.profiles if p.starts and not p.name.has_attributes}
SHAPES: tuple[GpuInstanceProfile, ...] = tuple(_plain[shape.size, shape.starts] for shape in GEOMETRY.shapes)
"""A profile for each footprint of the board, as its geometry has them: 1g, 1g with double memory, 2g, 3g, 4g, 7g."""
_IDLE = GpuState(
    index=0,
    uuid="GPU-0",
    name=_board.products[0],
    pci_bus_id="00000000:00:00.0",
    pci_device_id=_board.pci_device_ids[0],
    pci_subsystem_id="",
    architecture=_board.architecture,
    memory=_board.memory,
    memory_free=_board.memory,
    mode=MigMode.ENABLED,
    pending_mode=MigMode.ENABLED,
    mode_change_needs_reset=_board.mode_change_needs_reset,
    memory_slices=_board.memory_slices,
    profiles=_board.profiles,
    profiles_source="catalogue",
)


class Spot(NamedTuple):
    """A place that was given: the GPU's number and the memory slices taken on it, as a bit mask."""

    gpu: int
    slices: int


def idle_gpu(index: int) -> GpuState:
    """A GPU with MIG mode on and nothing cut."""
    return replace(_IDLE, index=index, uuid=f"GPU-{index}", pci_bus_id=f"{index:08X}:00:00.0")


def empty_machine(gpus: int) -> NodeView:
    return NodeView(NodeState(tuple(map(idle_gpu, range(gpus)))))


class ProductPath:
    """Takes and gives back slices as `decide` chooses them; instances stay when they are released, as they do on a machine.

    A simulation asks a hundred GPUs ten thousand times, and one of them has changed since the last time: what the others answer
    is kept. A test compares with `decide` on the whole machine.
    """

    def __init__(self, gpus: int) -> None:
        self._views = [NodeView(NodeState((gpu,))) for gpu in empty_machine(gpus).node]
        self._requests = tuple(Request(MigSlice(profile.name)) for profile in SHAPES)
        self._best: list[dict[int, tuple[Preference, Option] | None]] = [{} for _ in self._requests]
        self._ids = map(str, count())
        self._held: dict[Spot, str] = {}

    @property
    def view(self) -> NodeView:
        return NodeView(
            NodeState(tuple(gpu for view in self._views for gpu in view.node)),
            tuple(each for view in self._views for each in view.allocations),
            frozenset(key for view in self._views for key in view.owned),
            requested=frozenset(key for view in self._views for key in view.requested),
        )

    def place(self, shape: int) -> Spot | None:
        """Take a slice of that shape; None when there is none."""
        request, best = self._requests[shape], self._best[shape]
        for gpu, view in enumerate(self._views):
            if gpu not in best:
                best[gpu] = asked_gpus(view, request, {})[0].best_option(destroy_foreign=False, thrifty=False)
        ranked = [(found[0], gpu, found[1]) for gpu, found in best.items() if found is not None]
        if not ranked:
            return None
        _, gpu, option = min(ranked, key=lambda each: each[:2])
        decided, after = granted(request, [option]), self._views[gpu]
        if decided.plan.steps:
            after = apply(decided.plan, after)
            after = replace(after, requested=after.owned)
        allocation = Allocation(next(self._ids), request, decided.grants, Phase.ACTIVE, 0.0)
        self._change(gpu, replace(after, allocations=(*after.allocations, allocation)))
        slot = option.grant.slot
        assert slot is not None
        spot = Spot(gpu, slot.placement.mask)
        self._held[spot] = allocation.id
        return spot

    def release(self, spot: Spot) -> None:
        view, gone = self._views[spot.gpu], self._held.pop(spot)
        self._change(spot.gpu, replace(view, allocations=tuple(each for each in view.allocations if each.id != gone)))

    def _change(self, gpu: int, view: NodeView) -> None:
        self._views[gpu] = view
        for best in self._best:
            best.pop(gpu, None)
