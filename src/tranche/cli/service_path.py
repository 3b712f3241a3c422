"""Options that take a path which a service of the machine is to use."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tranche.core.errors import UsageError


def absolute_path(path: str, option: str) -> str:
    """The path, when it is one that a service can use; UsageError otherwise."""
    if not path.startswith("/") or any(not each.isprintable() for each in path):
        raise UsageError(f"{option} {path} is no absolute path", hint="a service has no folder of its own")
    return path


def others_may_write(path: Path) -> Path | None:
    """What of the path somebody else than root may write or replace, the way to it included; None where nobody may."""
    real = Path(os.path.realpath(path))
    for each in (real, *real.parents):
        status = each.stat()
        open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or open_to_others:
            return each
    return None
