"""Shared devices, as the listings show them."""

from __future__ import annotations

from typing import Any, NamedTuple

from tranche.core.allocation import Allocation, FractionalShare, NodeView, Slice, WholeGpu, memory_of
from tranche.core.sharing import GrantIsolation, Sharing, capacity
from tranche.core.state import GpuState, InstanceKey, unavailable
from tranche.core.wire import walls_to_dict
from tranche.planning.occupancy.gpu_occupancy import DeviceUsage, tenancy


class SharedDevice(NamedTuple):
    """How a device is shared: `given` and `left` in bytes. `walls` are those of a part without its own ceiling.

    `unavailable` says why the device admits no more clients, "" if it does.
    """

    sharing: Sharing
    given: int
    left: int
    walls: GrantIsolation
    unavailable: str = ""


def shared_device(gpu: GpuState, slot: InstanceKey | None, account: DeviceUsage) -> SharedDevice:
    """The device in that slot of the GPU, or without a slot the GPU itself.

    Nothing is left of a device with lost limits, or with a daemon that admits no clients.
    """
    device = WholeGpu(gpu.uuid) if slot is None else Slice(gpu.uuid, slot.profile, slot.placement)
    why = unavailable(gpu, slot) if account.sharing is Sharing.MPS else ""
    left = 0 if account.broken or why else max(0, capacity(account.sharing, memory_of(device, gpu)) - account.memory)
    walls = FractionalShare(device, account.memory, account.sharing, unlimited=account.broken).walls
    return SharedDevice(account.sharing, account.memory, left, walls, why)


def shared_gpu(view: NodeView, gpu: GpuState) -> SharedDevice | None:
    """How the uncut GPU is shared; None if it is not."""
    account = tenancy(view, gpu).shared.get(None)
    return None if account is None else shared_device(gpu, None, account)


def why_unavailable(allocation: Allocation, view: NodeView) -> str:
    """Why a device that the allocation shares by MPS admits no more clients; "" if it does."""
    gpus = {gpu.uuid: gpu for gpu in view.node}
    shared = [each for each in allocation.grants if isinstance(each, FractionalShare) and each.sharing is Sharing.MPS]
    reasons = (unavailable(gpus[each.gpu_uuid], each.slot) for each in shared if each.gpu_uuid in gpus)
    return next(filter(None, reasons), "")


def sharing_document(shared: SharedDevice | None) -> dict[str, Any] | None:
    """How a device is shared; null if it is not."""
    if shared is None:
        return None
    return {
        "mechanism": str(shared.sharing),
        "walls": walls_to_dict(shared.walls),
        "memoryGivenBytes": shared.given,
        "memoryLeftBytes": shared.left,
        "fenced": shared.unavailable or None,
    }
