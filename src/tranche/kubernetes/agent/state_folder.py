"""One agent for each state folder: a second one serves nothing, says why, and takes over when the first has ended."""

from __future__ import annotations

import asyncio
import logging
import os

from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue
from tranche.node.locks.locks import FileLock, leads_to
from tranche.node.state.session import StateFolder
from tranche.node.state.state_file import open_state_file, read_state_file

_PERIOD_SECONDS = 0.5
_STAND_BY_SECONDS = 0.05

_log = logging.getLogger(__name__)


class StateFolderWatch:
    """A component: claims the folder for this agent alone, and checks that it stays in place and writable.

    Create it while the agent's ledger is open.
    """

    name = "state-folder"

    def __init__(self, places: StateFolder, *, stand_by: bool = False) -> None:
        """With `stand_by` it is ready while another agent has the folder, so that an upgrade then ends the other one."""
        self.lost = asyncio.Event()
        """Set when the folder was deleted or replaced: other processes no longer see the files that this one has open there."""
        self.problem: LatestValue[str] = LatestValue()
        """Why nothing can be written there; "" when it can."""
        self._places = places
        self._stand_by = stand_by
        self._another = False
        self._lock: FileLock | None = None
        # Kept open, so that no other file can get the same inode number.
        self._ledger = os.open(places.ledger, os.O_PATH | os.O_CLOEXEC)
        self._trouble = "the agent has not locked the state folder yet"

    def ready(self) -> Readiness:
        """Ready while this agent alone has the folder, and can write there; or stands by."""
        return Readiness(not self._trouble or (self._stand_by and self._another), self._trouble)

    async def take(self) -> None:
        """Return once the folder is this agent's. The lock is released when the process ends, however it ends."""
        logged = ""
        while (lock := self._try_to_lock()) is None:
            if self._trouble != logged:
                _log.warning("waiting for the state folder", extra={"error": self._trouble})
                logged = self._trouble
            # While no agent serves, no pod with a claim starts, and the kubelet may not ask again for more than a minute.
            await asyncio.sleep(_STAND_BY_SECONDS if self._stand_by else _PERIOD_SECONDS)
        lock.path.write_text(f"{os.getpid()}\n")
        self._lock, self._trouble = lock, ""
        self.problem.publish("")

    async def run(self) -> None:
        """Watch the folder, once taken, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            if self._lock is None:
                continue
            if not (self._lock.in_place and leads_to(self._places.ledger, self._ledger)):
                self._trouble = f"the state folder {self._places.state_dir} was deleted or replaced while the agent ran"
                self.lost.set()
                return
            self._trouble = self._why_not_writable()
            self.problem.publish(self._trouble)

    def _try_to_lock(self) -> FileLock | None:
        """The lock, or None with the reason in `_trouble`."""
        self._another = False
        try:
            lock = FileLock(self._places.agent_lock, wait=False)
        except BlockingIOError:
            self._another = True
            self._trouble = (
                f"another agent{self._named()} already serves this machine from the state folder {self._places.state_dir}; "
                "this agent waits until the other one exits"
            )
            return None
        except TrancheError as error:
            self._trouble = str(error)
            return None
        if lock.in_place:
            return lock
        lock.release()  # deleted between opening and locking
        return None

    def _named(self) -> str:
        try:
            return f" (process {int(read_state_file(self._places.agent_lock))})"
        except (OSError, ValueError, TrancheError):
            return ""

    def _why_not_writable(self) -> str:
        probe = self._places.state_dir / "locks" / ".probe"
        try:
            with open(open_state_file(probe, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.write(b"x")
            probe.unlink()
        except (OSError, TrancheError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            return f"the state folder {self._places.state_dir} cannot be written: {why}"
        return ""
