"""How long the tests may take: `make test` shows each kind once, `make test-long` sets TRANCHE_LONG and proves it at length."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

LONG: Final = bool(os.environ.get("TRANCHE_LONG"))
_SHORT_SHARE: Final = 5
_FEWEST: Final = 10


def cases(count: int, variable: str = "") -> int:
    """How many cases a test tries: all of them at length, else a fifth; as many as the variable says where that is set."""
    if variable and (asked := os.environ.get(variable)):
        return int(asked)
    return count if LONG else min(count, max(_FEWEST, count // _SHORT_SHARE))


def some_of(values: Iterable[Any], short: int) -> list[Any]:
    """The parameters of a test that shows the same of each: the first few, and the rest at length."""
    every = list(values)
    return [*every[:short], *(pytest.param(each, marks=pytest.mark.long) for each in every[short:])]


def rounds(count: int, short: int, variable: str) -> int:
    """How often a test on a cluster repeats what takes long: `count` times at length, else `short`, or as the variable says."""
    return int(os.environ.get(variable, count if LONG else short))
