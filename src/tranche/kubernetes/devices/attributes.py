"""What is true of a device, under the names by which users select it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tranche.core.allocation import FractionalShare, Slice, WholeGpu
from tranche.core.quantity import MIB
from tranche.core.state import GpuState, NodeState
from tranche.kubernetes.claims.vocabulary import AttributeName, DeviceType

_MOST_CHARACTERS = 64  # of a string attribute
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class VersionValue:
    """An attribute that is compared as a version: three numbers with dots between them."""

    text: str


AttributeValue = bool | str | int | VersionValue
"""An attribute is one of these, and never changes its kind."""


def attributes_of(
    offered: WholeGpu | Slice | FractionalShare, gpu: GpuState, number: int, node: NodeState, pcie_root: str = ""
) -> Mapping[str, AttributeValue]:
    """The attributes of a device that gives the grant; what is not known is left out.

    `number` is the GPU's in device names. `pcie_root` is the kernel's name of the root that the GPU hangs on: `pci0000:10`.
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
        AttributeName.ISOLATION: str(offered.isolation),
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
