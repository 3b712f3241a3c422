"""The servers of MPS daemons, which end under the programs of a share: the daemon lives on, and keeps limits for the next."""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Sequence
from contextlib import suppress

from tranche.node.session import children_pids


class ServerEnds:
    """Watches the servers of daemons, given by the daemons' pids, beside whatever else `poll` waits for."""

    def __init__(self, daemons: Sequence[int], poll: select.poll) -> None:
        self._daemons = daemons
        self._poll = poll
        self._servers: dict[int, int] = {}  # pids by the descriptors that can be read from once they have ended

    def look(self) -> None:
        """Watch the servers that have been started since the last look as well."""
        for pid in {pid for daemon in self._daemons for pid in children_pids(daemon)} - set(self._servers.values()):
            with suppress(OSError):  # it has ended already
                descriptor = os.pidfd_open(pid)
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
