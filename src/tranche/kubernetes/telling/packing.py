"""JSON data as the value of an annotation: compressed, and read again within bounds. Pure."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from typing import Any

from tranche.core.json_text import read_json

_LONGEST = 16 * 1024**2
_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""Half of a character in JSON; alone it is text that nobody can write as UTF-8."""


def packed(data: Any) -> str:
    """The same data are the same text."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def unpacked(text: str) -> Any:
    """What was packed; ValueError, OSError or EOFError where it is nothing of the kind."""
    with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(text, validate=True))) as file:
        found = file.read(_LONGEST + 1)
    if len(found) > _LONGEST:
        raise ValueError("it is too long")
    written = found.decode()
    data = read_json(written)
    if _HALF.search(written):
        _refuse_halves(data)
    return data


def _refuse_halves(data: Any) -> None:
    """ValueError for text with half a character, which would break every page that shows it."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
