"""The environment of what only a release needs: its own lock, its own folder, made at the first use."""

from __future__ import annotations

from pathlib import Path

from release.image_sources import ROOT
from release.progress import Say
from release.tool_environment import tool_environment

_LOCK = ROOT / "requirements-dist.lock"
_FOLDER = ROOT / "build" / "dist-tools"


def dist_tools(say: Say) -> Path:
    """The folder of its programs, `python` among them; 500 MB are fetched where they are not there yet.

    Raises:
        ReleaseError: something of the lock cannot be fetched.
    """
    return tool_environment(_LOCK, _FOLDER, "fetching the tools of a release, 500 MB", say)
