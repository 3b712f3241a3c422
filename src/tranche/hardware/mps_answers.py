"""Reads, with tolerance, what nvidia-cuda-mps-control answers to commands of version 2 of its protocol.

The texts differ between drivers, and no exit code proves success. So each reader accepts every spelling that is documented or was
seen, and treats an unreadable answer as no success.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MIB: Final = 2**20
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?\s*$", re.IGNORECASE)
_SUCCESS: Final = ("0", "CUDA_SUCCESS", "SUCCESS")


class ServerStatus(StrEnum):
    """What a daemon says of its server. FAULT: a client's fault ended all; it lasts until every client that saw it has ended."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class PrintedLimit:
    """A limit as the daemon prints it: `count` units of `unit` bytes, rounded down. From 1 GiB on it prints whole GiB."""

    count: int
    unit: int

    def agrees(self, memory: int) -> bool:
        """Whether a daemon with a limit of `memory` bytes may print this."""
        return memory // self.unit == self.count


def read_numbers(answer: str) -> tuple[int, ...]:
    """Process ids, one or several per line; words such as `No server` mean none."""
    return tuple(int(word) for word in answer.split() if word.isdecimal())


def read_status(answer: str) -> ServerStatus:
    """A server's status, ignoring blanks around it."""
    word = answer.strip().upper()
    return ServerStatus(word) if word in list(ServerStatus) else ServerStatus.UNKNOWN


def read_limit(answer: str) -> PrintedLimit | None:
    """The limit on the last line; None if it names none."""
    lines = answer.strip().splitlines()
    found = _SIZE.search(lines[-1]) if lines else None
    return None if found is None else PrintedLimit(int(found[1]), _UNITS[found[2].upper()])


def read_percentage(answer: str) -> float | None:
    """The percentage of a device's compute that clients may use, on the last line; None if it names none."""
    words = answer.split()
    try:
        return float(words[-1].removesuffix("%")) if words else None
    except ValueError:
        return None


def read_terminated(answer: str) -> bool:
    """Whether the answer says that a client was terminated: 0, or the name of CUDA's success."""
    words = answer.split()
    return bool(words) and words[-1].upper() in _SUCCESS
