"""The owner's tokens, in files that only the owner may read. They outlive the server, so that open pages reconnect."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
import stat
from pathlib import Path

from tranche.core.errors import PermissionDenied

_BYTES = 32
_ELSEWHERE = "set XDG_STATE_HOME to use another folder"
_OURS = re.compile(rb"[A-Za-z0-9_-]{43}\n?")
"""What `token_urlsafe` makes of so many bytes. It needs no escaping in an address."""


def token_path(*, acts: bool = False) -> Path:
    """Where the user keeps the token: `$XDG_STATE_HOME/tranche/dashboard-token`.

    A server that acts has its own token: the address of one that only shows must not let its reader act later.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # the XDG specification ignores relative paths
        state = Path.home() / ".local/state"
    return state / "tranche" / ("dashboard-act-token" if acts else "dashboard-token")


def read_token(path: Path) -> str:
    """The token in the file; makes one when there is none.

    PermissionDenied when others may read the file or made it, since they may know the token, or when it is not a token made here.
    """
    try:
        return _existing(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        hint = _ELSEWHERE if isinstance(error, PermissionError) else _another(path)
        raise PermissionDenied(f"the token file {path} cannot be read: {why}", hint=hint) from error
    try:
        return _made(path)
    except OSError as error:
        raise PermissionDenied(
            f"the token file {path} cannot be written: {error.strerror}",
            hint=_ELSEWHERE,
        ) from error


def _made(path: Path) -> str:
    token = secrets.token_urlsafe(_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(f"{token}\n")
        os.link(unfinished, path)  # never a half-written file, and never in place of another server's
    except FileExistsError:
        return _existing(path)
    finally:
        unfinished.unlink()
    return token


def _existing(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        content = os.read(descriptor, 1024) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise PermissionDenied(f"the token file {path} is a folder", hint=_another(path))
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionDenied(f"the token file {path} is not private to you", hint=_another(path))
    if _OURS.fullmatch(content) is None:
        raise PermissionDenied(f"the token file {path} was not created by Tranche", hint=_another(path))
    return content.decode().strip()


def _another(path: Path) -> str:
    remove = "rm -r" if path.is_dir() and not path.is_symlink() else "rm"
    return f"remove it, and Tranche creates a new one: {remove} {shlex.quote(str(path))}"
