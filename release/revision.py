"""The revision that a release is made of."""

from __future__ import annotations

import os
import subprocess

from release.image_sources import ROOT


def commit() -> str | None:
    """The checkout's revision, with `-dirty` behind it where files differ from it; None where git cannot tell."""
    revision = _git("rev-parse", "HEAD")
    return revision if revision is None or not _git("status", "--porcelain") else f"{revision}-dirty"


def build_environment() -> dict[str, str]:
    """This process's environment, with the time of the revision as that of every file in an archive, so that a build repeats."""
    moment = _git("log", "-1", "--format=%ct")
    return {**os.environ, **({"SOURCE_DATE_EPOCH": moment} if moment else {})}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
