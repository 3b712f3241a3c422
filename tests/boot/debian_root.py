"""A small Debian with systemd and Python in a folder, made once and kept in the cache; and why there is none."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from release.debian_packages import install_packages
from release.errors import ReleaseError

from tranche.node.locks.locks import FileLock
from tranche_simulator.build import cache_directory

_SUITE = "bookworm"  # its systemd is 252, as that of Amazon Linux 2023
_PACKAGES = "systemd,systemd-sysv,dbus,python3"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
_PROGRAMS = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container"}
_CAP_SYS_ADMIN = 21


@cache
def why_no_container() -> str:
    """Why no system can boot in a container here; empty when one can. What is missing is installed and made."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for the container's mounts"
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    if not int(effective.split()[1], 16) >> _CAP_SYS_ADMIN & 1:
        return "needs the capability to mount, which this container lacks"
    try:
        root = debian_root()
    except ReleaseError as error:
        return " ".join(str(error).split())[:300]
    done = subprocess.run(
        ["systemd-nspawn", "--quiet", "--directory", str(root), "--volatile=overlay", "--register=no", "--keep-unit",
         "--private-network", "--pipe", "/bin/true"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    return "" if done.returncode == 0 else f"systemd-nspawn fails here: {' '.join(done.stderr.split())[-300:]}"


def debian_root() -> Path:
    """The folder; its name tells how it was made. Nobody writes to it: containers have it under an overlay.

    Raises:
        ReleaseError: a program is missing and cannot be installed, or the packages cannot be fetched.
    """
    recipe = repr((_SUITE, _PACKAGES, _LEFT_OUT, platform.machine()))
    folder = cache_directory() / "debian-roots"
    root = folder / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{root.name}.lock"):
        missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
        install_packages(missing, "a systemd container", print)
        if not root.exists():
            _make(root)
    return root


def _make(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}-") as scratch:
        made = Path(scratch) / "root"
        options = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
        command = ["mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *options, _SUITE, str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ReleaseError(f"mmdebstrap failed: {done.stderr.strip()[-1000:]}")
        made.rename(root)
