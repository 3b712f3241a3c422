"""Every way in which one GPU could grant a part of itself, or of one of its slices, now; or the obstacle."""

from __future__ import annotations

from collections.abc import Iterator

from tranche.core.allocation import FractionalShare, Slice, WholeGpu, memory_of
from tranche.core.quantity import format_memory
from tranche.core.sharing import ALL_COMPUTE, Sharing, capacity
from tranche.core.state import PROHIBITED, GpuState, clients_inside, unavailable
from tranche.planning.decide.candidates import plain_profiles
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.options import (
    Option,
    OptionKind,
    gpu_blocked,
    reusable,
    reuse_option,
    slice_options,
    uncut_steps,
)
from tranche.planning.decide.share_options import ShareOption, ShareOptions
from tranche.planning.occupancy.gpu_occupancy import DeviceUsage, GpuOccupancy


def part_options(tenancy: GpuOccupancy, wish: ShareOptions, destroy_foreign: bool) -> tuple[Option, ...] | Obstacle:
    """The ways to grant a part of that GPU now, or the obstacle."""
    gpu = tenancy.gpu
    account = tenancy.shared.get(None)
    if account is not None and not gpu.lost and not gpu.mode_pending:
        return _joined(tenancy, WholeGpu(gpu.uuid), account, wish)
    blocked = gpu_blocked(tenancy)
    if blocked is not None:
        return blocked
    whole = WholeGpu(gpu.uuid)
    if not gpu.mig_enabled:
        return (_fresh(gpu, whole, wish.ways[0], wish, OptionKind.FILL),)
    inside = tuple(_inside(tenancy, wish, destroy_foreign)) if wish.inside else ()
    found = tuple(each for each in inside if isinstance(each, Option))
    if found:
        return found
    uncut = uncut_steps(tenancy, destroy_foreign)
    if not isinstance(uncut, Obstacle):
        option = _fresh(gpu, whole, wish.ways[0], wish, OptionKind.MODE)
        return (option._replace(steps=uncut),)
    return next((each for each in inside if isinstance(each, Obstacle)), uncut)


def _inside(tenancy: GpuOccupancy, wish: ShareOptions, destroy_foreign: bool) -> Iterator[Option | Obstacle]:
    """Parts of slices: shared ones, idle ones, and one still to be made."""
    gpu = tenancy.gpu
    present = {gpu.key(instance): instance for instance in gpu.instances}
    for slot, account in tenancy.shared.items():
        instance = None if slot is None else present.get(slot)
        if slot is None or slot.profile.has_attributes:
            continue  # media engines and the like only for requests that name them
        if instance is not None and instance.whole_slice is not None:
            yield from _found(_joined(tenancy, Slice(gpu.uuid, slot.profile, slot.placement), account, wish))
    way = next((each for each in wish.ways if each.sharing is not Sharing.MEMORY_LIMITS), None)
    if way is None:
        return
    for instance in tenancy.idle:
        if instance.profile.has_attributes:
            continue
        effort = reusable(instance)
        profile = gpu.profile(instance.profile)
        if effort is not None and profile is not None:
            device = Slice(gpu.uuid, profile.name, instance.placement)
            if not wish.too_fine_for(profile) and way.memory <= capacity(way.sharing, memory_of(device, gpu)):
                yield _on_slice(gpu, device, reuse_option(tenancy, profile, instance, effort), way, wish)
    for profile in plain_profiles(gpu):
        if wish.too_fine_for(profile):
            continue
        if profile.memory is not None and way.memory <= capacity(way.sharing, profile.memory):
            for option in slice_options(tenancy, profile, destroy_foreign):
                assert isinstance(option.grant, Slice)
                if option.change in (OptionKind.CREATE, OptionKind.REPLACE):
                    yield _on_slice(gpu, option.grant, option, way, wish)
            return


def _found(answer: tuple[Option, ...] | Obstacle) -> tuple[Option | Obstacle, ...]:
    return (answer,) if isinstance(answer, Obstacle) else answer


def _on_slice(gpu: GpuState, device: Slice, alone: Option, way: ShareOption, wish: ShareOptions) -> Option:
    """The first part of a slice, by the option that grants the slice exclusively."""
    change = max(alone.change, OptionKind.FILL)
    option = _fresh(gpu, device, way, wish, change)
    return option._replace(steps=alone.steps)


def _fresh(gpu: GpuState, device: WholeGpu | Slice, way: ShareOption, wish: ShareOptions, change: OptionKind) -> Option:
    """The first part of a device."""
    part = _part(device, way, wish)
    left = capacity(way.sharing, memory_of(device, gpu)) - way.memory
    return Option(gpu, part, change, (), wish.amount or part.memory, left)


def _joined(
    tenancy: GpuOccupancy, device: WholeGpu | Slice, account: DeviceUsage, wish: ShareOptions
) -> tuple[Option, ...] | Obstacle:
    """One more part of an already shared device."""
    gpu = tenancy.gpu
    way = wish.way(account.sharing)
    found = _full(tenancy, device, account, way, wish)
    if isinstance(found, Obstacle):
        return found
    assert way is not None
    part = _part(device, way, wish)
    return (Option(gpu, part, OptionKind.NONE, (), wish.amount or part.memory, found),)


def _full(
    tenancy: GpuOccupancy, device: WholeGpu | Slice, account: DeviceUsage, way: ShareOption | None, wish: ShareOptions
) -> int | Obstacle:
    """The bytes left of a shared device after one more part, or why there is none."""
    gpu = tenancy.gpu
    holders = tenancy.holders_of(device.slot)
    ids = tuple(each.id for each in holders)
    where = "" if device.slot is None else f"{device.slot.profile} at {device.slot.placement} is "

    def busy(text: str) -> Obstacle:
        return obstacle(gpu, Reason.GPU_BUSY, text, allocation_ids=ids)

    if device.slot is None and gpu.mig_enabled:
        return busy(f"shared by {', '.join(ids)}, and MIG mode was turned on: no new shares")
    if device.slot is None and gpu.prohibited:
        return busy(PROHIBITED)
    if way is None:
        return busy(f"{where}shared by {account.sharing.for_people}, which the request does not accept")
    if account.sharing is Sharing.MPS and (text := unavailable(gpu, device.slot)):
        return busy(where + text)
    if account.broken:
        return busy(f"{where}shared by {', '.join(ids)}, which no longer have memory limits: no new shares")
    if device.slot is not None and (text := wish.too_fine_for(gpu.profile(device.slot.profile))):
        return obstacle(
            gpu, Reason.NO_ROOM, f"{device.slot.profile} at {device.slot.placement} {text}", allocation_ids=ids
        )
    return room_left(tenancy, device, account, way, wish)


def room_left(
    tenancy: GpuOccupancy, device: WholeGpu | Slice, account: DeviceUsage, way: ShareOption, wish: ShareOptions
) -> int | Obstacle:
    """The bytes left of a device after one more part, or what it lacks: memory, compute or clients."""
    gpu = tenancy.gpu
    ids = tuple(each.id for each in tenancy.holders_of(device.slot))
    where = "" if device.slot is None else f"{device.slot.profile} at {device.slot.placement} is "
    room = capacity(account.sharing, memory_of(device, gpu))
    left = room - account.memory - way.memory
    if left < 0:
        text = f"{format_memory(max(0, room - account.memory))} free of {format_memory(room)} shared"
        text = f"{where.replace(' is ', ' has ')}{text}, but the request needs {format_memory(way.memory)}"
        return obstacle(gpu, Reason.NO_ROOM, text, missing_memory=-left, allocation_ids=ids)
    if account.compute + (wish.compute or 0) > ALL_COMPUTE:
        text = (
            f"{where}shared with compute ceilings of {account.compute}%, and the request asks for {wish.compute}% more"
        )
        return obstacle(gpu, Reason.NO_ROOM, text, allocation_ids=ids)
    if account.sharing is Sharing.MPS and account.holders >= _clients(gpu, device, wish):
        text = f"{where}shared by {account.holders} holders, and MPS accepts no more programs there"
        return obstacle(gpu, Reason.NO_ROOM, text, allocation_ids=ids)
    return left


def _clients(gpu: GpuState, device: WholeGpu | Slice, wish: ShareOptions) -> int:
    profile = gpu.profile(device.profile) if isinstance(device, Slice) else None
    return wish.clients if profile is None else clients_inside(wish.clients, profile, gpu)


def _part(device: WholeGpu | Slice, way: ShareOption, wish: ShareOptions) -> FractionalShare:
    return FractionalShare(device, way.memory, way.sharing, wish.compute)
