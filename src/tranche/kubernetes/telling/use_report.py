"""The use of a node's GPUs, now and over days, as the node's agent reports it in an annotation of its lease. Pure.

Lines of five minutes reach back six hours, and lines of half an hour seven days: for eight busy GPUs, 12 to 26 kB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.quantity import MIB
from tranche.documents.blocks import Document
from tranche.documents.gauge_samples import KEPT_GAUGES, GaugeSample, mean_of
from tranche.kubernetes.telling.packing import packed, unpacked

READ_SECONDS = 60.0
"""How often an agent reads the gauges."""
LINE_SECONDS = 300.0
LINES_KEPT_HOURS = 6
LONG_LINE_SECONDS = 1800.0
KEPT_DAYS = 7
_MOST_LINES = LINES_KEPT_HOURS * 12 + 1
_MOST_LONG_LINES = KEPT_DAYS * 48 + 1
MOST_USE_BYTES = 28 * 1024
"""With view and layouts, this stays below Kubernetes' limit for an object's annotations."""

_FORMAT = 1
_UNITS = (64.0 * MIB, 0.01, 2.0, 1.0)
"""The unit of each of KEPT_GAUGES: a chart of 60 pixels shows no finer steps."""
_MOST_JSON_BYTES = 512 * 1024
_MOST_GPUS = 64
_KEPT = 8


@dataclass(frozen=True, slots=True)
class UseReport:
    """`readings` are documents of GPUs and their slices, read at `taken`, in seconds since the epoch; 0 if nothing was read.

    `lines` are means of five minutes and `long_lines` of half an hour, oldest first.
    """

    taken: float = 0.0
    readings: tuple[Document, ...] = ()
    lines: tuple[GaugeSample, ...] = ()
    long_lines: tuple[GaugeSample, ...] = ()

    def with_line(self, line: GaugeSample) -> UseReport:
        """Adds a line and drops the oldest. A clock that was set back drops the later lines.

        `over` leaves out lines that are too old: a clock that was ahead once must not push out good lines.
        """
        cell = line.taken // LONG_LINE_SECONDS
        lines = (*(each for each in self.lines if each.taken < line.taken), line)
        in_cell = [each for each in lines if each.taken // LONG_LINE_SECONDS == cell]
        before = (each for each in self.long_lines if each.taken < cell * LONG_LINE_SECONDS)
        long_lines = (*before, mean_of(in_cell, line.taken))
        return replace(self, lines=lines[-_MOST_LINES:], long_lines=long_lines[-_MOST_LONG_LINES:])

    def over(self, hours: int, until: float) -> tuple[Sequence[GaugeSample], float]:
        """The lines of so many hours until then, and the seconds that each covers."""
        chosen, every = (
            (self.lines, LINE_SECONDS) if hours <= LINES_KEPT_HOURS else (self.long_lines, LONG_LINE_SECONDS)
        )
        return [each for each in chosen if until - hours * 3600 <= each.taken <= until], every


NO_USE = UseReport()
"""Nothing is known."""


def use_to_text(use: UseReport) -> str:
    """The annotation's text, without the oldest lines if they are too long."""
    while (text := _text_of(use)) is None and (use.lines or use.long_lines):
        # The lines of the last hours are the smaller part, and go once no others are left.
        use = replace(
            use,
            lines=use.lines if use.long_lines else _newest(use.lines),
            long_lines=_newest(use.long_lines),
        )
    return text if text is not None else packed(_to_data(NO_USE))


def _text_of(use: UseReport) -> str | None:
    """None if it is too long."""
    try:
        text = packed(_to_data(use), _MOST_JSON_BYTES)
    except ValueError:
        return None
    return text if len(text) <= MOST_USE_BYTES else None


def _newest(lines: tuple[GaugeSample, ...]) -> tuple[GaugeSample, ...]:
    """Drops the oldest eighth, at least one line."""
    return lines[-(-len(lines) // 8) :]


def use_from_text(text: str) -> UseReport:
    """Parses the annotation; UsageError if it is unreadable, cannot be true, or has another format."""
    found = _read(text)
    if isinstance(found, str):
        raise UsageError(f"cannot read an agent's GPU use report: {found}")
    return found


@lru_cache(_KEPT)
def _read(text: str) -> UseReport | str:
    """The report, or why it is unreadable."""
    try:
        data = unpacked(text, _MOST_JSON_BYTES)
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']} is unknown")
        uuids = [_text(each) for each in data["gpus"][:_MOST_GPUS]]
        readings = tuple(map(_reading, data["readings"][:_MOST_GPUS]))
        lines = _lines(uuids, data["lines"], _MOST_LINES), _lines(uuids, data["longLines"], _MOST_LONG_LINES)
        return UseReport(_number(data["taken"]) or 0.0, readings, *lines)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, EOFError, RecursionError) as error:
        return str(error)


def _to_data(use: UseReport) -> dict[str, Any]:
    uuids = sorted({uuid for line in (*use.lines, *use.long_lines) for uuid in line.gpus})
    return {
        "format": _FORMAT,
        "taken": round(use.taken, 3),
        "readings": use.readings,
        "gpus": uuids,
        "lines": _lines_data(use.lines, uuids),
        "longLines": _lines_data(use.long_lines, uuids),
    }


def _lines_data(lines: Sequence[GaugeSample], uuids: Sequence[str]) -> dict[str, Any]:
    """A column for each gauge of each GPU: values that change little compress well side by side."""
    columns = {
        name: [[_counted(line.gpus.get(uuid, {}).get(name), unit) for line in lines] for uuid in uuids]
        for name, unit in zip(KEPT_GAUGES, _UNITS, strict=True)
    }
    return {"taken": [round(each.taken) for each in lines], **columns}


def _counted(value: float | None, unit: float) -> int | None:
    return None if value is None else round(value / unit)


def _lines(uuids: Sequence[str], data: dict[str, Any], most: int) -> tuple[GaugeSample, ...]:
    taken = [_number(each) or 0.0 for each in data["taken"][:most]]
    if any(later <= earlier for earlier, later in pairwise(taken)):
        raise ValueError("its lines are not in chronological order")
    gpus: list[dict[str, Document]] = [{} for _ in taken]
    for place, uuid in enumerate(uuids):
        columns = [
            [_measured(count, unit) for count in data[name][place][:most]]
            for name, unit in zip(KEPT_GAUGES, _UNITS, strict=True)
        ]
        for line, *gauges in zip(gpus, *columns, strict=True):
            if any(each is not None for each in gauges):
                line[uuid] = dict(zip(KEPT_GAUGES, gauges, strict=True))
    return tuple(map(GaugeSample, taken, gpus))


def _measured(count: object, unit: float) -> float | None:
    value = _number(count)
    return None if value is None else round(value * unit, 3)


def _reading(data: dict[str, Any]) -> Document:
    slices = [
        {
            "gpuInstanceId": int(_number(each["gpuInstanceId"]) or 0),
            "memoryUsedBytes": _number(each["memoryUsedBytes"]),
            "busy": _number(each["busy"]),
            "placement": {name: _number(each["placement"][name]) for name in ("start", "size")},
        }
        for each in data["slices"][:_MOST_GPUS]
    ]
    return {"gpuUUID": _text(data["gpuUUID"]), **{name: _number(data[name]) for name in KEPT_GAUGES}, "slices": slices}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a GPU has no name")
    return value


def _number(value: object) -> float | None:
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (0 <= value < 2**63 and math.isfinite(value))
    ):
        raise ValueError("a gauge is not a number")
    return value
