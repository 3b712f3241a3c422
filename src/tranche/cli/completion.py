"""`tranche completion`, and what a shell may complete: ids, layouts, profiles, boards and machines.

A person presses a key and expects only words: completion makes nothing, not even a machine, and every failure means no words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from tranche.cli.runtime import Settings, TrancheCommand, observe, register_places
from tranche.core.errors import LayoutInvalid

Words = Iterable[tuple[str, str]]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(words: Callable[[click.Context], Words]) -> Complete:
    """A function for click from one that gives words, each with its explanation."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = [CompletionItem(word, help=text or None) for word, text in words(context)]
        except Exception:  # a traceback in the middle of a command line helps no user
            return []
        return [item for item in found if item.value.startswith(incomplete)]

    return complete


@_complete
def ids(context: click.Context) -> Iterator[tuple[str, str]]:
    """Ids of allocations and of waiting requests."""
    yield from _registered(context, waiting_only=False)


@_complete
def waiting_ids(context: click.Context) -> Iterator[tuple[str, str]]:
    """Ids of waiting requests."""
    yield from _registered(context, waiting_only=True)


def _registered(context: click.Context, *, waiting_only: bool) -> Iterator[tuple[str, str]]:
    from tranche.node.store import records, register
    from tranche.node.store.ledger import open_to_read

    places = register_places(_settings(context), reading=True)
    if not places.ledger.is_file():
        return
    with closing(open_to_read(places)) as ledger, ledger.read() as db:
        if not waiting_only:
            yield from ((each.id, f"{each.request}: {each.command}") for each in register.allocations(db))
        yield from ((each.id, f"waiting for {each.request}: {each.command}") for each in records.waiters(db))


@_complete
def layouts(context: click.Context) -> Words:
    """Layouts of the named file, or those generated for this machine."""
    path = context.params.get("config_file")
    if path:
        from tranche.core.layout_format import parse_layouts
        from tranche.node.files.files import read_document

        # Neither stdin nor a pipe may be read before the command itself does.
        file = parse_layouts(read_document(path, LayoutInvalid) if os.path.isfile(path) else None)
        return [(name, "") for name in file.names]
    from tranche.planning.layouts.named_layouts import generate_layouts

    return [(layout.name, "") for layout in generate_layouts(observe(_settings(context))).layouts]


@_complete
def profiles(context: click.Context) -> Words:
    """Profiles of this machine's GPUs."""
    names = sorted({profile.name for gpu in observe(_settings(context)) for profile in gpu.profiles})
    return [(str(name), "") for name in names]


@_complete
def boards(context: click.Context) -> Words:
    """Boards of the catalogue."""
    from tranche.core.board import catalogue

    return [(board.key, ", ".join(board.products)) for board in catalogue()]


@_complete
def machines(context: click.Context) -> Words:
    """Simulated machines, and the types to make one of."""
    from tranche_simulator import MACHINE_TYPES
    from tranche_simulator.machine import machines_directory

    folder = machines_directory()
    made = [each.name for each in folder.iterdir() if (each / "state").is_file()] if folder.is_dir() else []
    return [(name, "") for name in sorted({*made, *MACHINE_TYPES})]


def _settings(context: click.Context) -> Settings:
    """The shared options typed so far; LookupError for a machine that would have to be made."""
    root = context.find_root()
    typed = root.obj if isinstance(root.obj, Settings) else Settings()
    settings = Settings(
        typed.simulate or root.params.get("simulate") or os.environ.get("TRANCHE_SIMULATE"),
        typed.state_dir or root.params.get("state_dir"),
    )
    if settings.simulate:
        from tranche_simulator.machine import machines_directory

        if not (machines_directory() / settings.simulate / "state").is_file():
            raise LookupError(settings.simulate)
    return settings


SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=TrancheCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, /, shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    The script completes commands, options, ids, layouts, profiles, boards and machines.

    \b
    $ tranche completion bash > ~/.local/share/bash-completion/completions/tranche
    $ tranche completion zsh > "${fpath[1]}/_tranche"
    $ tranche completion fish > ~/.config/fish/completions/tranche.fish
    """
    root = context.find_root().command
    click.echo(script(root, shell), nl=False)


def script(root: click.Command, shell: str) -> str:
    """The script; the same on every machine, whichever shells are there."""
    found = get_completion_class(shell)
    assert found is not None, shell
    # Not the class's own source(), which for bash runs a bash and warns about its version.
    return ShellComplete.source(found(root, {}, "tranche", "_TRANCHE_COMPLETE")).strip() + "\n"
