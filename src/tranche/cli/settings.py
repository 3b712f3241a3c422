"""What every command knows: which machine is meant, and where its ledger is.

`--simulate` and `--state-dir` may stand before or after the subcommand's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """The options that all commands share; None where they were not given."""

    simulate: str | None = None
    state_dir: str | None = None


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        setattr(context.find_root().ensure_object(Settings), str(parameter.name), value)


def _complete_as_before_the_command(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    root = context.find_root()
    (before,) = (each for each in root.command.params if each.name == parameter.name)
    return before.shell_complete(root, incomplete)


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--simulate"],
            metavar="MACHINE",
            expose_value=False,
            callback=_remember,
            hidden=True,
            is_eager=True,
            shell_complete=_complete_as_before_the_command,
        ),
        click.Option(
            ["--state-dir"], metavar="DIR", expose_value=False, callback=_remember, hidden=True, is_eager=True
        ),
    ]


class TrancheCommand(click.Command):
    """A command that also takes the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class TrancheGroup(click.Group):
    """A group whose commands take the shared options; one that works as a command takes them itself, too."""

    command_class = TrancheCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.invoke_without_command:
            self.params += _shared_options()


def output_option(*formats: str) -> Callable[[Command], Command]:
    """The `-o` option: `table` and `json`, or the formats given; the first is the default."""
    choices = formats or ("table", "json")
    return click.option(
        "-o", "--output", type=_Format(choices), default=choices[0], show_default=True, help="Output format."
    )


class _Format(click.Choice[str]):
    """A choice that tells whoever asks for YAML that JSON is YAML."""

    def get_invalid_choice_message(self, value: str, ctx: click.Context | None) -> str:
        """What click says, and what helps."""
        text = super().get_invalid_choice_message(value=value, ctx=ctx)
        return f"{text} Every JSON document is YAML, too: -o json." if value.lower() in ("yaml", "yml") else text
