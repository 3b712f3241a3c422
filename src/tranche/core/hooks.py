"""Hooks files: commands to run around a layout change, in mig-parted's v1 format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tranche.core.errors import HooksInvalid

APPLY_START = "apply-start"
PRE_APPLY_MODE = "pre-apply-mode"
PRE_APPLY_CONFIG = "pre-apply-config"
APPLY_EXIT = "apply-exit"


@dataclass(frozen=True, slots=True)
class Hook:
    """One command. It gets only `environment` and what the executor adds; it does not inherit the caller's."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def __str__(self) -> str:
        return " ".join((self.command, *self.arguments))


def parse_hooks(data: object) -> Mapping[str, tuple[Hook, ...]]:
    """The hooks of a decoded document by the moment at which they run, in order; raises HooksInvalid.

    As in mig-parted, the version is not checked, and unused moments are no error.
    """
    if data is None:
        return {}
    document = _mapping(data, "the hooks file")
    moments = _mapping(document.get("hooks"), "'hooks'")
    return {moment: _parse_list(moment, entries) for moment, entries in moments.items()}


def _parse_list(moment: str, entries: object) -> tuple[Hook, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise HooksInvalid(f"'{moment}' must be a list of hooks")
    return tuple(_parse_hook(f"'{moment}', hook {number}", entry) for number, entry in enumerate(entries, start=1))


def _parse_hook(where: str, data: object) -> Hook:
    entry = _mapping(data, where)
    command = _text(entry.get("command"), f"{where}: 'command'")
    if not command:
        raise HooksInvalid(
            f"{where}: 'command' is missing", hint="a hook has the fields command, args, envs and workdir"
        )
    arguments = entry.get("args") if entry.get("args") is not None else []
    if not isinstance(arguments, list):
        raise HooksInvalid(f"{where}: 'args' must be a list of strings")
    environment = _mapping(entry.get("envs"), f"{where}: 'envs'")
    return Hook(
        command,
        tuple(_text(argument, f"{where}: an entry of 'args'") for argument in arguments),
        {name: _text(value, f"{where}: '{name}' in 'envs'") for name, value in environment.items()},
        _text(entry.get("workdir"), f"{where}: 'workdir'"),
    )


def _mapping(data: object, what: str) -> dict[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise HooksInvalid(f"{what} must be a mapping with string keys")
    return dict(data)


def _text(value: object, what: str) -> str:
    """A string; accepts numbers and booleans as text, as mig-parted's decoder does."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise HooksInvalid(f"{what} must be a string")
