"""How several programs use one device at once: by which mechanisms, which an administrator allows, and how isolated they are.

What sharing costs beside what programs ask for are measurements of others on single boards, rounded up; they err on the side of
giving away less.
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
        """The mechanism in words: `memory limits of the driver`."""
        return _WORDS[self]


_WORDS = {
    Sharing.MEMORY_LIMITS: "memory limits of the driver",
    Sharing.MPS: "MPS",
    Sharing.TIME_SLICING: "time-slicing",
}


@dataclass(frozen=True, slots=True)
class MachineSharing:
    """What this machine can share devices by: an observation, never a guess.

    `refused` says in words why a mechanism is not offered: `driver 580.65 is older than 615`. One that is neither offered nor
    refused was not looked for. `mps_clients` is how many clients MPS serves on one GPU, 0 when that is not known.
    """

    offered: frozenset[Sharing] = frozenset()
    refused: Mapping[Sharing, str] = field(default_factory=dict, hash=False)
    mps_clients: int = 0

    def why_not(self, sharing: Sharing) -> str:
        """Why the mechanism is not offered, in words; "" when it is."""
        if sharing in self.offered:
            return ""
        return self.refused.get(sharing) or "not offered here"


NO_SHARING = MachineSharing()
"""The means of a machine that was not asked: none."""


class GpuPolicy(StrEnum):
    """How Tranche may share a GPU; a whole one is given in any case, and what is there already stays until it is idle.

    AUTO: as each request needs it. MIG: in slices alone, each for one holder. SHARED: in parts of the uncut GPU alone.
    OFF: not at all.
    """

    AUTO = "auto"
    MIG = "mig"
    SHARED = "shared"
    OFF = "off"


class Timeslice(StrEnum):
    """The driver's lengths. NVIDIA publishes no times for them."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @property
    def number(self) -> int:
        """The number by which nvidia-smi takes it."""
        return list(Timeslice).index(self)


def parse_timeslice(text: str) -> Timeslice:
    """The length of `timeslice=short`; UsageError for anything else."""
    word = text.removeprefix("timeslice=")
    if word not in list(Timeslice):
        raise UsageError(
            f"'{text}' is no time slice", hint=f"write it as timeslice=LENGTH, with one of {', '.join(Timeslice)}"
        )
    return Timeslice(word)


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


CONTEXT_MEMORY: Mapping[Sharing, int] = {
    Sharing.MEMORY_LIMITS: 512 * MIB,
    Sharing.MPS: 326 * MIB,
    Sharing.TIME_SLICING: 512 * MIB,
}
"""In bytes: what a program's CUDA context takes of its own limit before the program has asked for anything.

An MPS client of an H100's 3g.40gb that ran NVIDIA's BlackScholes sample was seen with 326 MiB. A context without MPS takes about
500 MiB on an H100; no measurement on other boards is known. Whoever asks for an amount of memory gets this on top, because the
driver and MPS count a context like everything else.
"""

RESERVED_MEMORY: Mapping[Sharing, int] = {Sharing.MEMORY_LIMITS: 0, Sharing.MPS: 64 * MIB, Sharing.TIME_SLICING: 0}
"""In bytes: what the mechanism itself takes of a device. An MPS server was seen with 30 MiB on a V100 and with 60 on an H100."""

FEWEST_CLIENTS = 16
"""How many clients MPS serves on a GPU where the driver's number is not known: the smallest that NVIDIA documents."""

ALL_COMPUTE = 100
"""In percent: what the ceilings on one device add up to at most, so that each of them can be reached."""


def capacity(sharing: Sharing, memory: int) -> int:
    """The bytes that can be given away in parts of a device of which programs can have so much `memory`."""
    return memory - RESERVED_MEMORY[sharing]
