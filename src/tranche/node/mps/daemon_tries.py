"""When ending an MPS daemon failed: it is tried again after a while, not each time that somebody looks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from tranche.node.mps.mps_records import DaemonRecord, name_of

PAUSE_SECONDS: Final = 60.0
"""For so long nobody tries again."""
_SUFFIX: Final = ".failed"


class DaemonFailureLog:
    """The failures noted beside the daemons' records, each by a file's time. `now` is seconds since the epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def failed_lately(self, record: DaemonRecord, now: float) -> bool:
        """Whether to leave the daemon alone for now. A time to come, of a clock that was set back, does not count."""
        try:
            return 0.0 <= now - self._path(record).stat().st_mtime < PAUSE_SECONDS
        except OSError:
            return False

    def note(self, record: DaemonRecord, now: float) -> None:
        """Note a failure; without room for that it is tried again sooner."""
        path = self._path(record)
        with suppress(OSError):
            path.touch()
            os.utime(path, (now, now))

    def clear(self, record: DaemonRecord) -> None:
        """Forget the failures of a daemon that has ended."""
        with suppress(OSError):
            self._path(record).unlink(missing_ok=True)

    def _path(self, record: DaemonRecord) -> Path:
        return self._folder / f"{name_of(record.device_uuid)}{_SUFFIX}"
