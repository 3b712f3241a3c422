"""The servers of MPS daemons, which end under the programs of a share: the daemon lives on, and keeps limits for the next.

A server that has ended stays a child of its daemon until that takes note of it, and of one that is stopped for good.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Sequence
from contextlib import suppress

from tranche.node.state.session import children_pids, process_start_time


class ServerEndWatch:
    """Watches the servers of daemons, given by the daemons' pids, beside whatever else `poll` waits for."""

    def __init__(self, daemons: Sequence[int], poll: select.poll) -> None:
        self._daemons = daemons
        self._poll = poll
        self._servers: dict[int, int] = {}  # pids by the descriptors that can be read from once they have ended
        self._seen: set[tuple[int, int]] = set()  # pids with start times, also of those that have ended

    def look(self) -> None:
        """Watch the servers that have been started since the last look as well."""
        for pid in {pid for daemon in self._daemons for pid in children_pids(daemon)}:
            server = pid, process_start_time(pid, ended=True)
            if server in self._seen:
                continue
            with suppress(OSError):  # it has ended already, and its daemon knows
                descriptor = os.pidfd_open(pid)
                self._seen.add(server)
                self._servers[descriptor] = pid
                self._poll.register(descriptor, select.POLLIN)

    def take(self, ready: Collection[int]) -> tuple[int, ...]:
        """The pids of the servers that have ended, of the descriptors that can be read from; each is named once."""
        gone = [descriptor for descriptor in ready if descriptor in self._servers]
        for descriptor in gone:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        return tuple(sorted(self._servers.pop(descriptor) for descriptor in gone))

    def close(self) -> None:
        """Watch no more."""
        self.take(tuple(self._servers))
