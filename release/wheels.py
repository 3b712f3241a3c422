"""Wheels and the source archive, by hatchling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from release.errors import ReleaseError
from release.image_sources import ROOT
from release.revision import build_environment


def wheel(target: Path, share: Path, commit: str | None, prebuilt: Path, platform: str) -> Path:
    """A wheel with a build of the simulator inside, for a platform's tag, and with what lies in `share`."""
    simulator = {"TRANCHE_SIMULATOR_PREBUILT": str(prebuilt), "TRANCHE_SIMULATOR_PLATFORM": platform}
    return _built("wheel", target, {**_release_files(share, commit), **simulator})


def sdist(target: Path, share: Path, commit: str | None) -> Path:
    """The sources, with what lies in `share`. The simulator that is installed from them compiles at its first use."""
    return _built("sdist", target, _release_files(share, commit))


def _release_files(share: Path, commit: str | None) -> dict[str, str]:
    return {"TRANCHE_SHARE": str(share), "TRANCHE_COMMIT": commit or ""}


def _built(kind: str, target: Path, variables: Mapping[str, str]) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)]
    before = set(target.glob("*"))
    done = subprocess.run(
        command, cwd=ROOT, env={**build_environment(), **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ReleaseError(f"hatchling cannot build the {kind}: {done.stderr.strip()[-2000:]}")
    (made,) = set(target.glob("*")) - before
    return made
