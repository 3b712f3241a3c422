"""A simulated GPU machine: a `libnvidia-ml.so.1` with true MIG rules, whose state all processes that load it share.

`SimulatedMachine` creates and changes machines, `ensure_built` compiles the library, `preload` loads it into this process.
Failures raise a `SimulatorError`, of one of the kinds in `tranche_simulator.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tranche_simulator.build import ensure_built
    from tranche_simulator.errors import SimulatorError
    from tranche_simulator.library import preload
    from tranche_simulator.machine import Client, SimulatedMachine, machines_directory
    from tranche_simulator.machines import MACHINE_TYPES, GpuSpec, MachineType
    from tranche_simulator.recipe import BuiltSimulator
    from tranche_simulator.simulated_gpu import SimulatedGpu

__all__ = [
    "MACHINE_TYPES",
    "BuiltSimulator",
    "Client",
    "GpuSpec",
    "MachineType",
    "SimulatedGpu",
    "SimulatedMachine",
    "SimulatorError",
    "ensure_built",
    "machines_directory",
    "preload",
]

_MODULES = {
    "build": ("ensure_built",),
    "errors": ("SimulatorError",),
    "library": ("preload",),
    "machine": ("Client", "SimulatedMachine", "machines_directory"),
    "machines": ("MACHINE_TYPES", "GpuSpec", "MachineType"),
    "recipe": ("BuiltSimulator",),
    "simulated_gpu": ("SimulatedGpu",),
}


def __getattr__(name: str) -> object:
    """Import lazily: a command on a simulated machine needs little of this package, and must start fast."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
