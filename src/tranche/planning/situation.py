"""What of a GPU a decision depends on: GPUs of one kind in one situation differ for it in their index only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tranche.core.allocation import Grant
from tranche.core.board import GpuInstanceProfile
from tranche.core.fences import fenced
from tranche.core.gpu_use import GpuUse
from tranche.core.grid import Occupant
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.planning.options import gpu_blocked, reusable
from tranche.planning.tenancy import Tenancy, occupant


@dataclass(frozen=True, slots=True, eq=False)
class GpuKind:
    """What decisions see of a GPU that does not change with its users. A process has one object for each kind.

    `memory` and `memory_reserved` in bytes, as for the GPU. `use` is the administrator's word.
    """

    name: str
    memory: int
    memory_reserved: int
    memory_slices: int
    mig_capable: bool
    mode_change_needs_reset: bool
    profiles: tuple[GpuInstanceProfile, ...]
    compute_capability: tuple[int, int] | None
    use: GpuUse
    lost: bool

    def describes(self, gpu: GpuState, use: GpuUse) -> bool:
        """Whether the GPU is of this kind, as far as can be told at once; False may be wrong."""
        return (
            self.profiles is gpu.profiles
            and self.name == gpu.name
            and self.memory == gpu.memory
            and self.memory_reserved == gpu.memory_reserved
            and self.memory_slices == gpu.memory_slices
            and self.mig_capable == gpu.mig_capable
            and self.mode_change_needs_reset == gpu.mode_change_needs_reset
            and self.compute_capability == gpu.compute_capability
            and self.use is use
            and self.lost is gpu.lost
        )


_kind = cache(GpuKind)


def kind_of(gpu: GpuState, use: GpuUse = GpuUse.AUTO, guess: GpuKind | None = None) -> GpuKind:
    """The GPU's kind, under that word of the administrator; a right guess makes it faster."""
    if guess is not None and guess.describes(gpu, use):
        return guess
    return _kind(
        gpu.name,
        gpu.memory,
        gpu.memory_reserved,
        gpu.memory_slices,
        gpu.mig_capable,
        gpu.mode_change_needs_reset,
        gpu.profiles,
        gpu.compute_capability,
        use,
        gpu.lost,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """A situation that some GPU was found in: `example` is that GPU. `changing` as for a view.

    `untouched`: nothing is on it and it may be given away. `undivided`: it is held, uncut, by one or by several. An index has one
    object for each situation, so that two are compared by identity.
    """

    kind: GpuKind
    changing: bool
    example: Tenancy
    untouched: bool
    undivided: bool


def situation_of(kind: GpuKind, here: Tenancy, changing: bool) -> Situation:
    """The situation of a GPU of that kind."""
    untouched = here.untouched and not changing and not here.withheld and gpu_blocked(here) is None
    return Situation(kind, changing, here, untouched, bool(here.whole))


def situation_key(kind: GpuKind, here: Tenancy, changing: bool) -> tuple[object, ...]:
    """Equal for two GPUs only when every request gets the same answer from both, but for names."""
    undivided = bool(here.whole)
    if changing:
        return (kind, "changing", undivided)
    shared = _shared(here) if here.shared else ()
    if here.withheld:
        shared = (*shared, frozenset((_spot(each.place), each.for_large) for each in here.withheld))
    blocked = gpu_blocked(here)
    if blocked is not None:
        return (kind, blocked.reason, undivided, *shared)
    return (
        kind,
        here.gpu.mig_enabled,
        here.untouched,
        frozenset(here.fixed),
        frozenset(map(_idle, here.idle_owned)),
        frozenset(map(_idle, here.idle_foreign)),
        *shared,
    )


def _spot(place: Grant) -> Occupant | None:
    slot = place.slot
    return None if slot is None else Occupant(slot.profile, slot.placement)


def _idle(instance: GpuInstance) -> tuple[object, ...]:
    return (occupant(instance), reusable(instance), instance.memory)


def _shared(here: Tenancy) -> tuple[object, ...]:
    """What is given away in parts, on which devices."""
    gpu = here.gpu
    devices = frozenset(
        (None if slot is None else _slice(gpu, slot), account, fenced(gpu, slot))
        for slot, account in here.shared.items()
    )
    return (gpu.lost, gpu.mode_pending, gpu.prohibited, devices)


def _slice(gpu: GpuState, slot: InstanceKey) -> tuple[object, ...]:
    """A shared slice, whether programs can run in it yet, and its memory."""
    spot = Occupant(slot.profile, slot.placement)
    instance = gpu.instance_in(spot)
    return (spot, None) if instance is None else (spot, instance.whole_slice is not None, instance.memory)
