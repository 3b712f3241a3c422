"""Carries out choices made elsewhere: the cheapest change that provides the grants, or why there is none.

The Kubernetes scheduler chooses devices from what was published, and may be late or wrong. Its choice never touches anything held
or in use, nor an instance that Tranche did not make: it is refused instead, with the obstacle.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from tranche.core.allocation import (
    Allocation,
    ComputeSlice,
    FractionalShare,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    overlap,
)
from tranche.core.errors import DoesNotFit, GpuBusy, HardwareError, NoRoom, SharingUnavailable, TrancheError
from tranche.core.grid import placements
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import FEWEST_CLIENTS, Sharing
from tranche.core.sharing_policy import GpuSharing
from tranche.core.state import PROHIBITED, GpuInstance, GpuState, MigMode, unavailable
from tranche.planning.decide.candidates import lost_obstacle
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.options import (
    gpu_blocked,
    in_the_way,
    mode_steps,
    reusable,
    uncut_steps,
)
from tranche.planning.decide.part_options import room_left
from tranche.planning.decide.share_options import ShareOption, ShareOptions
from tranche.planning.occupancy.gpu_occupancy import DeviceUsage, GpuOccupancy, tenancy
from tranche.planning.occupancy.layout_occupancy import holder_text
from tranche.planning.steps import CreateInstance, DestroyInstance, StartMps, Step
from tranche.planning.steps.plan import Plan, apply, with_daemons

ChosenDevice = WholeGpu | Slice | FractionalShare
"""The device behind a scheduler's choice."""

_MINE = "the requested device"
_FOREIGN_HINT = (
    "the pod starts when an administrator has destroyed that instance (nvidia-smi mig -dgi); to place it elsewhere "
    "now, recreate the pod"
)


def realise(view: NodeView, grants: Sequence[ChosenDevice], purpose: str) -> Plan | Obstacle:
    """The plan after which one new holder can have all of the grants, often empty; or the obstacle to the first.

    Raises GpuNotFound when one names a GPU that the machine does not have.
    """
    if text := why_not_together([(each.device, each.sharing) for each in grants if isinstance(each, FractionalShare)]):
        return obstacle(view.node.gpu(grants[0].gpu_uuid), Reason.SHARING_UNAVAILABLE, text)
    steps: list[Step] = []
    now = view
    for number, grant in enumerate(grants):
        for other in grants[:number]:
            if contradicts(grant, other):
                text = f"{_named(other)} and {_named(grant)} are chosen, but cannot exist together"
                return obstacle(view.node.gpu(grant.gpu_uuid), Reason.GPU_BUSY, text)
        found = _steps(now, grant)
        if isinstance(found, Obstacle):
            return found
        steps += found
        now = given(apply(Plan(purpose, found), now), _MINE, (grant,))
    plan = Plan(purpose, tuple(steps))
    marks = {uuid: view.node.gpu(uuid).fingerprint for uuid in plan.gpu_uuids}
    return with_daemons(plan._replace(fingerprints=marks), grants, view)


def why_not_together(parts: Sequence[tuple[Hashable, Sharing]]) -> str:
    """Why one holder cannot have these parts together, each of a device by a mechanism, in words; "" if it can."""
    devices = [device for device, _ in parts]
    if len(set(devices)) < len(devices):
        return "two parts of one device are chosen, but a holder can have only one part of a device"
    if sum(sharing is Sharing.MPS for _, sharing in parts) > 1:
        return "a program can use only one MPS daemon, but these parts are on several devices"
    return ""


def realise_again(view: NodeView, allocation: Allocation, purpose: str) -> Plan | Obstacle:
    """The plan that restores an allocation's grants; empty if all are still there.

    An instance is gone after a restart of the machine, say. What is there belongs to the holder, whatever runs in it.
    """
    lost = [each for each in allocation.grants if view.node.gpu(each.gpu_uuid).lost]
    if lost:
        return lost_obstacle(view.node.gpu(lost[0].gpu_uuid))
    stands = tuple(grant for grant in allocation.grants if _stands(grant, view.node.gpu(grant.gpu_uuid)))
    others = tuple(each for each in view.allocations if each.id != allocation.id)
    rest = given(replace(view, allocations=others), allocation.id, stands)
    gone = [each for each in allocation.grants if each not in stands and not isinstance(each, ComputeSlice)]
    return realise(rest, gone, purpose)


def given(view: NodeView, allocation_id: str, grants: Sequence[Grant]) -> NodeView:
    """The view with these grants promised as well."""
    if not grants:
        return view
    promise = Allocation(allocation_id, Request(WholeGpus(1)), tuple(grants), Phase.PREPARING, 0.0)
    return replace(view, allocations=(*view.allocations, promise))


def refusal(found: Obstacle) -> TrancheError:
    """The error for an obstacle to a choice."""
    hint = "the pod starts when that share is free; to place it elsewhere now, recreate the pod; list the shares with: tranche ps"
    match found.reason:
        case Reason.GPU_LOST:
            return HardwareError(str(found), hint="see: tranche doctor")
        case Reason.PROFILE_NOT_SUPPORTED:
            return DoesNotFit(str(found))
        case Reason.SHARING_UNAVAILABLE:
            return SharingUnavailable(str(found))
        case Reason.NO_ROOM:
            return NoRoom(str(found), hint=hint)
        case Reason.FOREIGN_INSTANCES:
            return GpuBusy(str(found), hint=_FOREIGN_HINT)
        case _:
            return GpuBusy(str(found), hint=hint)


def _steps(view: NodeView, grant: ChosenDevice) -> tuple[Step, ...] | Obstacle:
    gpu = view.node.gpu(grant.gpu_uuid)
    # First: the driver may lose sight of a GPU that is being reset.
    if gpu.uuid in view.changing:
        return obstacle(gpu, Reason.LAYOUT_CHANGING, "its layout is being changed")
    if gpu.lost:
        return lost_obstacle(gpu)
    if why := _unknown(grant, gpu):
        return obstacle(gpu, Reason.PROFILE_NOT_SUPPORTED, why)
    holders = [each for each in view.allocations if any(contradicts(grant, other) for other in each.grants)]
    if holders:
        names = ", ".join(map(holder_text, holders))
        ids = tuple(each.id for each in holders)
        return obstacle(gpu, Reason.GPU_BUSY, f"{_named(grant)} overlaps what {names} holds", allocation_ids=ids)
    found = tenancy(view, gpu)
    if isinstance(grant, FractionalShare):
        return _part_steps(view, found, grant)
    return _whole_steps(found) if isinstance(grant, WholeGpu) else _slice_steps(found, grant)


def _unknown(grant: ChosenDevice, gpu: GpuState) -> str:
    """Why the GPU can have no such device, in words; "" if it can."""
    slot = grant.slot
    if slot is None:
        return ""
    profile = gpu.profile(slot.profile)
    if profile is None or profile.name != slot.profile:
        return f"{gpu.name} has no profile {slot.profile}"
    if slot.placement not in placements(profile):
        return f"{slot.profile} cannot be placed at {slot.placement}"
    return ""


def contradicts(grant: ChosenDevice, held: Grant) -> bool:
    """Whether the two exclude each other: they overlap or conflict, and are not parts of one device."""
    if parts_of_one_device(grant, held):
        return False
    if overlap(grant, held):
        return True
    here, there = grant.slot, held.slot
    if here is None or there is None or grant.gpu_uuid != held.gpu_uuid:
        return False
    return here.place.conflicts(there.place)


def foreign_in_the_way(
    wanted: WholeGpu | Slice, gpu: GpuState, foreign: Sequence[GpuInstance]
) -> tuple[GpuInstance, ...]:
    """The foreign instances that keep the device from being granted, now or after their holders end.

    An instance that is itself the device is granted as it is.
    """
    if isinstance(wanted, WholeGpu):
        return tuple(foreign)
    here = gpu.instance_in(wanted.slot.place)
    if here is not None and reusable(here) is not None:
        return ()
    return tuple(each for each in foreign if in_the_way(each, wanted.profile, wanted.placement))


def parts_of_one_device(one: Grant, other: Grant) -> bool:
    """Whether both are parts of the same device: a program and the register know only one limit for each device and holder."""
    return isinstance(one, FractionalShare) and isinstance(other, FractionalShare) and one.device == other.device


def _whole_steps(found: GpuOccupancy) -> tuple[Step, ...] | Obstacle:
    blocked = gpu_blocked(found)
    if blocked is not None:
        return blocked
    return uncut_steps(found, destroy_foreign=False) if found.gpu.mig_enabled else ()


def _slice_steps(found: GpuOccupancy, wanted: Slice) -> tuple[Step, ...] | Obstacle:
    gpu, spot = found.gpu, wanted.placement
    blocked = gpu_blocked(found)
    if blocked is not None:
        return blocked
    create = CreateInstance(gpu.uuid, wanted.profile, spot, (wanted.profile,))
    if not gpu.mig_enabled:
        return (*mode_steps(gpu, MigMode.ENABLED), create)
    near = [each for each in gpu.instances if in_the_way(each, wanted.profile, spot)]
    promised = [each for each in near if gpu.key(each) in found.promised]
    if used := [each for each in near if each in found.in_use or each in promised]:
        return _in_use(gpu, used[0])
    here = gpu.instance_in(wanted.slot.place)
    if here is not None and (change := reusable(here)) is not None:
        return () if change == 0 else (create,)
    if foreign := foreign_in_the_way(wanted, gpu, found.idle_foreign):
        names = ", ".join(f"{each.profile} at {each.placement}" for each in foreign)
        text = f"{_named(wanted)} needs room occupied by {names}, which Tranche did not create"
        return obstacle(gpu, Reason.FOREIGN_INSTANCES, text, instances=tuple(map(gpu.key, foreign)))
    return (*(DestroyInstance(gpu.uuid, each.profile, each.placement) for each in near), create)


def _in_use(gpu: GpuState, instance: GpuInstance) -> Obstacle:
    what = f"{instance.profile} at {instance.placement}"
    names = ", ".join(map(str, instance.processes))
    text = f"{what} is in use by {names}, outside any claim" if names else f"{what} is being removed"
    return obstacle(gpu, Reason.GPU_BUSY, text, processes=instance.processes)


def _part_steps(view: NodeView, found: GpuOccupancy, part: FractionalShare) -> tuple[Step, ...] | Obstacle:
    gpu, device = found.gpu, part.device
    if why := GpuSharing(means=view.node.sharing).why_not(part.sharing, gpu):
        text = f"{_named(device)} cannot be shared by {part.sharing.for_people}: {why}"
        return obstacle(gpu, Reason.SHARING_UNAVAILABLE, text)
    if isinstance(device, WholeGpu) and gpu.prohibited:
        return obstacle(gpu, Reason.GPU_BUSY, PROHIBITED)
    account = found.shared.get(device.slot)
    steps: tuple[Step, ...] | Obstacle = ()
    if account is None:
        account = DeviceUsage(part.sharing)
        steps = _whole_steps(found) if isinstance(device, WholeGpu) else _slice_steps(found, device)
    elif text := _closed(found, part, account):
        ids = tuple(each.id for each in found.holders_of(device.slot))
        return obstacle(gpu, Reason.GPU_BUSY, f"{_named(device)} {text}", allocation_ids=ids)
    if isinstance(steps, Obstacle):
        return steps
    way = ShareOption(part.sharing, part.memory)
    wish = ShareOptions((way,), part.compute, view.node.sharing.mps_clients or FEWEST_CLIENTS, inside=True)
    left = room_left(found, device, account, way, wish)
    return left if isinstance(left, Obstacle) else steps


def _closed(found: GpuOccupancy, part: FractionalShare, account: DeviceUsage) -> str:
    """Why a shared device takes no more holders, in words; "" if it does."""
    gpu = found.gpu
    if account.sharing is not part.sharing:
        return f"is shared by {account.sharing.for_people}, not by {part.sharing.for_people}"
    if not _device_stands(part.device, gpu):
        return "is shared, but no longer exists"
    if part.sharing is Sharing.MPS and (why := unavailable(gpu, part.slot)):
        return f"accepts no new shares: {why}"
    return "has shares that lost their memory limits" if account.broken else ""


def _stands(grant: Grant, gpu: GpuState) -> bool:
    if not isinstance(grant, FractionalShare):
        return isinstance(grant, WholeGpu | Slice) and _device_stands(grant, gpu)
    if not _device_stands(grant.device, gpu) or grant.unlimited:
        return False
    place = grant.slot and grant.slot.place
    return grant.sharing is not Sharing.MPS or StartMps(gpu.uuid, place, grant.memory).in_effect(gpu)


def _device_stands(device: WholeGpu | Slice, gpu: GpuState) -> bool:
    if isinstance(device, WholeGpu):
        return not gpu.mig_enabled and not gpu.mode_pending
    instance = gpu.instance_in(device.slot.place)
    return instance is not None and instance.whole_slice is not None


def _named(grant: ChosenDevice) -> str:
    slot = grant.slot
    what = "the GPU" if slot is None else f"{slot.profile} at {slot.placement}"
    return f"a part of {what}" if isinstance(grant, FractionalShare) else what
