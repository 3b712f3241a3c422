"""Devices that several hold parts of, as the listings show them."""

from __future__ import annotations

from typing import Any, NamedTuple

from tranche.core.allocation import NodeView, Part, Slice, WholeGpu
from tranche.core.devices import memory_of
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState, InstanceKey
from tranche.core.walls import Walls
from tranche.core.wire import walls_to_dict
from tranche.planning.share_costs import capacity
from tranche.planning.tenancy import Account, tenancy


class SharedDevice(NamedTuple):
    """How a device is shared: `given` and `left` in bytes. `walls` are those of a part without a ceiling of its own."""

    sharing: Sharing
    given: int
    left: int
    walls: Walls


def shared_device(gpu: GpuState, slot: InstanceKey | None, account: Account) -> SharedDevice:
    """The device in that slot of the GPU, or without one the GPU itself. Nothing is left of one whose limits are lost."""
    device = WholeGpu(gpu.uuid) if slot is None else Slice(gpu.uuid, slot.profile, slot.placement)
    left = 0 if account.broken else max(0, capacity(account.sharing, memory_of(device, gpu)) - account.memory)
    walls = Part(device, account.memory, account.sharing, unlimited=account.broken).walls
    return SharedDevice(account.sharing, account.memory, left, walls)


def shared_gpu(view: NodeView, gpu: GpuState) -> SharedDevice | None:
    """How the uncut GPU is shared; None when it is not."""
    account = tenancy(view, gpu).shared.get(None)
    return None if account is None else shared_device(gpu, None, account)


def sharing_document(shared: SharedDevice | None) -> dict[str, Any] | None:
    """How a device is shared; null when one alone has it, or nobody."""
    if shared is None:
        return None
    return {
        "mechanism": str(shared.sharing),
        "walls": walls_to_dict(shared.walls),
        "memoryGivenBytes": shared.given,
        "memoryLeftBytes": shared.left,
    }
