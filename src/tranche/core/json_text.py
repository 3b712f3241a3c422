"""JSON that somebody else wrote. Whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """The data; ValueError for what is no JSON, is nested too deep to be read, or has a number that is none."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")
