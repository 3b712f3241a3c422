"""A simulated GPU machine: a `libnvidia-ml.so.1` with true MIG rules, its state shared by all processes that load it.

`SimulatedMachine` creates and changes machines, `ensure_built` compiles the library, `preload` puts it into this process.
"""

from __future__ import annotations

from tranche.hardware.simulator.build import BuiltSimulator, ensure_built
from tranche.hardware.simulator.library import preload
from tranche.hardware.simulator.machine import Client, SimulatedGpu, SimulatedMachine, machines_directory
from tranche.hardware.simulator.machines import MACHINE_TYPES, GpuSpec, MachineType

__all__ = [
    "MACHINE_TYPES",
    "BuiltSimulator",
    "Client",
    "GpuSpec",
    "MachineType",
    "SimulatedGpu",
    "SimulatedMachine",
    "ensure_built",
    "machines_directory",
    "preload",
]
