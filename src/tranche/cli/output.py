"""How commands print: data on stdout, words for people on stderr; also where one of them is closed, full, or has lost its reader.

stdout carries what was asked for. Its loss ends the command: silently when the reader left, else with an error. stderr carries
words about work that goes on. Its loss changes nothing.
"""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from tranche.core.errors import OutputUnwritable
from tranche.core.printable import one_line
from tranche.documents.envelope import document

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class ClosedOutputError(BaseException):
    """The reader of stdout went away (`tranche gpus | head -1`). No error to report, so nothing else may catch it."""


def guard_streams() -> bool:
    """Replace Python's streams with ones that follow these rules; False if such streams are already in place.

    A closed descriptor is filled with a file that fails in the same way. Otherwise the next opened file would take its number,
    and a child would write its stdout into the ledger.
    """
    if sys.stdout is not sys.__stdout__:
        return False
    for descriptor, closed_to_us in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, closed_to_us), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _text(_Stream(1, data_lost), sys.stdout)
    sys.stderr = _text(_Stream(2, lambda error: None), sys.stderr)
    return True


def leave(code: int) -> NoReturn:
    """End the process as it stands. Python would first free object after object, for a sixth of a short command's time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def pause(seconds: float) -> None:
    """Sleep; ReaderGone as soon as stdout has lost its reader."""
    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    if reader.poll(seconds * 1000):
        raise ClosedOutputError


class _Stream(io.FileIO):
    """A descriptor that reports its first failure, and swallows everything written afterwards."""

    def __init__(self, descriptor: int, lost: Callable[[OSError], None]) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._report = lost
        self._lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self._lost:
            return size
        try:
            # Another process that shares the descriptor may have made it non-blocking; Python then says None for "not now".
            while (written := super().write(data)) is None:
                select.select((), (self,), ())
        except OSError as error:
            self._lost = True
            self._report(error)
            return size
        return written


def data_lost(error: OSError) -> NoReturn:
    """End the command because stdout failed with that error."""
    if isinstance(error, BrokenPipeError):
        raise ClosedOutputError from error
    raise OutputUnwritable(
        f"cannot write the output: {error.strerror}", hint="check where stdout is redirected"
    ) from error


def _text(stream: _Stream, before: TextIO | None) -> io.TextIOWrapper:
    """What has no character in the encoding is shown as well as it can be; bytes that are no UTF-8 leave as they came."""
    encoding = (before.encoding if before is not None else None) or "utf-8"
    errors = "surrogateescape" if encoding.lower().replace("-", "") == "utf8" else "replace"
    is_stderr = stream.fileno() == 2
    errors = "backslashreplace" if is_stderr else errors
    return io.TextIOWrapper(io.BufferedWriter(stream), encoding, errors, line_buffering=is_stderr or stream.isatty())


_LONGEST_LINE, _LONGEST_ERROR = 1000, 4000
"""Longer than what Tranche says itself; an error may name everything that is in its way."""


def print_json(kind: str, **data: Any) -> None:
    """One JSON document with apiVersion and kind, on stdout."""
    click.echo(json.dumps(document(kind, **data), indent=2))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Left-aligned columns two spaces apart, on stdout; nothing but the headers when there are no rows."""
    cells = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        show("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show(line: str = "", *, mark: str = "", err: bool = False, color: bool | None = None) -> None:
    """A line for people, on stdout; one line whatever is in it. `mark` is our own, may be coloured, and comes first.

    All text for people leaves by here: names, requests and messages of other people are in it, and a terminal would act on them.
    """
    click.echo(f"{mark}{shortened(one_line(line), _LONGEST_ERROR if err else _LONGEST_LINE)}", err=err, color=color)


def shortened(text: str, longest: int = 400) -> str:
    """The text, or its beginning and how much was left out: other people's reasons and commands can be of any length."""
    left = len(text) - longest
    return text if left <= 0 else f"{text[:longest]}... ({left:,} more characters; for the full text, use -o json)"


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else shortened(one_line(str(value)))


def say(message: str) -> None:
    """A line for people, on stderr."""
    show(message, err=True)


def warn(message: str) -> None:
    """A warning, on stderr."""
    show(f": {message}", mark=click.style("warning", fg="yellow"), err=True)


def hint(message: str) -> None:
    """A hint, on stderr."""
    show(f": {message}", mark=click.style("hint", fg="cyan"), err=True)


def fail(message: str, advice: str = "", color: bool | None = None) -> None:
    """An error, and what helps against it, on stderr."""
    show(f": {message}", mark=click.style("error", fg="red", bold=True), err=True, color=color)
    if advice:
        show(err=True)
        show(f": {advice}", mark=click.style("hint", fg="cyan"), err=True, color=color)
