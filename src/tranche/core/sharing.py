"""How several programs use one device at once, and which ways this machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
