"""The machines that can be simulated by name: their boards, bus addresses, and orientation of the dies.

Bus addresses are those of the cloud instance types; NUMA nodes split the GPUs between two sockets if the machine has two. On real
machines the orientation of a die differs from card to card; here it is fixed, with both kinds on machines of eight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU to simulate.

    `board` is a key of the board catalogue, `product` the index of the board's product (its name and PCI device id). `swapped`
    dies number their GPU instances in the other direction. `pci` is (domain, bus, device).
    """

    board: str
    product: int = 0
    swapped: bool = False
    numa_node: int = 0
    pci: tuple[int, int, int] = (0, 1, 0)


@dataclass(frozen=True, slots=True)
class MachineType:
    """A machine that can be simulated by name."""

    name: str
    gpus: tuple[GpuSpec, ...]


def _eight(board: str, buses: Sequence[tuple[int, int]]) -> tuple[GpuSpec, ...]:
    """Eight GPUs on two sockets, every other die swapped."""
    return tuple(
        GpuSpec(board, swapped=index % 2 == 1, numa_node=index // 4, pci=(0, bus, device))
        for index, (bus, device) in enumerate(buses)
    )


def in_a_row(boards: Sequence[tuple[str, int]]) -> tuple[GpuSpec, ...]:
    """GPUs of a machine made from board keys and products: one bus each, one NUMA node, dies not swapped."""
    return tuple(
        GpuSpec(board, product=product, pci=(0, 0x10 + index, 0)) for index, (board, product) in enumerate(boards)
    )


_P4_BUSES = [
    (0x10, 0x1C),
    (0x10, 0x1D),
    (0x20, 0x1C),
    (0x20, 0x1D),
    (0x90, 0x1C),
    (0x90, 0x1D),
    (0xA0, 0x1C),
    (0xA0, 0x1D),
]
_P5_BUSES = [(bus, 0) for bus in (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)]

_TYPES = (
    MachineType("p4d.24xlarge", _eight("A100-40GB", _P4_BUSES)),
    MachineType("p4de.24xlarge", _eight("A100-80GB", _P4_BUSES)),
    MachineType("p5.48xlarge", _eight("H100-80GB-SXM", _P5_BUSES)),
    MachineType("p5en.48xlarge", _eight("H200-141GB", _P5_BUSES)),
    MachineType("p6-b200.48xlarge", _eight("B200", _P5_BUSES)),
    MachineType("g4dn.xlarge", (GpuSpec("T4", pci=(0, 0, 0x1E)),)),
    MachineType("g5.12xlarge", tuple(GpuSpec("A10G", pci=(0, 0, 0x1B + index)) for index in range(4))),
    MachineType("g6.12xlarge", tuple(GpuSpec("L4", pci=(0, bus, 0)) for bus in (0x38, 0x3A, 0x3C, 0x3E))),
    MachineType(
        "a30-server",
        tuple(GpuSpec("A30-24GB", numa_node=i // 2, pci=(0, bus, 0)) for i, bus in enumerate((0x17, 0x65, 0xCA, 0xE3))),
    ),
    MachineType("rtx-pro-6000-workstation", (GpuSpec("RTX-PRO-6000-96GB", product=1),)),
)

MACHINE_TYPES: Mapping[str, MachineType] = {machine.name: machine for machine in _TYPES}
