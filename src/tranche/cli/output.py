"""How commands print: data on stdout, words for people on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from tranche.documents.envelope import document


def print_json(kind: str, **data: Any) -> None:
    """One JSON document with apiVersion and kind, on stdout."""
    click.echo(json.dumps(document(kind, **data), indent=2))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Left-aligned columns two spaces apart, on stdout; nothing but the headers when there are no rows."""
    cells = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def one_line(text: str) -> str:
    """The text on one line and without what a terminal would act on: other people's commands are shown in listings."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else one_line(str(value))


def say(message: str) -> None:
    """A line for people, on stderr."""
    click.echo(message, err=True)


def warn(message: str) -> None:
    """A warning, on stderr."""
    click.echo(click.style("warning", fg="yellow") + f": {message}", err=True)


def hint(message: str) -> None:
    """A hint, on stderr."""
    click.echo(click.style("hint", fg="cyan") + f": {message}", err=True)
