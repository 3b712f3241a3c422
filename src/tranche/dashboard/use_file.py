"""How much the GPUs were used over days: one line per five minutes in a file of the user who runs the server.

The watch writes it between two looks at the machine, so only the next look waits for it. Two servers of one user write to the
same file; each knows its own lines and those that were there when it began.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tranche.dashboard.gauges_view import KEPT_DAYS, LINE_SECONDS
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import KEPT_GAUGES, GaugeSample, mean_of, sample_of

_KEPT_SECONDS = KEPT_DAYS * 86_400.0
_MOST = round(1.1 * _KEPT_SECONDS / LINE_SECONDS)
"""Lines after which the file is rewritten without the old ones."""
_LARGEST = 16 * 2**20  # bytes; a larger file is not ours


class UseFile:
    """One thread writes; any may read `samples`. It skips what cannot be read or written, and `trouble` says why."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[GaugeSample] = []
        self.trouble = ""
        self.samples: tuple[GaugeSample, ...] = ()
        """Oldest first; each has the means of the readings since the one before it."""
        try:
            self.samples = tuple(self._read())
        except FileNotFoundError:
            pass
        except OSError as error:
            self.trouble = f"{path} cannot be read: {error.strerror}"
        self._lines = len(self.samples)

    def take(self, taken: float, readings: Iterable[Document]) -> None:
        """Take what was read of the GPUs at that moment, in seconds since the epoch."""
        sample = sample_of(taken, readings)
        if sample.gpus:
            self._pending.append(sample)
        last = self.samples[-1].taken if self.samples else 0.0
        if not self._pending or 0 <= taken - last < LINE_SECONDS:
            return
        line = mean_of(self._pending, taken)
        self._pending = []
        # When the clock was set back, later samples go: the file is in order of time.
        self.samples = (*(each for each in self.samples if taken - _KEPT_SECONDS <= each.taken < taken), line)
        try:
            self._write(line, anew=taken < last or self._lines >= _MOST)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self._path} cannot be written: {error.strerror}"

    def _write(self, line: GaugeSample, *, anew: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not anew:
            _append(self._path, os.O_APPEND, [line])
            self._lines += 1
            return
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        _append(unfinished, os.O_TRUNC, self.samples)
        unfinished.replace(self._path)
        self._lines = len(self.samples)

    def _read(self) -> Iterator[GaugeSample]:
        """The samples in the file, in order of time; skips lines that were cut off or are not ours."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            written = file.read(_LARGEST)
        last = 0.0
        for text in written.splitlines():
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                sample = _sample(json.loads(text))
                if sample.taken > last:
                    last = sample.taken
                    yield sample


def _append(path: Path, how: int, samples: Iterable[GaugeSample]) -> None:
    lines = "".join(f"{json.dumps({'taken': each.taken, 'gpus': each.gpus})}\n" for each in samples)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | how, 0o600)
    with open(descriptor, "wb") as file:
        # Start on a new line, so that one cut off by a full disk ends here.
        file.write(lines.encode() if how == os.O_TRUNC else f"\n{lines}".encode())


def _sample(read: Mapping[str, Any]) -> GaugeSample:
    gpus = {str(uuid): {name: _number(said[name]) for name in KEPT_GAUGES} for uuid, said in read["gpus"].items()}
    taken = _number(read["taken"])
    if taken is None:
        raise ValueError
    return GaugeSample(taken, gpus)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError
    return float(value)
