"""Checks a view from outside: every value has its type and is within what any machine has.

A view read from text may hold anything. Tranche shows, adds up and decides by checked views only, so later code never meets a
moment beyond all calendars, a placement of billions of slices, or negative memory.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tranche.core.allocation import NodeView
from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import UsageError
from tranche.core.grid import Placement

_LARGEST = 2**53 - 1
"""The greatest whole number in fields without a range of their own: every JSON reader takes it exactly."""
_BYTES = (0, 2**50)
_SLICES = (0, 32)
_PERCENT = (0, 100)
_RANGES: Mapping[str, tuple[int, int]] = {
    "index": (0, 4095),
    "numa_node": (-1, _LARGEST),  # on Linux, -1 means none
    "uid": (-1, 2**32 - 1),  # -1 means unknown
    "asker": (-1, -1),  # a machine's quotas are for its users, not for its pods
    **dict.fromkeys(("memory", "memory_free", "memory_reserved", "amount", "limit", "other_memory"), _BYTES),
    **dict.fromkeys(("memory_slices", "slices", "start", "starts", "size"), _SLICES),
    "compute": _PERCENT,
}
"""The least and greatest number of a field, by the field's name."""
_LAST_MOMENT = 253_402_214_400.0
"""A day before the year 10000, where calendars end; seconds since the epoch."""

_MANY = 4096
_PROCESSES = 65_536
_COUNTS: Mapping[str, int] = {
    **dict.fromkeys(("gpus", "profiles", "compute_profiles", "starts", "instances", "compute_instances"), 64),
    **dict.fromkeys(("processes", "stray_processes", "others"), _PROCESSES),
    "grants": 256,
    **dict.fromkeys(("quotas", "groups", "recent"), 0),
}
"""The most entries of a field, by its name; `_MANY` for others."""
_LONGEST = 4096
_LONGEST_MODEL = 256


def credible(view: NodeView) -> NodeView:
    """The view itself; raises UsageError with the field that cannot be true."""
    _Judge().judge(view, NodeView, "view")
    _once("GPU", (gpu.uuid for gpu in view.node))
    _once("index", (gpu.index for gpu in view.node))
    _once("allocation", (each.id for each in view.allocations))
    for gpu in view.node:
        if len(gpu.name) > _LONGEST_MODEL:
            raise _wrong("name")
    return view


class _Judge:
    """Checks one view. Looks at equal profiles only once."""

    def __init__(self) -> None:
        self._judged: set[GpuInstanceProfile] = set()

    def judge(self, value: Any, hint: Any, name: str) -> None:
        """Raise UsageError unless the value fits the type hint and the bounds of the named field."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            self._one_of(value, arguments, name)
        elif origin is not None:
            self._several(value, origin, arguments, name)
        elif (fields := _fields(hint)) is not None:
            self._record(value, hint, fields, name)
        elif not _plain(value, hint, name):
            raise _wrong(name)

    def _one_of(self, value: Any, arguments: tuple[Any, ...], name: str) -> None:
        if value is None and NoneType in arguments:
            return
        for each in arguments:
            if each is not NoneType and isinstance(value, get_origin(each) or each):
                self.judge(value, each, name)
                return
        raise _wrong(name)

    def _several(self, value: Any, origin: Any, arguments: tuple[Any, ...], name: str) -> None:
        if not isinstance(value, origin) or len(value) > _COUNTS.get(name, _MANY):
            raise _wrong(name)
        if isinstance(value, Mapping):
            for key, each in value.items():
                self.judge(key, arguments[0], name)
                self.judge(each, arguments[1], name)
        elif origin is tuple and arguments[1:] != (...,):
            if len(value) != len(arguments):
                raise _wrong(name)
            for each, hint in zip(value, arguments, strict=True):
                self.judge(each, hint, name)
        else:
            for each in value:
                self.judge(each, arguments[0], name)

    def _record(self, value: Any, cls: Any, fields: Collection[tuple[str, Any]], name: str) -> None:
        if type(value) is not cls:
            raise _wrong(name)
        if cls is GpuInstanceProfile:
            if value in self._judged:
                return
            self._judged.add(value)
        for field, hint in fields:
            self.judge(getattr(value, field), hint, field)
        if cls is Placement and value.start + value.size > _SLICES[1]:
            raise _wrong("placement")


def _plain(value: Any, hint: Any, name: str) -> bool:
    if issubclass(hint, Enum):
        return isinstance(value, hint)
    if hint is int:
        low, high = _RANGES.get(name, (0, _LARGEST))
        return type(value) is int and low <= value <= high
    if hint is float:
        # NaN compares false with everything.
        return type(value) in (int, float) and 0 <= value <= _LAST_MOMENT
    if hint is Fraction:
        return isinstance(value, Fraction) and 0 < value <= 1 and value.denominator <= _LARGEST
    if hint is str:
        return isinstance(value, str) and len(value) <= _LONGEST
    return hint is bool and type(value) is bool


@cache
def _fields(cls: Any) -> Collection[tuple[str, Any]] | None:
    """Each field of a record with its type hint; None if `cls` is no record."""
    if dataclasses.is_dataclass(cls):
        names = [each.name for each in dataclasses.fields(cls)]
    elif hasattr(cls, "_fields"):
        names = list(cls._fields)
    else:
        return None
    hints = get_type_hints(cls, localns={"Fraction": Fraction})
    return [(each, hints[each]) for each in names]


def _once(what: str, names: Iterable[object]) -> None:
    if any(count > 1 for count in Counter(names).values()):
        raise UsageError(f"one {what} appears twice")


def _wrong(name: str) -> UsageError:
    """Leaves out the offending value, which may be arbitrarily long."""
    return UsageError(f"no machine can have this {name}")
