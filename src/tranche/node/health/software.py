"""Which software this is: the versions of Tranche and of what it stands on, without asking a driver."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib import metadata, resources


@dataclass(frozen=True, slots=True)
class _Software:
    """Versions of packages; `commit` is the revision that they were made from, None where nobody wrote it down."""

    version: str
    commit: str | None
    simulator_version: str
    python_version: str


def software() -> _Software:
    """The software of this process."""
    return _Software(
        version=metadata.version("tranche"),
        commit=_commit(),
        simulator_version=metadata.version("tranche-simulator"),
        python_version=platform.python_version(),
    )


def _commit() -> str | None:
    """What the build of the wheel wrote down, else the revision that pip installed from a repository."""
    written = resources.files("tranche").joinpath("commit.txt")
    if written.is_file():
        return written.read_text().strip() or None
    try:
        origin = json.loads(metadata.distribution("tranche").read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    revision = origin.get("vcs_info", {}).get("commit_id")
    return str(revision) if revision else None
