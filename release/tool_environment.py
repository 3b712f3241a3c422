"""A virtual environment of a lock file's own, made at the first use and when the lock has changed."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from release.errors import ReleaseError
from release.progress import Say, run_with_progress


def tool_environment(lock: Path, folder: Path, doing: str, say: Say) -> Path:
    """The folder of its programs, `python` among them. `doing` is said while it is made.

    Raises:
        ReleaseError: something of the lock cannot be fetched.
    """
    programs = folder / "bin"
    stamp = folder / "made-of"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return programs
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = run_with_progress([*pip, "--require-hashes", "-r", str(lock)], doing, say)
        if done.returncode != 0:
            raise ReleaseError(
                f"pip cannot install {lock.name}: {done.stdout.strip()[-2000:]}", hint="PIP_INDEX_URL names a mirror"
            )
        stamp.write_text(wanted)
    return programs
