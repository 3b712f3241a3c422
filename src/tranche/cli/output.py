"""How commands print: data on stdout, words for people on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from tranche.core.printable import one_line
from tranche.documents.envelope import document

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
    return text if left <= 0 else f"{text[:longest]}... ({left:,} more characters; all of it with -o json)"


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
