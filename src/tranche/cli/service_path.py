"""Options that take a path which a service of the machine is to use."""

from __future__ import annotations

from tranche.core.errors import UsageError


def absolute_path(path: str, option: str) -> str:
    """The path, when it is one that a service can use; UsageError otherwise."""
    if not path.startswith("/") or any(not each.isprintable() for each in path):
        raise UsageError(f"{option} {path} is no absolute path", hint="a service has no folder of its own")
    return path
