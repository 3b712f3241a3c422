"""The newest that is known of a cluster, for the event loop: who listens hears what has changed since he heard last.

There is no queue for anybody. Whoever is slow is told later, and then all at once what has changed meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tranche.dashboard.cluster.snapshot import ClusterChange, ClusterSnapshot

_PACE_SECONDS = 0.25
_SAY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ClusterUpdate:
    """What a page is told. `change` is what is other than when it was told last; None where it has to look at all anew."""

    version: str
    snapshot: ClusterSnapshot
    trouble: str
    change: ClusterChange | None


class ClusterPublisher:
    """To be made and used on the event loop; `run` names this start of the server."""

    def __init__(self, pace: float = _PACE_SECONDS) -> None:
        self._pace = pace
        self._run = secrets.token_hex(4)
        self._snapshot: ClusterSnapshot | None = None
        self._trouble = ""
        self._reported = asyncio.Event()
        self._ending = False

    def take(self, snapshot: ClusterSnapshot | None, trouble: str = "") -> None:
        """This is the newest; None where nothing newer could be seen, because of the trouble."""
        self._snapshot = snapshot or self._snapshot
        self._trouble = trouble
        self._wake()

    def end(self) -> None:
        """End every stream of news."""
        self._ending = True
        self._wake()

    @property
    def newest(self) -> ClusterSnapshot | None:
        """What was seen last."""
        return self._snapshot

    @property
    def trouble(self) -> str:
        """Why nothing newer is known; "" where it is."""
        return self._trouble

    def version(self, snapshot: ClusterSnapshot) -> str:
        """The name of a snapshot, also after another start of this server."""
        return f"{self._run}.{snapshot.version}"

    async def news(self, known: str) -> AsyncGenerator[ClusterUpdate, None]:
        """What has changed since the version that is known, at most once in each pace; every two seconds that nothing has."""
        told: tuple[str, str] | None = None
        while not self._ending:
            if (snapshot := self._snapshot) is not None:
                change = snapshot.since(number) if (number := self._number(known)) is not None else None
                known = self.version(snapshot)
                told = (known, self._trouble)
                # Here a slow listener keeps us waiting, and the next change is what has become of it all.
                yield ClusterUpdate(known, snapshot, self._trouble, change)
                await asyncio.sleep(self._pace)
            await self._something_new(told)

    def _number(self, version: str) -> int | None:
        run, _, number = version.rpartition(".")
        return int(number) if run == self._run and number.isascii() and number.isdigit() else None

    async def _something_new(self, told: tuple[str, str] | None) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _SAY_SECONDS
        while not self._ending and (left := end - loop.time()) > 0:
            if self._snapshot is not None and (self.version(self._snapshot), self._trouble) != told:
                return
            try:
                await asyncio.wait_for(self._reported.wait(), left)
            except TimeoutError:
                return

    def _wake(self) -> None:
        # Whoever waits now is woken, whoever waits from now on waits for the next report.
        reported, self._reported = self._reported, asyncio.Event()
        reported.set()
