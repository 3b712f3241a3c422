"""JSON data as the value of an annotation: compressed, and read again within bounds. Pure."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import zlib
from typing import Any

from tranche.core.json_text import read_json

MOST_BYTES = 4 * 1024**2
"""Of JSON: read, a byte of it may take thirty of memory."""

_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""Half of a character in JSON; alone it is text that nobody can write as UTF-8."""


def packed(data: Any, most: int = MOST_BYTES) -> str:
    """The same data are the same text; ValueError where the data are of more than so many bytes, which nobody would read."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True).encode()
    if len(text) > most:
        raise ValueError(f"it is too long: {len(text):,} bytes of {most:,}")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def unpacked(text: str, most: int = MOST_BYTES) -> Any:
    """What was packed; ValueError, OSError or EOFError where it is nothing of the kind, or of more than so many bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(text, validate=True))) as file:
            found = file.read(most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) > most:
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
