"""The owner's token, in a file that nobody else may read: it stays when the server ends, so that open pages come back."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from tranche.core.errors import PermissionDenied

_BYTES = 32


def token_path() -> Path:
    """Where the user keeps such things: `$XDG_STATE_HOME/tranche/dashboard-token`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "tranche" / "dashboard-token"


def read_token(path: Path) -> str:
    """The token in the file, which is made when there is none.

    PermissionDenied when others may read it or made it: it may be known then.
    """
    try:
        return _existing(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise PermissionDenied(f"the token {path} cannot be read: {error.strerror}") from error
    token = secrets.token_urlsafe(_BYTES)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished.unlink(missing_ok=True)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
        try:
            os.link(unfinished, path)  # never a file that is half written, and never another server's in its place
        except FileExistsError:
            return _existing(path)
        finally:
            unfinished.unlink()
    except OSError as error:
        raise PermissionDenied(f"the token {path} cannot be written: {error.strerror}") from error
    return token


def _existing(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        token = file.read(1024).strip() if stat.S_ISREG(found.st_mode) else ""
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or len(token) < _BYTES:
        raise PermissionDenied(
            f"the token {path} is not a secret of yours alone", hint=f"remove it, and another one is made: rm {path}"
        )
    return token
