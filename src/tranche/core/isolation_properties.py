"""The walls around what was given, one for each dimension in which neighbours could disturb one another."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tranche.core.request import Isolation


class MemoryIsolation(StrEnum):
    """OWN: nobody else can have any of it. DRIVER: the driver refuses more than was given. PROCESS: it refuses that to each
    process singly, so several of them can have more together. NONE: whoever comes first takes what it likes.
    """

    OWN = "own"
    DRIVER = "driver"
    PROCESS = "process"
    NONE = "none"


class ComputeIsolation(StrEnum):
    """OWN: multiprocessors for one alone. CEILING: no more than was asked for. TURNS: whoever has work shares evenly."""

    OWN = "own"
    CEILING = "ceiling"
    TURNS = "turns"


class FaultIsolation(StrEnum):
    """OWN: a fault ends the program that made it. SHARED: it ends the neighbours' programs as well."""

    OWN = "own"
    SHARED = "shared"


class BandwidthIsolation(StrEnum):
    """OWN: a share of the paths to memory that is always there. SHARED: neighbours slow one another down."""

    OWN = "own"
    SHARED = "shared"


_MEMORY = {
    MemoryIsolation.OWN: "own memory",
    MemoryIsolation.DRIVER: "memory limited by the driver",
    MemoryIsolation.PROCESS: "memory of each process limited by the driver",
    MemoryIsolation.NONE: "memory not limited",
}
_ENFORCED = (MemoryIsolation.OWN, MemoryIsolation.DRIVER, MemoryIsolation.PROCESS)
_COMPUTE = {
    ComputeIsolation.OWN: "own compute",
    ComputeIsolation.CEILING: "compute ceiling",
    ComputeIsolation.TURNS: "even turns",
}


class GrantIsolation(NamedTuple):
    """What is true of a grant in each dimension."""

    memory: MemoryIsolation
    compute: ComputeIsolation
    faults: FaultIsolation
    bandwidth: BandwidthIsolation

    @property
    def isolation(self) -> Isolation:
        """How strong the fence is as a whole: HARD when all is its own, SOFT when memory is enforced, NONE otherwise."""
        if self == OWN_WALLS:
            return Isolation.HARD
        return Isolation.SOFT if self.memory in _ENFORCED else Isolation.NONE

    @property
    def sentence(self) -> str:
        """The fence for people: `hard isolation`, or with every wall when they are not all its own."""
        isolation = f"{self.isolation} isolation"
        return isolation if self == OWN_WALLS else f"{isolation}: {self}"

    def __str__(self) -> str:
        """Every wall: `memory limited by the driver, even turns, faults shared, bandwidth shared`."""
        return ", ".join(
            (
                _MEMORY[self.memory],
                _COMPUTE[self.compute],
                "own faults" if self.faults is FaultIsolation.OWN else "faults shared",
                "own bandwidth" if self.bandwidth is BandwidthIsolation.OWN else "bandwidth shared",
            )
        )


OWN_WALLS = GrantIsolation(MemoryIsolation.OWN, ComputeIsolation.OWN, FaultIsolation.OWN, BandwidthIsolation.OWN)
"""A device for one holder alone."""

INSIDE_WALLS = GrantIsolation(
    MemoryIsolation.NONE, ComputeIsolation.OWN, FaultIsolation.SHARED, BandwidthIsolation.SHARED
)
"""A compute instance beside others in one GPU instance: its multiprocessors are its own, and all else is shared."""
