"""The catalogue of boards, as its data files have it: what each GPU product is and can be cut into.

`boards.json` holds the boards with MIG, `plain_boards.json` those without. A value that no source shows is null; a value
that was inferred from the board's family is present and named in `unverified`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Model = Mapping[str, Any]

MIG_BOARDS = Path(__file__).with_name("boards.json")
PLAIN_BOARDS = Path(__file__).with_name("plain_boards.json")


@cache
def _mig_boards() -> Model:
    boards: Model = json.loads(MIG_BOARDS.read_text())
    return boards


def mig_models() -> tuple[Model, ...]:
    """Every board with MIG, in the file's order."""
    return tuple(_mig_boards()["models"])


def families() -> tuple[Model, ...]:
    """Every family of boards with the rules that all its boards share, oldest first; a board names its family in `arch`."""
    return tuple(_mig_boards()["families"])


@cache
def plain_models() -> tuple[Model, ...]:
    """Every board without MIG, in the file's order."""
    return tuple(json.loads(PLAIN_BOARDS.read_text())["models"])
