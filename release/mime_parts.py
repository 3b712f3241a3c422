"""The parts of MIME user data, read as strictly as a machine that boots must be able to rely on."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOUNDARY = re.compile(r'boundary="?(?P<boundary>[^";\n]+)"?\s*$')
_HEADER = re.compile(r"(?P<name>[A-Za-z-]+):\s*(?P<value>.+)")


class MimeBroken(Exception):
    """The text is no MIME document whose every part can be found."""


@dataclass(frozen=True, slots=True)
class MimePart:
    """One part: its media type without parameters, and its text."""

    type: str
    text: str


def mime_parts(text: str) -> tuple[MimePart, ...]:
    """Every part, in order.

    Raises:
        MimeBroken: headers, boundary or end are not as cloud-init, nodeadm and Karpenter find them.
    """
    head, _, body = text.partition("\n\n")
    headers = _headers(head)
    if headers.get("mime-version") != "1.0":
        raise MimeBroken("the first header is not 'MIME-Version: 1.0'")
    kind = headers.get("content-type", "")
    boundary = _BOUNDARY.search(kind)
    if not kind.startswith("multipart/mixed") or boundary is None:
        raise MimeBroken(f"the document is not multipart/mixed with a boundary, but '{kind}'")
    line = f"--{boundary['boundary']}"
    lines = body.splitlines()
    if not lines or lines[-1] != f"{line}--":
        raise MimeBroken(f"the last line is not '{line}--': what comes before it may be cut off")
    if lines[0] != line:
        raise MimeBroken(f"the first part does not begin with '{line}'")
    parts = "\n".join(lines[1:-1]).split(f"\n{line}\n")
    return tuple(_part(part) for part in parts)


def _part(text: str) -> MimePart:
    head, empty, body = text.partition("\n\n")
    kind = _headers(head).get("content-type", "").partition(";")[0].strip()
    if not kind or not empty:
        raise MimeBroken(f"a part has no Content-Type and empty line before its text: {head.splitlines()[:1]}")
    return MimePart(kind, body)


def _headers(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        match = _HEADER.fullmatch(line)
        if match is None:
            raise MimeBroken(f"'{line}' is no header")
        found[match["name"].lower()] = match["value"].strip()
    return found
