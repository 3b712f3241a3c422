"""What an MPS daemon says of the limits of its clients, compared word for word with what it said when Tranche set them.

Whoever reaches the daemon's socket can set them. From 1 GiB on a daemon prints whole GiB, and nothing reads more of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tranche.hardware.mps_answers import read_limit, read_percentage
from tranche.hardware.mps_environment import limit_text

_ALL_COMPUTE: Final = 100
"""In percent: what a daemon gives every client until somebody says otherwise, which Tranche never does."""
TO_COME: Final = ""
"""In the place of a server's process id: servers that start later."""


class ReportedLimit(NamedTuple):
    """What is said of the clients of one server, or of servers to come, each answer as one line.

    A device has a limit of memory by its number and another by its UUID, and the one that was set last counts.
    """

    by_number: str
    by_uuid: str
    compute: str


def said_limit(by_number: str, by_uuid: str, compute: str) -> ReportedLimit:
    """What is said, of the daemon's answers."""
    return ReportedLimit(*(" ".join(answer.split()) for answer in (by_number, by_uuid, compute)))


@dataclass(frozen=True, slots=True)
class LimitReport:
    """What a daemon says, by the server's process id, and of servers to come."""

    servers: Mapping[str, ReportedLimit]

    def encoded(self) -> str:
        """The same as text."""
        return json.dumps(self.servers)

    def of(self, servers: Collection[int]) -> LimitReport:
        """What is said of servers to come, and of these: of one that has ended meanwhile a daemon says that it is not found."""
        heeded = {TO_COME, *map(str, servers)}
        return LimitReport({server: said for server, said in self.servers.items() if server in heeded})

    def difference(self, before: str, memory: int) -> str:
        """What is said otherwise than in that text of before, in words; "" when nothing is.

        A server that has started since has the limits of servers to come, `memory` bytes, and no driver was seen to say so of it:
        it may name no limit, or 0.
        """
        known = {server: ReportedLimit(*said) for server, said in (json.loads(before) if before else {}).items()}
        for server, now in self.servers.items():
            was = known.get(server)
            if why := _unlike(now, memory, to_come=server == TO_COME) if was is None else _changed(now, was):
                return why
        return ""


def _changed(now: ReportedLimit, was: ReportedLimit) -> str:
    for what, said, before in zip(("limit of memory", "limit of memory", "ceiling of compute"), now, was, strict=True):
        if said != before:
            return f"the {what} is {said or 'none'}, and was {before or 'none'}"
    return ""


def _unlike(said: ReportedLimit, memory: int, *, to_come: bool) -> str:
    """What is not as Tranche sets it, by the device's number; what drivers say of another name that was never set differs."""
    limit = read_limit(said.by_number)
    if limit is not None and not limit.agrees(memory) and (limit.count or to_come):
        return f"the limit of memory is {said.by_number}, and was set to {limit_text(memory)}"
    share = read_percentage(said.compute)
    if share is not None and 0 < share < _ALL_COMPUTE:
        return f"the ceiling of compute is {share:g} %, and none was set"
    return ""
