"""What of a GPU a decision depends on: GPUs of one kind in one situation differ for it in their index only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tranche.core.board import GpuInstanceProfile
from tranche.core.state import GpuInstance, GpuState
from tranche.planning.options import gpu_blocked, reusable
from tranche.planning.tenancy import Tenancy, occupant


@dataclass(frozen=True, slots=True, eq=False)
class GpuKind:
    """What decisions see of a GPU that does not change with its use. A process has one object for each kind.

    `memory` in bytes, as for the GPU.
    """

    name: str
    memory: int
    memory_slices: int
    mig_capable: bool
    mode_change_needs_reset: bool
    profiles: tuple[GpuInstanceProfile, ...]

    def describes(self, gpu: GpuState) -> bool:
        """Whether the GPU is of this kind, as far as can be told at once; False may be wrong."""
        return (
            self.profiles is gpu.profiles
            and self.name == gpu.name
            and self.memory == gpu.memory
            and self.memory_slices == gpu.memory_slices
            and self.mig_capable == gpu.mig_capable
            and self.mode_change_needs_reset == gpu.mode_change_needs_reset
        )


@cache
def _kind(
    name: str, memory: int, memory_slices: int, capable: bool, reset: bool, profiles: tuple[GpuInstanceProfile, ...]
) -> GpuKind:
    return GpuKind(name, memory, memory_slices, capable, reset, profiles)


def kind_of(gpu: GpuState, guess: GpuKind | None = None) -> GpuKind:
    """The GPU's kind; a right guess makes it faster."""
    if guess is not None and guess.describes(gpu):
        return guess
    return _kind(gpu.name, gpu.memory, gpu.memory_slices, gpu.mig_capable, gpu.mode_change_needs_reset, gpu.profiles)


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """A situation that some GPU was found in: `example` is that GPU. `changing` as for a view.

    An index has one object for each situation, so that two are compared by identity.
    """

    kind: GpuKind
    changing: bool
    example: Tenancy


def situation_key(kind: GpuKind, here: Tenancy, changing: bool) -> tuple[object, ...]:
    """Equal for two GPUs only when every request gets the same answer from both, but for names."""
    if changing:
        return (kind, "changing")
    blocked = gpu_blocked(here)
    if blocked is not None:
        return (kind, blocked.reason)
    return (
        kind,
        here.gpu.mig_enabled,
        here.untouched,
        frozenset(here.fixed),
        frozenset(map(_idle, here.idle_owned)),
        frozenset(map(_idle, here.idle_foreign)),
    )


def _idle(instance: GpuInstance) -> tuple[object, ...]:
    return (occupant(instance), reusable(instance))
