"""A machine as large as one likes, and its index as `tranche run` and a simulation use it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Protocol

from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.board import Board, GpuInstanceProfile, board_by_key
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.allocate import Granted, decide
from tranche.planning.indexed_view import IndexedView
from tranche.planning.plan import Plan
from tranche.planning.policy import DEFAULT, Policy
from tranche.planning.steps import DestroyInstance


@dataclass(frozen=True, slots=True)
class Spot:
    """A place that was given: the GPU's number and the memory slices taken on it, as a bit mask."""

    gpu: int
    slices: int


def board_of(key: str) -> Board:
    """The catalogue's board of that key."""
    board = board_by_key(key)
    assert board is not None
    return board


def empty_machine(board: Board, gpus: int) -> NodeView:
    """So many idle GPUs with MIG mode on and nothing cut."""
    return NodeView(NodeState(tuple(gpu_of(board, index) for index in range(gpus))))


def plain_shapes(board: Board) -> tuple[GpuInstanceProfile, ...]:
    """A profile for each footprint of the board, smallest first, as a geometry has its shapes."""
    plain = {(p.size, p.starts): p for p in board.profiles if p.starts and not p.name.has_attributes}
    return tuple(plain[key] for key in sorted(plain, key=lambda key: (key[0], -len(key[1]))))


class Placer(Protocol):
    """Something that takes and gives back slices."""

    def place(self, shape: int) -> Spot | None:
        """Take a place for a slice of that shape; None when there is none."""

    def release(self, spot: Spot) -> None:
        """Give a place back."""


class ProductPath:
    """Takes and gives back slices by `decide`, on an index that is told what was promised, made and released.

    Instances stay when they are released, as they do on a machine, unless `keep_idle` is off: then every slice is cut anew,
    which shows what a policy is worth by itself.
    """

    def __init__(self, board: Board, gpus: int, policy: Policy = DEFAULT, *, keep_idle: bool = True) -> None:
        self.index = IndexedView(empty_machine(board, gpus))
        self.requests = tuple(Request(MigSlice(profile.name)) for profile in plain_shapes(board))
        self._policy = policy
        self._keep_idle = keep_idle
        self._ids = map(str, count())
        self._held: dict[Spot, str] = {}

    def place(self, shape: int) -> Spot | None:
        """Take a slice of that shape; None when there is none."""
        request = self.requests[shape]
        decision = decide(self.index, request, policy=self._policy)
        if not isinstance(decision, Granted):
            return None
        grant = decision.grants[0]
        assert isinstance(grant, Slice)
        if decision.plan.steps:
            self.index.carry_out(decision.plan)
        allocation = Allocation(next(self._ids), request, decision.grants, Phase.ACTIVE, 0.0)
        self.index.promise(allocation)
        spot = Spot(self.index.gpu(grant.gpu_uuid).index, grant.placement.mask)
        self._held[spot] = allocation.id
        return spot

    def release(self, spot: Spot) -> None:
        """Give a slice back."""
        grant = self.index.release(self._held.pop(spot)).grants[0]
        if not self._keep_idle and isinstance(grant, Slice):
            self.index.carry_out(Plan("clear", (DestroyInstance(grant.gpu_uuid, grant.profile, grant.placement),)))


def gpu_of(board: Board, index: int) -> GpuState:
    """An idle GPU of that board with MIG mode on and nothing cut."""
    assert board.memory is not None
    assert board.memory_slices is not None
    return GpuState(
        index=index,
        uuid=f"GPU-{index}",
        name=board.products[0],
        pci_bus_id=f"{index:08X}:00:00.0",
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
