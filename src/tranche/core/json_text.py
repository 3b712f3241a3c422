"""Reading JSON from outside. Every fault is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Decode JSON; raises ValueError for malformed text, nesting too deep to read, and NaN or infinity."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")
