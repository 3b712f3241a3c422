"""What of `tranche top` a terminal shows: which lines, from where on, and what the keys do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from tranche.cli.overview import HEAD_LINES

HELP = "q ends  / finds  Esc shows all  arrows, PgUp, PgDn scroll"

_UP, _DOWN = ("k", "\x1b[A", "\x1bOA"), ("j", "\x1b[B", "\x1bOB")
_PAGE_UP, _PAGE_DOWN = ("b", "\x1b[5~"), (" ", "\x1b[6~")
_HOME, _END = ("g", "\x1b[H", "\x1bOH", "\x1b[1~"), ("G", "\x1b[F", "\x1bOF", "\x1b[4~")
_ESCAPE, _ENTER, _ERASE = "\x1b", ("\r", "\n"), ("\x7f", "\x08")


@dataclass(frozen=True, slots=True)
class TopView:
    """How a person looks at the picture: from the line `first` on, at lines with `looked_for`, which may be `typing` now."""

    first: int = 0
    looked_for: str = ""
    typing: bool = False
    ended: bool = False

    def pressed(self, key: str, lines: Sequence[str], height: int) -> TopView:
        """After that key; an empty one means that the terminal is gone. `height` is the terminal's, in lines."""
        if not key:
            return replace(self, ended=True)
        if self.typing:
            return self._typed(key)
        room, last = self._room(height), max(0, len(self._found(lines)) - self._room(height))
        if key in ("q", "Q"):
            return replace(self, ended=True)
        if key == "/":
            return replace(self, typing=True, looked_for="", first=0)
        if key == _ESCAPE:
            return TopView()
        moves = {_UP: -1, _DOWN: 1, _PAGE_UP: -room, _PAGE_DOWN: room, _HOME: -len(lines), _END: len(lines)}
        step = next((step for keys, step in moves.items() if key in keys), 0)
        return replace(self, first=min(last, max(0, min(self.first, last) + step)))

    def shown(self, lines: Sequence[str], height: int) -> list[str]:
        """What fits: the head, the lines from the first one on, and at the bottom what the keys do and what is out of sight."""
        found, room = self._found(lines), self._room(height)
        first = min(self.first, max(0, len(found) - room))
        part = found[first : first + room]
        below = [f"/{self.looked_for}█" if self.typing else self._status(first, len(part), len(found))]
        return [*lines[:HEAD_LINES], *part, *[""] * (room - len(part)), *below]

    def _typed(self, key: str) -> TopView:
        if key in _ENTER:
            return replace(self, typing=False)
        if key == _ESCAPE:
            return TopView()
        if key in _ERASE:
            return replace(self, looked_for=self.looked_for[:-1])
        return replace(self, looked_for=self.looked_for + key) if key.isprintable() else self

    def _found(self, lines: Sequence[str]) -> list[str]:
        rest = list(lines[HEAD_LINES:])
        wanted = self.looked_for.casefold()
        return [each for each in rest if wanted in click.unstyle(each).casefold()] if wanted else rest

    def _status(self, first: int, shown: int, of: int) -> str:
        below = of - first - shown
        hidden = [f"{count} more {where}" for count, where in ((first, "above"), (below, "below")) if count]
        where = f"… {', '.join(hidden)}  " if hidden else ""
        what = f"those with '{self.looked_for}'  " if self.looked_for else ""
        return f"{where}{what}{HELP}"

    @staticmethod
    def _room(height: int) -> int:
        return max(1, height - HEAD_LINES - 1)
