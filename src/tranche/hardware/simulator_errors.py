"""The simulator's errors in Tranche's terms: each with a reason word, an exit code, and a hint that names commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tranche.core.errors import GpuBusy, GpuNotFound, PermissionDenied, SimulatorError, TrancheError, UsageError
from tranche.core.spelling import did_you_mean
from tranche_simulator import errors as simulator

_CLASSES: dict[type[simulator.SimulatorError], type[TrancheError]] = {
    simulator.SimulatorError: SimulatorError,
    simulator.InvalidRequest: UsageError,
    simulator.MachineExists: SimulatorError,
    simulator.MachineUnknown: SimulatorError,
    simulator.NotPermitted: PermissionDenied,
    simulator.GpuUnknown: GpuNotFound,
    simulator.GpuInUse: GpuBusy,
}


@contextmanager
def simulator_errors() -> Iterator[None]:
    """Translate the simulator's errors in this block into Tranche's."""
    try:
        yield
    except simulator.SimulatorError as error:
        raise _CLASSES[type(error)](error.message, hint=_hint(error)) from error


def _hint(error: simulator.SimulatorError) -> str:
    if isinstance(error, simulator.MachineExists):
        return f"destroy it first (`tranche sim destroy {error.name}`), or choose another name"
    if isinstance(error, simulator.MachineUnknown):
        from tranche_simulator.machines import MACHINE_TYPES

        meant = did_you_mean(error.name, {*error.known, *MACHINE_TYPES} - {error.name})
        return f"{meant}`tranche sim list` shows the machines; `tranche sim create` creates one"
    return error.hint
