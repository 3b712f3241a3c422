"""How a person names a simulated GPU or slice."""

from __future__ import annotations

from tranche.core.errors import GpuNotFound
from tranche_simulator import SimulatedMachine


def target_uuid(machine: SimulatedMachine, target: str) -> str:
    """The UUID that a GPU index stands for; anything else is taken for a UUID. GpuNotFound past the last GPU."""
    if not target.isdecimal():
        return target
    gpus = machine.gpus()
    if int(target) >= len(gpus):
        raise GpuNotFound(f"{machine.name} has no GPU {target}", hint=f"its GPUs are 0 to {len(gpus) - 1}")
    return gpus[int(target)].uuid
