"""The image that ours is built on: Python's own from a registry, else a stand-in made of Debian's packages."""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from pathlib import Path

from release.builders import Builder
from release.debian_packages import install_packages
from release.errors import ReleaseError
from release.progress import Say, run_with_progress

PYTHON_IMAGE = "python:3.13-slim-trixie"
_ORIGINAL = f"docker.io/library/{PYTHON_IMAGE}"
STAND_IN = f"localhost/{PYTHON_IMAGE}"
_SUITE = "trixie"
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
# The real one has Python in /usr/local, and no manuals either.
_HOOK = (
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; '
    'for name in python python3; do ln -sf /usr/bin/python3 "$1/usr/local/bin/$name"; done'
)
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}


def ensure_base(builder: Builder, say: Say) -> str:
    """The name of an image to build on, which the builder has from now on: fetched, or the stand-in.

    Raises:
        ReleaseError: neither can be had.
    """
    if builder.has(_ORIGINAL):
        return _ORIGINAL
    if builder.has(_marker()):
        return STAND_IN
    refusal = builder.pull(_ORIGINAL, say)
    if not refusal:
        return _ORIGINAL
    say(f"{PYTHON_IMAGE} cannot be fetched ({refusal}); a stand-in is made of Debian's packages")
    _make_stand_in(builder, say)
    return STAND_IN


def _marker() -> str:
    """The stand-in's second name. It changes with how the stand-in is made, so that an older one is not taken for it."""
    recipe = repr((_SUITE, _PACKAGES, _HOOK, _LEFT_OUT, _ENVIRONMENT, platform.machine()))
    return f"localhost/tranche-stand-in:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def _make_stand_in(builder: Builder, say: Say) -> None:
    if shutil.which("mmdebstrap") is None:
        install_packages(["mmdebstrap"], f"a stand-in for {PYTHON_IMAGE}", say)
    with tempfile.TemporaryDirectory(prefix="tranche-base-") as folder:
        root = Path(folder) / "root.tar"
        options = [*(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT), f"--customize-hook={_HOOK}"]
        command = ["mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *options, _SUITE, str(root)]
        done = run_with_progress(command, f"installing Debian {_SUITE} and its Python in a folder", say)
        if done.returncode != 0:
            raise ReleaseError(f"mmdebstrap failed:\n{done.stdout.strip()[-1000:]}")
        builder.take(root, (STAND_IN, _marker()), _ENVIRONMENT, "python3")
