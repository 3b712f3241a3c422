"""JSON data as the value of an annotation: compressed, and read back within bounds. Pure."""

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
"""Limit of the JSON: once decoded, one byte of it may take thirty in memory."""

_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""Half of a surrogate pair in JSON; alone it is text that UTF-8 cannot encode."""


def packed(data: Any, most: int = MOST_BYTES) -> str:
    """Equal data give equal text; ValueError if the data have more bytes than that, which no one would read."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True).encode()
    if len(text) > most:
        raise ValueError(f"it is too long: {len(text):,} bytes, more than {most:,}")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def unpacked(text: str, most: int = MOST_BYTES) -> Any:
    """What was packed; ValueError, OSError or EOFError if the text is nothing of the kind, or has more bytes than that."""
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
    """ValueError for text with half a surrogate pair, which would break every page that shows it."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
