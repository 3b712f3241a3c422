"""How long the tests may take: `make test` shows each kind once, `make test-long` sets TRANCHE_LONG and proves it at length."""

from __future__ import annotations

import os
from typing import Final

LONG: Final = bool(os.environ.get("TRANCHE_LONG"))
_SHORT_SHARE: Final = 5
_FEWEST: Final = 10


def cases(count: int, variable: str = "") -> int:
    """How many cases a test tries: all of them at length, else a fifth; as many as the variable says where that is set."""
    if variable and (asked := os.environ.get(variable)):
        return int(asked)
    return count if LONG else min(count, max(_FEWEST, count // _SHORT_SHARE))
