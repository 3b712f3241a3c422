"""What a person may have meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
_LONGEST = 100
"""No name is longer; the comparison takes time."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'? ` with the names that are spelled nearly so, best first; empty where none is."""
    if len(word) > _LONGEST:
        return ""
    import difflib  # a slow import, needed only after a mistake

    lower = {name.lower(): name for name in known}
    close = [lower[each] for each in difflib.get_close_matches(word.lower(), lower, n=_MOST)]
    return f"did you mean {' or '.join(repr(each) for each in close)}? " if close else ""
