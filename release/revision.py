"""The revision that a release is made of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from release.image_sources import ROOT


def commit() -> str | None:
    """The checkout's revision, with `-dirty` behind it where files differ from it; None where git cannot tell."""
    return _marked(_git("rev-parse", "HEAD"), ROOT)


def last_change(*paths: Path, root: Path = ROOT) -> str | None:
    """The revision that last changed one of these files and folders of the checkout; `-dirty` and None as for `commit`."""
    return _marked(_git("log", "-1", "--format=%H", "--", *map(str, paths), root=root), root, *paths)


def build_environment() -> dict[str, str]:
    """This process's environment, with the time of the revision as that of every file in an archive, so that a build repeats."""
    moment = _git("log", "-1", "--format=%ct")
    return {**os.environ, **({"SOURCE_DATE_EPOCH": moment} if moment else {})}


def _marked(revision: str | None, root: Path, *paths: Path) -> str | None:
    if not revision:
        return None
    return f"{revision}-dirty" if _git("status", "--porcelain", "--", *map(str, paths), root=root) else revision


def _git(*arguments: str, root: Path = ROOT) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
