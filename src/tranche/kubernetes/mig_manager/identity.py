"""This MIG manager's name: one for each state folder. It survives restarts."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tranche.core.errors import LedgerUnavailable
from tranche.node.state.state_file import read_state_file


def manager_name(path: Path) -> str:
    """The name in that file, created if missing; LedgerUnavailable when it cannot be written.

    Only one agent at a time has the state folder, so writes cannot collide.
    """
    try:
        name = read_state_file(path).decode(errors="replace").strip()
        if _is_name(name):
            return name
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LedgerUnavailable(f"cannot read {path}: {error.strerror}") from error
    name = str(uuid.uuid4())
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_text(f"{name}\n")
        os.replace(unfinished, path)
    except OSError as error:
        raise LedgerUnavailable(f"cannot write {path}: {error.strerror}") from error
    return name


def _is_name(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
