"""Errors of a simulated machine. Users of the simulator catch `SimulatorError`, or one of its kinds."""

from __future__ import annotations


class SimulatorError(Exception):
    """Root of the simulator's errors: a machine, or the library, could not be built, created, opened or changed.

    `message` says what happened and to what; `hint` says what to do next.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidRequest(SimulatorError):
    """The request is not well formed: a name, a board, a machine type or a time scale."""


class MachineExists(SimulatorError):
    """There is a machine of that name already; `name` is the name."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message, hint="destroy it first, or choose another name")
        self.name = name


class MachineUnknown(SimulatorError):
    """There is no machine of that name; `name` is the name, `known` are the existing ones."""

    def __init__(self, message: str, *, name: str, known: tuple[str, ...]) -> None:
        super().__init__(message, hint="create it first")
        self.name = name
        self.known = known


class NotPermitted(SimulatorError):
    """The caller is neither root nor the account that created the machine."""


class GpuUnknown(SimulatorError):
    """No GPU or MIG device of that UUID."""


class GpuInUse(SimulatorError):
    """A GPU has clients in the way, too little free memory, or takes work only in its MIG devices."""
