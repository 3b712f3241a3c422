"""How programs share a device: the mechanisms, the administrator's policy, and the isolation.

The overheads of sharing come from others' measurements on single boards, rounded up; they err on the side of granting less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tranche.core.errors import UsageError
from tranche.core.quantity import MIB
from tranche.core.request import Isolation


class Sharing(StrEnum):
    """The mechanisms that share one device, strongest first.

    MEMORY_LIMITS: the driver limits the memory of a control group (r615 and later). MPS: NVIDIA's multi-process service, whose
    server limits the memory of each client. TIME_SLICING: programs take turns, and nothing limits their memory.
    """

    MEMORY_LIMITS = "memory-limits"
    MPS = "mps"
    TIME_SLICING = "time-slicing"

    @property
    def for_people(self) -> str:
        """The mechanism in words: `the driver's memory limits`."""
        return _WORDS[self]


_WORDS = {
    Sharing.MEMORY_LIMITS: "the driver's memory limits",
    Sharing.MPS: "MPS",
    Sharing.TIME_SLICING: "time-slicing",
}


@dataclass(frozen=True, slots=True)
class MachineSharing:
    """The mechanisms by which this machine can share devices: observed, never guessed.

    `refused` explains why a mechanism is not offered: `driver 580.65 is older than 615`. Tranche did not look for one that is
    neither offered nor refused. `mps_clients` is how many clients MPS serves on one GPU, 0 if unknown.
    """

    offered: frozenset[Sharing] = frozenset()
    refused: Mapping[Sharing, str] = field(default_factory=dict, hash=False)
    mps_clients: int = 0

    def why_not(self, sharing: Sharing) -> str:
        """Why the mechanism is not offered, in words; "" if it is."""
        if sharing in self.offered:
            return ""
        return self.refused.get(sharing) or "not offered here"


NO_SHARING = MachineSharing()
"""The means of an unprobed machine: none."""


class GpuPolicy(StrEnum):
    """How Tranche may share a GPU. Every policy allows it whole, and existing cuts stay until idle.

    AUTO: as each request needs it. MIG: only as slices, each for a single holder. SHARED: only as parts of the uncut GPU. OFF:
    not at all.
    """

    AUTO = "auto"
    MIG = "mig"
    SHARED = "shared"
    OFF = "off"


class Timeslice(StrEnum):
    """The driver's timeslice lengths. NVIDIA publishes no times for them."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @property
    def number(self) -> int:
        """The number that nvidia-smi takes."""
        return list(Timeslice).index(self)


def parse_timeslice(text: str) -> Timeslice:
    """Parse the length in `timeslice=short`; raises UsageError."""
    word = text.removeprefix("timeslice=")
    if word not in list(Timeslice):
        raise UsageError(
            f"'{text}' is not a time slice", hint=f"write it as timeslice=LENGTH, with one of {', '.join(Timeslice)}"
        )
    return Timeslice(word)


EVERY_GPU = ""
"""Stands for all GPUs without a time slice of their own."""


class MemoryIsolation(StrEnum):
    """OWN: no neighbour can take any of it. DRIVER: the driver refuses more than the grant.

    PROCESS: the driver limits each process separately, so several can together exceed the grant. NONE: first come, first served.
    """

    OWN = "own"
    DRIVER = "driver"
    PROCESS = "process"
    NONE = "none"


class ComputeIsolation(StrEnum):
    """OWN: exclusive multiprocessors. CEILING: at most what the request asked for. TURNS: programs with work share evenly."""

    OWN = "own"
    CEILING = "ceiling"
    TURNS = "turns"


class FaultIsolation(StrEnum):
    """OWN: a fault ends only its own program. SHARED: it also ends the neighbours' programs."""

    OWN = "own"
    SHARED = "shared"


class BandwidthIsolation(StrEnum):
    """OWN: a guaranteed share of the paths to memory. SHARED: neighbours slow one another down."""

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
    """The isolation of a grant in each dimension."""

    memory: MemoryIsolation
    compute: ComputeIsolation
    faults: FaultIsolation
    bandwidth: BandwidthIsolation

    @property
    def isolation(self) -> Isolation:
        """The overall isolation: HARD if everything is its own, SOFT if memory is enforced, NONE otherwise."""
        if self == OWN_WALLS:
            return Isolation.HARD
        return Isolation.SOFT if self.memory in _ENFORCED else Isolation.NONE

    @property
    def sentence(self) -> str:
        """The isolation for people: `hard isolation`, or all walls if not all are its own."""
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
"""A device for a single holder."""

INSIDE_WALLS = GrantIsolation(
    MemoryIsolation.NONE, ComputeIsolation.OWN, FaultIsolation.SHARED, BandwidthIsolation.SHARED
)
"""A compute instance beside others in one GPU instance: own multiprocessors, all else shared."""


MOST_MULTIPROCESSORS = 188
"""Of a GPU whose driver does not say: as many as any modelled board has (RTX PRO 6000)."""


def context_memory(multiprocessors: int = MOST_MULTIPROCESSORS) -> int:
    """The bytes that a program's CUDA context takes of its limit before the program allocates anything, rounded up.

    An H200 with driver 580.159 (2026-11-27) showed 514 MiB for its 132 multiprocessors by MPS, 145 MiB below a ceiling of 32, and
    527 MiB without MPS. NVIDIA's BlackScholes sample had 326 MiB, its kernels included, in an H100's 3g.40gb of 60. Requests
    for an amount of memory get this on top, because the driver and MPS count a context like everything else.
    """
    return (96 + 4 * multiprocessors) * MIB


RESERVED_MEMORY: Mapping[Sharing, int] = {Sharing.MEMORY_LIMITS: 0, Sharing.MPS: 80 * MIB, Sharing.TIME_SLICING: 0}
"""The bytes of a device that the mechanism itself takes. MPS servers had 30 MiB on a V100, 60 on an H100, 66 on an H200."""

FEWEST_CLIENTS = 16
"""How many clients MPS serves on a GPU if the driver's number is unknown: the smallest that NVIDIA documents."""

MEMORY_LIMIT = "TRANCHE_GPU_MEMORY_LIMIT"
"""The variable with the maximum bytes that a program may use of each device. Under MPS, CUDA shows the whole device."""

ALL_COMPUTE = 100
"""The greatest sum of the ceilings on one device, in percent, so that each can be reached."""


def capacity(sharing: Sharing, memory: int) -> int:
    """The bytes to give away in parts of a device with `memory` usable bytes."""
    return memory - RESERVED_MEMORY[sharing]
