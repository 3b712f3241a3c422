"""The environment of what only a release needs: its own lock, its own folder, made at the first use."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from release.errors import ReleaseError
from release.image_sources import ROOT
from release.progress import Say, run_with_progress

_LOCK = ROOT / "requirements-dist.lock"
_FOLDER = ROOT / "build" / "dist-tools"


def dist_tools(say: Say) -> Path:
    """The folder of its programs, `python` among them; 500 MB are fetched where they are not there yet.

    Raises:
        ReleaseError: something of the lock cannot be fetched.
    """
    programs = _FOLDER / "bin"
    stamp = _FOLDER / "made-of"
    wanted = hashlib.sha256(_LOCK.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(_FOLDER)], check=True)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = run_with_progress(
            [*pip, "--require-hashes", "-r", str(_LOCK)], "fetching the tools of a release, 500 MB", say
        )
        if done.returncode != 0:
            raise ReleaseError(
                f"pip cannot install {_LOCK.name}: {done.stdout.strip()[-2000:]}", hint="PIP_INDEX_URL names a mirror"
            )
        stamp.write_text(wanted)
    return programs
