"""What a shell may complete: ids, layouts, profiles, boards and machines.

A person presses a key and expects only words: completion makes nothing, not even a machine, and every failure means no words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import click
from click.shell_completion import CompletionItem

from tranche.cli.runtime import Settings
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


def _ids(context: click.Context) -> Iterator[tuple[str, str]]:
    yield from _registered(context, waiting_only=False)


def _waiting_ids(context: click.Context) -> Iterator[tuple[str, str]]:
    yield from _registered(context, waiting_only=True)


def _registered(context: click.Context, *, waiting_only: bool) -> Iterator[tuple[str, str]]:
    from tranche.cli.runtime import register_places
    from tranche.node.store import records, register
    from tranche.node.store.ledger import open_to_read

    places = register_places(_settings(context), reading=True)
    if not places.ledger.is_file():
        return
    ledger = open_to_read(places)
    try:
        with ledger.read() as db:
            if not waiting_only:
                yield from ((each.id, f"{each.request}: {each.command}") for each in register.allocations(db))
            yield from ((each.id, f"waits for {each.request}: {each.command}") for each in records.waiters(db))
    finally:
        ledger.close()


def _layouts(context: click.Context) -> Words:
    path = context.params.get("config_file")
    if path:
        from tranche.core.layout_format import parse_layouts
        from tranche.node.files.files import read_document

        # Neither stdin nor a pipe may be read before the command itself does.
        file = parse_layouts(read_document(path, LayoutInvalid) if os.path.isfile(path) else None)
        return [(name, "") for name in file.names]
    from tranche.cli.runtime import open_driver
    from tranche.planning.layouts.named_layouts import generate_layouts

    with open_driver(_settings(context)) as driver:
        return [(layout.name, "") for layout in generate_layouts(driver.observe()).layouts]


def _profiles(context: click.Context) -> Words:
    from tranche.cli.runtime import open_driver

    with open_driver(_settings(context)) as driver:
        names = sorted({profile.name for gpu in driver.observe() for profile in gpu.profiles})
    return [(str(name), "") for name in names]


def _boards(context: click.Context) -> Words:
    from tranche.core.board import catalogue

    return [(board.key, ", ".join(board.products)) for board in catalogue()]


def _machines(context: click.Context) -> Words:
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


ids = _complete(_ids)
waiting_ids = _complete(_waiting_ids)
layouts = _complete(_layouts)
profiles = _complete(_profiles)
boards = _complete(_boards)
machines = _complete(_machines)
