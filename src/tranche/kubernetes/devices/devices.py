"""The devices of a node: everything that a claim can be given, each with what it takes and the grant that it stands for. Pure.

The set of devices depends only on the GPUs, the driver and the machine's means, not on what is cut or held. A name's meaning is
looked up among a node's devices and never parsed from the name.

Counters of dynamic resource allocation express which devices of one GPU exclude each other. A GPU has one for each memory slice.
Media extensions exist once, and a `+me.all` profile excludes all but `-me` profiles, so boards with such profiles have counters
for these as well. Compute slices need none: on every board with a published geometry, placements imply their limit. So a set of
devices fits the counters exactly when `tranche.core.grid` has room for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tranche.core.allocation import FractionalShare, Slice, WholeGpu
from tranche.core.board import GpuInstanceProfile, board_of
from tranche.core.grid import Placement, placements
from tranche.core.profile import ProfileName
from tranche.core.quantity import MIB
from tranche.core.sharing import (
    ALL_COMPUTE,
    FEWEST_CLIENTS,
    MOST_MULTIPROCESSORS,
    Sharing,
    capacity,
    context_memory,
)
from tranche.core.sharing_policy import GpuSharing
from tranche.core.state import GpuState, NodeState, clients_inside
from tranche.kubernetes.claims.vocabulary import AttributeName, CapacityName, DeviceType, profile_label

_MOST_CHARACTERS = 64  # of a string attribute
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class VersionValue:
    """An attribute that is compared as a version: three numbers separated by dots."""

    text: str


AttributeValue = bool | str | int | VersionValue
"""An attribute has one of these types, and never changes its type."""


def _attributes_of(
    offered: WholeGpu | Slice | FractionalShare, gpu: GpuState, number: int, node: NodeState, pcie_root: str = ""
) -> Mapping[str, AttributeValue]:
    """The attributes of a device that gives the grant; unknown ones are left out.

    `number` is the GPU's in device names. `pcie_root` is the kernel's name of the GPU's root: `pci0000:10`.
    """
    device = offered.device if isinstance(offered, FractionalShare) else offered
    profile = device.profile if isinstance(device, Slice) else None
    walls = offered.walls
    found: dict[str, AttributeValue | None] = {
        AttributeName.TYPE: _type(offered),
        AttributeName.MODEL: gpu.name[:_MOST_CHARACTERS],
        AttributeName.ARCHITECTURE: gpu.architecture or None,
        AttributeName.PROFILE: None if profile is None else str(profile),
        AttributeName.UUID: gpu.uuid,
        AttributeName.PARENT_UUID: gpu.uuid if isinstance(device, Slice) else None,
        AttributeName.MINOR: number,
        AttributeName.MEMORY_SLICES: device.placement.size if isinstance(device, Slice) else gpu.memory_slices or None,
        AttributeName.CARD_MEMORY: gpu.usable_memory // MIB,
        AttributeName.ISOLATION: str(walls.isolation),
        AttributeName.MEMORY_WALL: str(walls.memory),
        AttributeName.COMPUTE_WALL: str(walls.compute),
        AttributeName.FAULT_WALL: str(walls.faults),
        AttributeName.BANDWIDTH_WALL: str(walls.bandwidth),
        AttributeName.MECHANISM: offered.mechanism,
        AttributeName.NUMA_NODE: gpu.numa_node,
        AttributeName.DRIVER_VERSION: version_of(node.driver_version),
        AttributeName.CUDA_DRIVER_VERSION: version_of(".".join(map(str, node.cuda_version or ()))),
        AttributeName.PCIE_ROOT: pcie_root or None,
    }
    return {str(name): value for name, value in found.items() if value is not None}


def version_of(text: str) -> VersionValue | None:
    """The first three numbers, without leading zeros, as the API wants versions: `580.65.06` is 580.65.6; None without any."""
    numbers = [str(int(each)) for each in _NUMBER.findall(text)][:3]
    return VersionValue(".".join([*numbers, "0", "0"][:3])) if numbers else None


def _type(offered: WholeGpu | Slice | FractionalShare) -> str:
    if isinstance(offered, FractionalShare):
        return DeviceType.SHARED
    return DeviceType.SLICE if isinstance(offered, Slice) else DeviceType.WHOLE


class OfferKind(StrEnum):
    """SLICE: an instance for one holder alone. SHARED_GPU: parts of an uncut GPU. SHARED_SLICE: parts of an instance. WHOLE: an
    uncut GPU for one holder alone.
    """

    SLICE = "slice"
    SHARED_GPU = "shared-gpu"
    SHARED_SLICE = "shared-slice"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """A capacity. On a shared device, a request takes `default` when it names none, and `least` or more by `step`."""

    value: int
    default: int | None = None
    least: int = 0
    step: int = 1

    def why_not(self, amount: int) -> str:
        """Why that amount is never given, in words; "" for any amount that a scheduler can give by the published capacities."""
        if amount > self.value:
            return f"the device has only {self.value}"
        if amount < self.least or amount < 0:
            return f"the minimum is {self.least}"
        if (amount - self.least) % self.step and amount != self.default:
            return f"it is allocated in steps of {self.step}, starting at {self.least}"
        return ""


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """One device of the node's pool.

    `offered` is the grant of a claim that takes all of it; `sharing` is the mechanism of a shared device. It takes `counters`
    from the counter set `counter_set`. `number` is the GPU's in names.
    """

    name: str
    kind: OfferKind
    number: int
    offered: WholeGpu | Slice
    sharing: Sharing | None
    attributes: Mapping[str, AttributeValue] = field(hash=False)
    capacity: Mapping[str, DeviceCapacity] = field(hash=False)
    counters: Mapping[str, int] = field(hash=False)

    @property
    def gpu_uuid(self) -> str:
        """The UUID of its GPU."""
        return self.offered.gpu_uuid

    @property
    def counter_set(self) -> str:
        """The counter set that it takes from: its GPU's."""
        return counter_set_of(self.number)

    @property
    def profile(self) -> ProfileName | None:
        """The profile of the instance; None where the GPU is not cut."""
        return self.offered.profile if isinstance(self.offered, Slice) else None

    def grant(self, consumed: Mapping[str, int]) -> WholeGpu | Slice | FractionalShare:
        """The grant of a claim that consumed these capacities: bytes of memory, percent of compute."""
        if self.sharing is None:
            return self.offered
        memory = consumed.get(CapacityName.MEMORY, self.capacity[CapacityName.MEMORY].value)
        return FractionalShare(self.offered, memory, self.sharing, consumed.get(CapacityName.COMPUTE) or None)


def devices_of(node: NodeState, pcie_roots: Mapping[str, str] | None = None) -> tuple[NodeDevice, ...]:
    """Every device of the node, GPU by GPU; none of a GPU that the driver has lost.

    `pcie_roots` are by GPU UUID.
    """
    roots = pcie_roots or {}
    numbers = device_numbers(node)
    return tuple(
        device
        for gpu in node
        if gpu.uuid in numbers
        for device in _devices_on(gpu, numbers[gpu.uuid], node, roots.get(gpu.uuid, ""))
    )


def device_numbers(node: NodeState) -> Mapping[str, int]:
    """The number of each GPU in names, by UUID: its minor number, or its index where the driver gives none."""
    present = [gpu for gpu in node if not gpu.lost]
    known = {gpu.uuid: gpu.minor for gpu in present if gpu.minor is not None}
    taken = set(known.values())
    return known | {gpu.uuid: gpu.index for gpu in present if gpu.minor is None and gpu.index not in taken}


def counter_set_of(number: int) -> str:
    """The name of a GPU's counters."""
    return f"gpu-{number}"


def counter_sets(node: NodeState) -> Mapping[str, Mapping[str, int]]:
    """The counters of each GPU, by the name of their set."""
    return {counter_set_of(number): counters_of(node.gpu(uuid)) for uuid, number in device_numbers(node).items()}


def sharing_of(gpu: GpuState, node: NodeState) -> Sharing | None:
    """The strongest mechanism that shares the GPU, or an instance on it, between containers; None without any.

    A memory limit of the driver applies to a control group, and no container has one before the kubelet gets its answer.
    """
    rules = GpuSharing(means=node.sharing)
    ways = (each for each in Sharing if each is not Sharing.MEMORY_LIMITS)
    return next((each for each in ways if not rules.why_not(each, gpu)), None)


def _devices_on(gpu: GpuState, number: int, node: NodeState, root: str) -> Iterator[NodeDevice]:
    every = counters_of(gpu)
    whole = WholeGpu(gpu.uuid)

    def device(
        name: str,
        kind: OfferKind,
        offered: WholeGpu | Slice,
        sharing: Sharing | None,
        amounts: Mapping[str, DeviceCapacity],
        counters: Mapping[str, int],
    ) -> NodeDevice:
        stands_for = offered if sharing is None else FractionalShare(offered, 1, sharing)
        attributes = _attributes_of(stands_for, gpu, number, node, root)
        return NodeDevice(name, kind, number, offered, sharing, attributes, amounts, counters)

    for profile in gpu.profiles:
        for spot in placements(profile):
            name = f"gpu-{number}-{profile_label(profile.name)}-{spot.start}"
            offered, counters = Slice(gpu.uuid, profile.name, spot), consumed_by(profile.name, spot, gpu)
            yield device(name, OfferKind.SLICE, offered, None, _slice_amounts(profile, spot, gpu), counters)
            sharing = None if profile.name.has_attributes else sharing_of(gpu, node)
            if sharing is not None and profile.memory is not None:
                amounts = _shared_amounts(
                    sharing,
                    profile.memory,
                    clients_inside(_clients(node), profile, gpu),
                    context_memory(profile.sm or gpu.multiprocessors or MOST_MULTIPROCESSORS),
                )
                if amounts:
                    yield device(f"{name}-shared", OfferKind.SHARED_SLICE, offered, sharing, amounts, counters)
    if (sharing := sharing_of(gpu, node)) is not None:
        amounts = _shared_amounts(sharing, gpu.usable_memory, _clients(node), gpu.context_memory)
        if amounts:
            yield device(f"gpu-{number}-shared", OfferKind.SHARED_GPU, whole, sharing, amounts, every)
    yield device(f"gpu-{number}", OfferKind.WHOLE, whole, None, _whole_amounts(gpu), every)


def _clients(node: NodeState) -> int:
    return node.sharing.mps_clients or FEWEST_CLIENTS


def _whole_amounts(gpu: GpuState) -> Mapping[str, DeviceCapacity]:
    board = board_of(gpu.pci_device_id, gpu.name, gpu.memory)
    found: dict[str, DeviceCapacity] = {
        CapacityName.MEMORY: DeviceCapacity(gpu.usable_memory),
        CapacityName.SHARE: DeviceCapacity(100),
    }
    if board is not None and board.sm is not None:
        found[CapacityName.MULTIPROCESSORS] = DeviceCapacity(board.sm)
    return found


def _slice_amounts(profile: GpuInstanceProfile, spot: Placement, gpu: GpuState) -> Mapping[str, DeviceCapacity]:
    found: dict[str, DeviceCapacity] = {CapacityName.SHARE: DeviceCapacity(100 * spot.size // gpu.memory_slices)}
    if profile.memory is not None:
        found[CapacityName.MEMORY] = DeviceCapacity(profile.memory)
    if profile.sm is not None:
        found[CapacityName.MULTIPROCESSORS] = DeviceCapacity(profile.sm)
    return found


def _shared_amounts(sharing: Sharing, memory: int, clients: int, least: int) -> Mapping[str, DeviceCapacity]:
    """The capacities of a device with that many bytes for programs; none when a context's `least` bytes alone fill it."""
    room = capacity(sharing, memory) // MIB * MIB
    if room < least:
        return {}
    found: dict[str, DeviceCapacity] = {CapacityName.MEMORY: DeviceCapacity(room, default=room, least=least, step=MIB)}
    if sharing is Sharing.MPS:
        found[CapacityName.COMPUTE] = DeviceCapacity(ALL_COMPUTE, default=0)
        found[CapacityName.CLIENTS] = DeviceCapacity(clients, default=1, least=1)
    return found


_EXTENSIONS = "media-extensions"
_MEDIA = "media"


def counters_of(gpu: GpuState) -> Mapping[str, int]:
    """Every counter of the GPU with its initial value. A GPU without MIG has one memory slice."""
    units = max(gpu.memory_slices, 1)
    found = {_memory_slice(number): 1 for number in range(units)}
    if any("me" in profile.name.added for profile in gpu.profiles):
        found[_EXTENSIONS] = 1
    if any("me.all" in profile.name.added for profile in gpu.profiles):
        found[_MEDIA] = units
    return found


def consumed_by(profile: ProfileName, placement: Placement, gpu: GpuState) -> Mapping[str, int]:
    """The counters that an instance of the profile takes there."""
    every = counters_of(gpu)
    found = {_memory_slice(number): 1 for number in range(placement.start, placement.start + placement.size)}
    if "me" in profile.added:
        found[_EXTENSIONS] = 1
    if _MEDIA in every and "me" not in profile.removed:
        found[_MEDIA] = every[_MEDIA] if "me.all" in profile.added else 1
    return found


def _memory_slice(number: int) -> str:
    return f"memory-slice-{number}"
