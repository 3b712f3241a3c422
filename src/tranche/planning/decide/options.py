"""Every exclusive option of one GPU now, with its steps; or the common obstacle."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from tranche.core.allocation import Grant, Slice, WholeGpu, overlap
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import PlacedInstance, Placement, fits, placements, profiles_exclude
from tranche.core.profile import ProfileName
from tranche.core.state import PROHIBITED, GpuInstance, GpuState, MigMode
from tranche.planning.decide.candidates import Candidate, lost_obstacle
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.tables import PossiblePlacement, arrangeable
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, Step


class OptionKind(IntEnum):
    """What an option does to the GPU, cheapest first."""

    NONE = 0
    FILL = 1
    CREATE = 2
    REPLACE = 3
    MODE = 4


class Option(NamedTuple):
    """One way to serve a request on one GPU.

    `memory` is the granted bytes, of a part what the request asks for. `left` is the bytes left in parts of a shared device
    after the grant. `replaceable` means that what it reuses or destroys was made for a request, so Tranche may cut it freely.
    """

    gpu: GpuState
    grant: Grant
    change: OptionKind
    steps: tuple[Step, ...]
    memory: int
    left: int = 0
    replaceable: bool = True

    @property
    def destroys(self) -> int:
        """The number of idle instances that it destroys."""
        return sum(step.destroys is not None for step in self.steps)


def ways_alone(tenancy: GpuOccupancy, candidate: Candidate, destroy_foreign: bool) -> tuple[Option, ...] | Obstacle:
    """The exclusive ways to serve the candidate on that GPU now, or the obstacle.

    Empty if a slice finds no room: the reason takes longer to find.
    """
    gpu = tenancy.gpu
    blocked = gpu_blocked(tenancy)
    if blocked is not None:
        return blocked
    if not gpu.mig_enabled and (candidate.profile is None or candidate.whole):
        return (_whole(tenancy, ()),)
    if candidate.profile is None:
        return _uncut_again(tenancy, destroy_foreign)
    if not gpu.mig_enabled:
        return _cut_first(tenancy, candidate.profile)
    return slice_options(tenancy, candidate.profile, destroy_foreign)


def reusable(instance: GpuInstance) -> OptionKind | None:
    """The change needed to grant the idle instance as a whole slice; None if it is cut inside."""
    if instance.whole_slice is not None:
        return OptionKind.NONE
    return None if instance.compute_instances else OptionKind.FILL


def slice_obstacle(tenancy: GpuOccupancy, profile: GpuInstanceProfile) -> Obstacle:
    """Why no slice of the profile fits a GPU that is already cut."""
    gpu = tenancy.gpu
    taken = tenancy.lasting_mask
    missing = min((spot.mask & taken).bit_count() for spot in placements(profile))
    if _rooms(profile, tenancy.fixed):
        return obstacle(
            gpu,
            Reason.FOREIGN_INSTANCES,
            f"idle instances that Tranche did not create occupy the room for {profile.name}",
            missing_slices=missing,
            instances=tuple(map(gpu.key, tenancy.idle_foreign)),
        )
    free = gpu.memory_slices - taken.bit_count()
    reason = Reason.NO_ROOM
    if any(profiles_exclude(profile.name, each.profile) for each in tenancy.fixed):
        text = f"{profile.name} needs media engines that another instance uses"
    elif free < profile.size:
        text = f"{free} of {gpu.memory_slices} memory slices free, but {profile.name} needs {profile.size}"
    elif _arrangeable(tenancy, profile):
        reason = Reason.FRAGMENTED
        text = f"{_slices_text(free)} free, but not where {profile.name} can be placed"
    else:
        text = f"{_slices_text(free)} free, but {profile.name} would not fit even if the others moved"
    return obstacle(
        gpu,
        reason,
        text,
        missing_slices=missing,
        allocation_ids=tuple(each.id for each in tenancy.allocations),
        processes=tuple(p for instance in tenancy.in_use for p in instance.processes),
    )


def _arrangeable(tenancy: GpuOccupancy, profile: GpuInstanceProfile) -> bool:
    """Whether everything in use and the profile would fit together after rearranging."""
    present = [tenancy.gpu.profile(each.profile) for each in tenancy.fixed]
    shapes = [PossiblePlacement(each.size, each.starts) for each in (*present, profile) if each is not None]
    foreign_mask = tenancy.lasting_mask & ~tenancy.fixed_mask
    return arrangeable(tuple(sorted(shapes, key=lambda shape: -shape.size)), foreign_mask)


def gpu_blocked(tenancy: GpuOccupancy) -> Obstacle | None:
    """The obstacle to any request on the GPU, if there is one."""
    gpu = tenancy.gpu
    if gpu.lost:
        return lost_obstacle(gpu)
    if tenancy.whole:
        ids = tuple(each.id for each in tenancy.whole)
        how = "shared" if None in tenancy.shared else "held whole"
        return obstacle(gpu, Reason.GPU_BUSY, f"{how} by {', '.join(ids)}", allocation_ids=ids)
    if gpu.prohibited:
        return obstacle(gpu, Reason.GPU_BUSY, PROHIBITED)
    if gpu.mode_pending:
        ids = tuple(each.id for each in tenancy.allocations)
        return obstacle(
            gpu,
            Reason.MIG_MODE_CHANGE_PENDING,
            f"MIG mode is {gpu.mode}, and will be {gpu.pending_mode} after a reset",
            allocation_ids=ids,
            processes=gpu.all_processes,
        )
    if not gpu.mig_enabled and tenancy.promised:
        ids = tuple(each.id for each in tenancy.allocations)
        return obstacle(gpu, Reason.GPU_BUSY, f"is being partitioned for {', '.join(ids)}", allocation_ids=ids)
    if not gpu.mig_enabled and gpu.all_processes:
        names = ", ".join(map(str, gpu.all_processes))
        return obstacle(gpu, Reason.GPU_BUSY, f"used by {names}", processes=gpu.all_processes)
    return None


def _whole(tenancy: GpuOccupancy, steps: tuple[Step, ...]) -> Option:
    gpu = tenancy.gpu
    change = OptionKind.MODE if steps else OptionKind.NONE
    return Option(gpu, WholeGpu(gpu.uuid), change, steps, gpu.memory)


def _uncut_again(tenancy: GpuOccupancy, destroy_foreign: bool) -> tuple[Option, ...] | Obstacle:
    """A whole GPU from a cut one."""
    steps = uncut_steps(tenancy, destroy_foreign)
    return steps if isinstance(steps, Obstacle) else (_whole(tenancy, steps),)


def uncut_steps(tenancy: GpuOccupancy, destroy_foreign: bool) -> tuple[Step, ...] | Obstacle:
    """The steps that make a cut GPU whole: destroy idle instances and turn MIG mode off; or the obstacle."""
    gpu = tenancy.gpu
    if not tenancy.untouched:
        return obstacle(
            gpu,
            Reason.GPU_BUSY,
            "has slices that are held or in use",
            missing_slices=tenancy.fixed_mask.bit_count(),
            allocation_ids=tuple(each.id for each in tenancy.allocations),
            processes=gpu.all_processes,
        )
    if tenancy.idle_foreign and not destroy_foreign:
        return obstacle(
            gpu,
            Reason.FOREIGN_INSTANCES,
            "has idle instances that Tranche did not create",
            instances=tuple(map(gpu.key, tenancy.idle_foreign)),
        )
    destroys = tuple(_destroy(gpu, instance) for instance in tenancy.idle)
    return (*destroys, *mode_steps(gpu, MigMode.DISABLED))


def _cut_first(tenancy: GpuOccupancy, profile: GpuInstanceProfile) -> tuple[Option, ...]:
    """A slice of an idle GPU whose MIG mode is off."""
    gpu = tenancy.gpu
    steps = mode_steps(gpu, MigMode.ENABLED)
    return tuple(
        _slice(tenancy, profile, spot, OptionKind.MODE, (*steps, _create(gpu, profile, spot)))
        for spot in placements(profile)
    )


def slice_options(tenancy: GpuOccupancy, profile: GpuInstanceProfile, destroy_foreign: bool) -> tuple[Option, ...]:
    """The ways to grant a slice of the profile on a cut GPU."""
    gpu = tenancy.gpu
    reused = [
        reuse_option(tenancy, profile, instance, change)
        for instance in tenancy.idle
        if instance.profile == profile.name
        and (change := reusable(instance)) is not None
        and not any(
            overlap(Slice(gpu.uuid, instance.profile, instance.placement), each.place) for each in tenancy.withheld
        )
    ]
    if any(option.change is OptionKind.NONE and not option.replaceable for option in reused):
        return tuple(reused)
    removable = tenancy.idle if destroy_foreign else tenancy.idle_owned
    kept = tenancy.fixed
    if not destroy_foreign:
        kept += tuple(each.place for each in tenancy.idle_foreign)
    there = {option.grant.slot.placement for option in reused if option.grant.slot is not None}
    made = []
    for spot in _rooms(profile, kept):
        if spot in there:
            continue
        gone = [each for each in removable if in_the_way(each, profile.name, spot)]
        steps: tuple[Step, ...] = (*(_destroy(gpu, each) for each in gone), _create(gpu, profile, spot))
        change = OptionKind.REPLACE if gone else OptionKind.CREATE
        made.append(_slice(tenancy, profile, spot, change, steps, replaceable=all(map(tenancy.replaceable, gone))))
    return tuple(reused + made)


def _rooms(profile: GpuInstanceProfile, kept: Sequence[PlacedInstance]) -> tuple[Placement, ...]:
    return tuple(spot for spot in placements(profile) if fits(profile, spot, kept))


def in_the_way(instance: GpuInstance, name: ProfileName, spot: Placement) -> bool:
    """Whether the instance cannot coexist with a new one of that profile and placement."""
    return instance.placement.overlaps(spot) or profiles_exclude(instance.profile, name)


def reuse_option(
    tenancy: GpuOccupancy, profile: GpuInstanceProfile, instance: GpuInstance, change: OptionKind
) -> Option:
    """The idle instance as a whole slice, by the `change` that `reusable` returned."""
    steps = () if change is OptionKind.NONE else (_create(tenancy.gpu, profile, instance.placement),)
    return _slice(tenancy, profile, instance.placement, change, steps, replaceable=tenancy.replaceable(instance))


def _slice(
    tenancy: GpuOccupancy,
    profile: GpuInstanceProfile,
    spot: Placement,
    change: OptionKind,
    steps: tuple[Step, ...],
    *,
    replaceable: bool = True,
) -> Option:
    slot = Slice(tenancy.gpu.uuid, profile.name, spot)
    return Option(tenancy.gpu, slot, change, steps, profile.memory or 0, replaceable=replaceable)


def _create(gpu: GpuState, profile: GpuInstanceProfile, spot: Placement) -> CreateInstance:
    return CreateInstance(gpu.uuid, profile.name, spot, (profile.name,))


def _destroy(gpu: GpuState, instance: GpuInstance) -> DestroyInstance:
    return DestroyInstance(gpu.uuid, instance.profile, instance.placement)


def mode_steps(gpu: GpuState, mode: MigMode) -> tuple[Step, ...]:
    """The steps that set the GPU's MIG mode; the GPU must be unused."""
    switch = SetMigMode(gpu.uuid, mode is MigMode.ENABLED)
    return (switch, ResetGpu(gpu.uuid)) if gpu.mode_change_needs_reset else (switch,)


def _slices_text(count: int) -> str:
    return "1 memory slice" if count == 1 else f"{count} memory slices"
