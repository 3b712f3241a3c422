"""The versions of Tranche and of the software below it, without querying a driver."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib import metadata, resources


@dataclass(frozen=True, slots=True)
class _Software:
    """Package versions; `commit` is the source revision, None when it was not recorded."""

    version: str
    commit: str | None
    simulator_version: str
    python_version: str


def software() -> _Software:
    """The software of this process."""
    version = metadata.version("tranche-gpu")
    return _Software(
        version=version,
        commit=_commit(),
        simulator_version=version,  # both packages are in one distribution
        python_version=platform.python_version(),
    )


def _commit() -> str | None:
    """The revision recorded by the wheel build, else the one that pip installed from a repository."""
    written = resources.files("tranche").joinpath("commit.txt")
    if written.is_file():
        return written.read_text().strip() or None
    try:
        origin = json.loads(metadata.distribution("tranche-gpu").read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    revision = origin.get("vcs_info", {}).get("commit_id")
    return str(revision) if revision else None
