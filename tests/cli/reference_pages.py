"""The parts of the reference pages that are made from the code: every command with its options, every error with its code."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click

from tranche.cli.main import root
from tranche.core.errors import all_errors
from tranche.metrics import catalogue, dcgm
from tranche.metrics.catalogue import MetricFamily

_OPTION_HEAD = ("| option | meaning |", "|---|---|")
SHARED_BY = 3
"""An option that this many commands explain in the same words is explained once."""
MARK = "<!-- Made from the code by `make goldens`: change it there. -->\n"


def errors_part() -> str:
    """A table of all errors, by exit code."""
    rows = [
        f"| {error.exit_code} | `{error.reason}` | `{error.__name__}` | {_first_sentence(error)} |"
        for error in all_errors()
    ]
    return "\n".join(["| code | reason | class | when |", "|---|---|---|---|", *rows]) + "\n"


def metrics_part() -> str:
    """A table of all metrics, by what they are about; and which of them have names of DCGM's."""
    own = [
        f"| `{family.series[0].removesuffix('_bucket')}` | {family.kind} | {family.unit or 'a number'} "
        f"| {', '.join(family.labels) or '-'} | {family.help} | {_absence(family)} |"
        for family in catalogue.FAMILIES
    ]
    names = [f"| `{name.name}` | {name.ours} |" for name in (*dcgm.NAMES, dcgm.XID_ERRORS)]
    text = [
        "| metric | kind | unit | labels | meaning | no value when |",
        "|---|---|---|---|---|---|",
        *own,
        "",
        "## The names of DCGM",
        "",
        f"Each metric has these labels: {', '.join(f'`{label}`' for label in dcgm.LABELS)}.",
        "",
        "| DCGM's name | the value of |",
        "|---|---|",
        *names,
    ]
    return "\n".join(text) + "\n"


def _absence(family: MetricFamily) -> str:
    return f"{family.absent}; only agents export it" if family.agent else family.absent


def commands_part() -> str:
    """A table of the options that many commands share, then a section for each command."""
    uses = Counter(row for _, context in all_commands() for row in _option_rows(context))
    # One meaning for each head: an option that means something else elsewhere is explained there.
    most = {row.split(" | ")[0]: row for row, count in reversed(uses.most_common()) if count >= SHARED_BY}
    shared = set(most.values())
    lines = [
        "These options have the same meaning for every command that lists them under *Also*:",
        "",
        *_OPTION_HEAD,
        *sorted(shared, key=lambda row: row.lstrip("| `-").lower()),
        "",
    ]
    return "\n".join([*lines, *(_command_section(name, context, shared) for name, context in all_commands())]) + "\n"


def all_commands() -> Iterator[tuple[str, click.Context]]:
    """Every command but mere groups, with its full name and its context, in alphabetical order."""
    yield from _below(root, click.Context(root, info_name="tranche"), "tranche")


def _below(group: click.Group, context: click.Context, name: str) -> Iterator[tuple[str, click.Context]]:
    for word in sorted(group.list_commands(context)):
        command = group.get_command(context, word)
        assert command is not None, f"{name} {word}"
        inner = click.Context(command, parent=context, info_name=word)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{name} {word}", inner
            yield from _below(command, inner, f"{name} {word}")
        else:
            yield f"{name} {word}", inner


def _option_rows(context: click.Context) -> list[str]:
    """A table row for each visible option of a command, in the order of its help."""
    return [
        f"| {', '.join(f'`{each}`' for each in _spellings(option))} | {_option_text(option)} |"
        for option in context.command.get_params(context)
        if isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts
    ]


def _command_section(name: str, context: click.Context, shared: set[str]) -> str:
    """The usage line has what a command of a group needs before its own name too: `tranche sim inject NAME lost`."""
    command = context.command
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    lines = [f"### {name}", "", f"`{usage}`", "", _prose(command.help or "")]
    rows = _option_rows(context)
    own = [row for row in rows if row not in shared]
    if own:
        lines += ["", *_OPTION_HEAD, *own]
    if also := [row.split(" | ")[0].removeprefix("| ").split(", ")[-1] for row in rows if row in shared]:
        lines += ["", f"*Also:* {', '.join(also)}"]
    return "\n".join([*lines, ""])


def _spellings(option: click.Option) -> list[str]:
    value = "" if option.is_flag else f" {option.metavar or option.make_metavar(click.Context(root))}"
    return [f"{each}{value}".replace("|", "\\|") for each in (*option.opts, *option.secondary_opts)]


def _option_text(option: click.Option) -> str:
    text = (option.help or "").replace("|", "\\|")
    shown = option.show_default and option.default not in (None, "")
    if not shown:
        return text
    default = option.default
    if option.secondary_opts:
        default = (option.opts if option.default else option.secondary_opts)[0]
    return f"{text} Default: `{default}`."


def _prose(text: str) -> str:
    """A command's help as Markdown: paragraphs, and its examples as a block."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            lines = part.removeprefix("\b").strip("\n")
            fence = "sh" if lines.startswith("$ ") else "text"
            parts.append(f"```{fence}\n{re.sub(r'^[$] ', '', lines, flags=re.MULTILINE)}\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts)


def _first_sentence(error: type) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(error) or "").replace("|", "\\|")
