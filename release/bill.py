"""The bill of materials of what is installed with Tranche, in CycloneDX, and the checksums of all that is made."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from release.errors import ReleaseError
from release.image_sources import ROOT


def write_bill(target: Path, tools: Path, wheel: Path) -> None:
    """Install the wheel with the versions of requirements.lock, and list what is there then.

    Raises:
        ReleaseError: something cannot be installed or listed.
    """
    with tempfile.TemporaryDirectory(prefix="tranche-bill-") as name:
        environment, pins = Path(name) / "environment", Path(name) / "pins.txt"
        pins.write_text("\n".join(_pins()) + "\n")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        python = environment / "bin" / "python"
        pip = (tools / "python", "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet", "install")
        _run(*pip, "--constraint", pins, f"{wheel}[kubernetes,dashboard]")
        listing = (tools / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", target)
        _run(*listing, "--pyproject", ROOT / "pyproject.toml", python)


def write_checksums(folder: Path) -> Path:
    """SHA256SUMS of every file of a folder, as `sha256sum --check` reads it."""
    sums = folder / "SHA256SUMS"
    files = sorted(each for each in folder.iterdir() if each != sums)
    sums.write_text("".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files))
    return sums


def _pins() -> list[str]:
    """The lock without its hashes: pip takes constraints with hashes only where every requirement has them."""
    return re.findall(r"^([A-Za-z0-9][^\s;]*==[^\s;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"`{' '.join(map(str, command))}` failed: {done.stderr.strip()[-2000:]}")
