"""GPUs as the driver reports them, for pure tests."""

from __future__ import annotations

from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import ComputeInstance, GpuInstance, GpuState, MigMode

_1G = parse_profile("1g.5gb")

PIECE = ComputeInstance(0, _1G, 0, 0, 1, "MIG-3-1-0", 0)
SLICE = GpuInstance(1, _1G, 19, Placement(0, 1), 5 << 30, (PIECE,))
GPU = GpuState(
    index=0,
    uuid="GPU-3",
    name="NVIDIA A100-SXM4-40GB",
    pci_bus_id="00000000:10:1C.0",
    pci_device_id="0x20B010DE",
    pci_subsystem_id="0x134F10DE",
    architecture="Ampere",
    memory=40 << 30,
    memory_free=40 << 30,
    mode=MigMode.ENABLED,
    pending_mode=MigMode.ENABLED,
    mode_change_needs_reset=True,
    memory_slices=8,
    profiles=(),
    profiles_source="driver",
    instances=(SLICE,),
    minor=3,
    numa_node=1,
)
