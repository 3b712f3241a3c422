"""Installs Debian packages that a program is missing from, as root on Debian and its kin."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from release.errors import ReleaseError
from release.one_at_a_time import one_at_a_time
from release.progress import Say, run_with_progress

# Another process may be at it, too.
_OPTIONS = ("--quiet", "--option=DPkg::Lock::Timeout=300")


def install_packages(packages: Sequence[str], needed_by: str, say: Say) -> None:
    """Install them; the package lists are fetched only when apt cannot do it with those that are there.

    Raises:
        ReleaseError: this is another distribution, the caller is not root, or apt refuses.
    """
    if not packages:
        return
    apt = shutil.which("apt-get")
    if apt is None:
        raise ReleaseError(f"{needed_by} needs {', '.join(packages)}", hint="install them with your package manager")
    if os.geteuid() != 0:
        raise ReleaseError(
            f"{needed_by} needs {', '.join(packages)}", hint=f"sudo apt-get install {' '.join(packages)}"
        )
    say(f"installing {', '.join(packages)}")
    install = ("install", "--yes", "--no-install-recommends", *packages)
    with apt_alone():
        if _run(apt, install, say).returncode != 0:
            _run(apt, ("update",), say)
            done = _run(apt, install, say)
            if done.returncode != 0:
                raise ReleaseError(f"apt-get install {' '.join(packages)} failed: {done.stdout.strip()[-1000:]}")


@contextmanager
def apt_alone() -> Iterator[None]:
    """Let no other process of this project use apt meanwhile: it waits for dpkg's lock, and for that of the package lists not."""
    with one_at_a_time("packages"):
        yield


def _run(apt: str, arguments: Sequence[str], say: Say) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return run_with_progress([apt, *_OPTIONS, *arguments], f"apt-get {arguments[0]}", say, environment=environment)
