"""Wheels and source archives of both packages, by hatchling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from release.errors import ReleaseError
from release.image_sources import ROOT
from release.revision import build_environment


def simulator_wheel(target: Path, prebuilt: Path, platform: str) -> Path:
    """The simulator with a build of it inside, for a platform's tag."""
    variables = {"TRANCHE_SIMULATOR_PREBUILT": str(prebuilt), "TRANCHE_SIMULATOR_PLATFORM": platform}
    return _built(ROOT / "simulator", "wheel", target, variables)


def simulator_sdist(target: Path) -> Path:
    """The simulator's sources: what is installed of them compiles at its first use."""
    return _built(ROOT / "simulator", "sdist", target, {})


def tranche_wheel(target: Path, share: Path, commit: str | None) -> Path:
    """Tranche, for every platform, with what lies in `share`."""
    return _built(ROOT, "wheel", target, _release_files(share, commit))


def tranche_sdist(target: Path, share: Path, commit: str | None) -> Path:
    """Tranche's sources, with what lies in `share`."""
    return _built(ROOT, "sdist", target, _release_files(share, commit))


def _release_files(share: Path, commit: str | None) -> dict[str, str]:
    return {"TRANCHE_SHARE": str(share), "TRANCHE_COMMIT": commit or ""}


def _built(project: Path, kind: str, target: Path, variables: Mapping[str, str]) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)]
    before = set(target.glob("*"))
    done = subprocess.run(
        command, cwd=project, env={**build_environment(), **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ReleaseError(f"hatchling cannot build the {kind} of {project.name}: {done.stderr.strip()[-2000:]}")
    (made,) = set(target.glob("*")) - before
    return made
