"""Man pages made from the commands themselves: a page for each command and each group of commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

from tranche.core.errors import all_errors

_SHARED = "\\-\\-simulate and \\-\\-state\\-dir, which every command takes, are described in tranche(1)."


@dataclass(frozen=True, slots=True)
class Page:
    """A command's page: `words` are the command as typed, `short` the line that stands beside its name in listings."""

    words: tuple[str, ...]
    short: str
    context: click.Context

    @property
    def name(self) -> str:
        """The page's name, as `man` takes it."""
        return "-".join(self.words)


def pages(root: click.Group, version: str) -> Mapping[str, str]:
    """The text of each page in roff, by file name."""
    made = list(
        _below(root, click.Context(root, info_name="tranche", **root.context_settings), ("tranche",), root.help or "")
    )
    return {f"{page.name}.1": _text(page, made, version) for page in made}


def _below(command: click.Command, context: click.Context, words: tuple[str, ...], short: str) -> Iterator[Page]:
    yield Page(words, inspect.cleandoc(short).split("\n\n")[0].replace("\n", " ").rstrip("."), context)
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None, word
            inner_context = click.Context(inner, parent=context, info_name=word)
            yield from _below(inner, inner_context, (*words, word), _short(inner))


def _short(command: click.Command) -> str:
    return command.short_help or command.help or ""


def _text(page: Page, all_pages: list[Page], version: str) -> str:
    command = page.context.command
    name = _literal(page.name)
    usage = " ".join(command.collect_usage_pieces(page.context))
    lines = [
        f'.TH "{name.upper()}" 1 "" "Tranche {_literal(version)}" "Tranche"',
        ".SH NAME",
        f"{name} \\- {_prose(page.short)}",
        ".SH SYNOPSIS",
        f".B {_literal(page.context.command_path)}",
        *([_literal(usage)] if usage else []),
        ".SH DESCRIPTION",
        *_description(command.help or ""),
    ]
    parameters = [each for each in command.get_params(page.context) if isinstance(each, click.Option)]
    options = [record for each in parameters if (record := each.get_help_record(page.context))]
    if options:
        lines.append(".SH OPTIONS")
        for spelling, text in options:
            lines += [".TP", f".B {_literal(spelling)}", *([_prose(text)] if text else [])]
    if page.words != ("tranche",) and not isinstance(command, click.Group):
        lines += [".PP", _SHARED]
    inner = [each for each in all_pages if each.words[:-1] == page.words]
    if inner:
        lines.append(".SH COMMANDS")
        for each in inner:
            lines += [".TP", f".BR {_literal(each.name)} (1)", _prose(each.short)]
    lines += [".SH EXIT STATUS", *_exit_status(page.words)]
    around = [each for each in all_pages if each is not page and _related(page, each)]
    if around:
        lines += [
            ".SH SEE ALSO",
            ",\n".join(f".BR {_literal(each.name)} (1)" for each in around).replace(",\n", " ,\n"),
        ]
    return "\n".join(lines) + "\n"


def _related(page: Page, other: Page) -> bool:
    """The group of a command, and the other commands of that group."""
    return other.words == page.words[:-1] or (len(page.words) > 2 and other.words[:-1] == page.words[:-1])


def _exit_status(words: tuple[str, ...]) -> Iterator[str]:
    if words != ("tranche",):
        yield "0 on success, unless the description says otherwise. The codes of errors are described in"
        yield ".BR tranche (1)."
        return
    rows = [(0, "success"), *((each.exit_code, _first_sentence(each)) for each in all_errors())]
    for code, text in rows:
        yield from (".TP", f".B {code}", _prose(text))


def _first_sentence(error: type) -> str:
    return re.split(r"(?<=\.)\s", re.sub(r"\s+", " ", inspect.getdoc(error) or ""))[0]


def _description(text: str) -> Iterator[str]:
    for position, part in enumerate(inspect.cleandoc(text).split("\n\n")):
        if position:
            yield ".PP"
        if part.startswith("\b"):
            yield ".EX"
            yield from (_literal(line) for line in part.removeprefix("\b").strip("\n").split("\n"))
            yield ".EE"
        else:
            yield _prose(" ".join(part.split()))


def _literal(text: str) -> str:
    """Text whose hyphens are typed: options and commands."""
    return _escaped(text).replace("-", "\\-")


def _prose(text: str) -> str:
    """Text to read; in it only options have hyphens that are typed."""
    words = " ".join(text.split()).split(" ")
    shown = (_literal(word) if re.match(r"[\"'`(\[]?--?\w", word) else _escaped(word) for word in words)
    return re.sub(r"^(?=[.'])", r"\\&", " ".join(shown))


def _escaped(text: str) -> str:
    escaped = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text.replace("\\", "\\e"))
    return re.sub(r"^(?=[.'])", r"\\&", escaped)
