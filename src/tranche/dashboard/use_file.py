"""How much the GPUs were used over days: a line for every five minutes in a file of the user who runs the server.

The watch writes it, between two looks at the machine: nothing waits for it but the next look. Two servers of one user write into
one file, and each knows what it has written itself and what was there when it began.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tranche.dashboard.reading_log import KEPT_DAYS, LINE_SECONDS
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import KEPT_GAUGES, GaugeSample, mean_of, sample_of

_KEPT_SECONDS = KEPT_DAYS * 86_400.0
_MOST = round(1.1 * _KEPT_SECONDS / LINE_SECONDS)
"""Lines, after which the file is written anew without the old ones."""
_LARGEST = 16 * 2**20  # bytes; more is none of ours


class UseFile:
    """One thread writes; `samples` may be read by any. What cannot be read or written is left out, and `trouble` says why."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[GaugeSample] = []
        self.trouble = ""
        self.samples: tuple[GaugeSample, ...] = ()
        """Oldest first; each has the means of what was read since the one before it."""
        try:
            self.samples = tuple(self._read())
        except FileNotFoundError:
            pass
        except OSError as error:
            self.trouble = f"{path} cannot be read: {error.strerror}"
        self._lines = len(self.samples)

    def take(self, taken: float, readings: Iterable[Document]) -> None:
        """What was read of the GPUs at that moment, in seconds since the epoch."""
        sample = sample_of(taken, readings)
        if sample.gpus:
            self._pending.append(sample)
        last = self.samples[-1].taken if self.samples else 0.0
        if not self._pending or 0 <= taken - last < LINE_SECONDS:
            return
        line = mean_of(self._pending, taken)
        self._pending = []
        # A clock that was set back begins anew: the file is in the order of time.
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
        """What is in the file, in the order of time; a line that was cut off, or that is none of ours, is left out."""
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
        # A line that a full disk has cut off ends here, and not in the next one.
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
