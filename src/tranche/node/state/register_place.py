"""The place of a machine's register. A machine has only one: two would give the same GPU twice.

Each machine has its own place for it, which only its administrator may write. The register is there, or a file there names
another folder.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tranche.core.errors import LedgerUnavailable, PermissionDenied
from tranche.node.state.session import StateFolder
from tranche.node.state.state_file import read_state_file, what_it_is

POINTER = "register-is-in"
"""The file that names the register's folder, when the register is elsewhere."""


def register_folder(home: Path) -> Path | None:
    """The folder of the register for the machine with the place `home`; None when there is none yet."""
    try:
        if os.path.lexists(StateFolder(home).ledger):
            return home
        folder = Path(os.fsdecode(read_state_file(home / POINTER).removesuffix(b"\n")))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise PermissionDenied(
            f"no permission to read {home}, where this machine's register is",
            hint="use sudo, or ask an administrator to make that folder readable",
        ) from error
    except OSError as error:
        if os.path.lexists(home) and not home.is_dir():
            raise LedgerUnavailable(
                f"{home} {what_it_is(home)}, not a folder", hint="remove it, and run the command again"
            ) from error
        raise LedgerUnavailable(
            f"cannot read the location of this machine's register from {home / POINTER}: {error.strerror}"
        ) from error
    return folder if folder.is_dir() else None


def settle_register(home: Path, chosen: Path) -> None:
    """Make `chosen` the folder of the machine's register, before any change.

    Raises PermissionDenied when the register is elsewhere, or when there is none and this user may not choose its place.
    """
    found = register_folder(home)
    if found is None:
        found = chosen if _same(home, chosen) else _point(home, chosen)
    if not _same(found, chosen):
        raise _elsewhere(found, chosen)


def _point(home: Path, chosen: Path) -> Path:
    """Record the register's place and make that folder; returns the recorded place, maybe another process's."""
    with suppress(OSError):
        chosen.mkdir(parents=True, exist_ok=True)
    if not chosen.is_dir():
        return chosen  # the first use of the folder reports the problem
    try:
        home.mkdir(parents=True, exist_ok=True)
        unfinished = home / f"{POINTER}.{os.getpid()}"
        unfinished.write_bytes(os.fsencode(chosen.absolute()) + b"\n")
        if register_folder(home) is None:
            # The named folder is gone: name another.
            (home / POINTER).unlink(missing_ok=True)
        try:
            os.link(unfinished, home / POINTER)
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
    except OSError as error:
        raise PermissionDenied(
            f"this machine has no register yet, and this user cannot record in {home} that it will be in {chosen}",
            hint="run the command once with sudo to create the register",
        ) from error
    return register_folder(home) or chosen


def _elsewhere(found: Path, chosen: Path) -> PermissionDenied:
    return PermissionDenied(
        f"this machine's register is in {found}: a second one in {chosen} would not know what the first has granted",
        hint="omit --state-dir and TRANCHE_STATE_DIR; use sudo if root owns the register",
    )


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
