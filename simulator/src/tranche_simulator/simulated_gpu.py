"""One GPU of a simulated machine, as the machine's state describes it."""

from __future__ import annotations

from dataclasses import dataclass

from tranche_simulator.library import GpuDescriptionStruct


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """What one simulated GPU is and shows now.

    PCI device and subsystem ids are 0xDDDDVVVV, as in NVML. `memory` is in bytes. `unverified`: some numbers of its board are
    derived from the family, because no public source shows them.
    """

    index: int
    board: str
    name: str
    uuid: str
    bus_id: str
    pci_device_id: int
    pci_subsystem_id: int
    pci_class: int
    memory: int
    swapped: bool
    numa_node: int
    mig_supported: bool
    mig_current: bool
    mig_pending: bool
    gpu_instances: int
    compute_instances: int
    clients: int
    lost: bool
    stuck_mode: bool
    unverified: bool


def described_gpu(index: int, struct: GpuDescriptionStruct) -> SimulatedGpu:
    """The GPU of that index, from its description in C."""
    return SimulatedGpu(
        index=index,
        board=struct.board.decode(),
        name=struct.name.decode(),
        uuid=struct.uuid.decode(),
        bus_id=struct.bus_id.decode(),
        pci_device_id=struct.pci_device_id,
        pci_subsystem_id=struct.pci_subsystem_id,
        pci_class=struct.pci_class,
        memory=struct.memory_bytes,
        swapped=bool(struct.swapped),
        numa_node=struct.numa_node,
        mig_supported=bool(struct.mig_supported),
        mig_current=bool(struct.mig_current),
        mig_pending=bool(struct.mig_pending),
        gpu_instances=struct.gpu_instances,
        compute_instances=struct.compute_instances,
        clients=struct.clients,
        lost=bool(struct.lost),
        stuck_mode=bool(struct.stuck_mode),
        unverified=bool(struct.unverified),
    )
