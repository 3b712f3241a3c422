"""Suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
_LONGEST = 100
"""No name is longer; the comparison takes time."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'? ` with the most similar names, best first; empty without any."""
    if len(word) > _LONGEST:
        return ""
    import difflib  # a slow import, needed only after a mistake

    lower = {name.lower(): name for name in known}
    close = [lower[each] for each in difflib.get_close_matches(word.lower(), lower, n=_MOST)]
    return f"did you mean {' or '.join(repr(each) for each in close)}? " if close else ""
