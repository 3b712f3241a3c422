"""The programs that checks need: each comes from PATH, or out of its Debian package, which is unpacked into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from release.debian_packages import apt_alone
from release.errors import ReleaseError
from tranche_simulator.build import cache_directory


def debian_program(package: str, path: str) -> Path:
    """The program at `path` (without its leading slash) of a Debian package, or the one of its name on PATH.

    The package is unpacked, not installed, so that no service starts and no root is needed where the package lists are there.

    Raises:
        ReleaseError: the package cannot be fetched.
    """
    on_path = shutil.which(Path(path).name)
    if on_path:
        return Path(on_path)
    unpacked = cache_directory() / "debian" / package
    if not (unpacked / path).exists():
        _unpack(package, unpacked)
    if not os.access(unpacked / path, os.X_OK):
        raise ReleaseError(f"the Debian package {package} has no program {path}")
    return unpacked / path


def _unpack(package: str, target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ReleaseError(f"{package} is not on PATH, and this is no Debian that has it", hint=f"install {package}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with apt_alone(), tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{package}-") as folder:
        if target.exists():
            return
        if _downloaded(package, folder) is not None:
            updated = subprocess.run(["apt-get", "update"], capture_output=True, text=True, check=False)
            if (failure := _downloaded(package, folder)) is not None:
                raise ReleaseError(
                    f"the Debian package {package} cannot be fetched: {failure} {updated.stderr.strip()[-500:]}".rstrip(),
                    hint=f"install {package}",
                )
        archive = next(Path(folder).glob("*.deb"))
        made = Path(folder) / "root"
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(made)], check=True)
        made.rename(target)


def _downloaded(package: str, folder: str) -> str | None:
    """None when the package's file is in `folder` now, else what apt said."""
    unconfined = ("--option", "APT::Sandbox::User=root") if os.geteuid() == 0 else ()
    found = subprocess.run(
        ["apt-get", "download", *unconfined, package], cwd=folder, capture_output=True, text=True, check=False
    )
    return None if found.returncode == 0 else found.stderr.strip()[-500:]
