"""The self-contained archive: Tranche with every dependency for each processor and Python, and a program that installs it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from release.errors import ReleaseError
from release.image_sources import ROOT, version

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions that every compiled dependency has wheels for."""
_INSTALLER = Path(__file__).parent / "installer"
_DEPENDENCIES = ROOT / "requirements-image.lock"
_TOOLS = ROOT / "requirements-dist.lock"
_EXTRAS = "kubernetes,metrics,dashboard"
_ENTRY = re.compile(
    r"^(?P<pin>[A-Za-z0-9][^\s;]*==[^\s;]+)(?: ; (?P<marker>[^\\\n]*?))? \\\n(?P<hashes>(?: +--hash=\S+(?: \\)?\n)+)",
    re.MULTILINE,
)


def make_archive(target: Path, tools: Path, wheels: Mapping[str, Path]) -> None:
    """Write the archive, with the wheel of each processor. Every dependency is fetched with the hashes of the locks.

    Raises:
        ReleaseError: a dependency has no wheel for one of the processors and Pythons.
    """
    with tempfile.TemporaryDirectory(prefix="tranche-archive-") as name:
        folder = Path(name)
        for processor in wheels:
            for python in PYTHONS:
                _fetch(tools, folder, dependencies(), processor, python)
        pip = _fetch_pip(tools, folder)
        fetched = sorted(folder.glob("wheels/*.whl"))
        write_archive(target, requirements(wheels.values()), [*wheels.values(), *fetched], pip, tuple(wheels))


def write_archive(target: Path, required: str, wheels: Sequence[Path], pip: Path, processors: Sequence[str]) -> None:
    """Write an archive of these files, which runs as a program of Python."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as output:
        output.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(output, "w") as archive:
            for name, content in (
                ("__main__.py", (_INSTALLER / "__main__.py").read_bytes()),
                ("release/__init__.py", b""),
                ("release/installer/__init__.py", b""),
                ("release/installer/install.py", (_INSTALLER / "install.py").read_bytes()),
                ("requirements.txt", required.encode()),
                ("supported", "\n".join((*processors, *PYTHONS, "")).encode()),
                (pip.name, pip.read_bytes()),
                *((f"wheels/{each.name}", each.read_bytes()) for each in wheels),
            ):
                archive.writestr(zipfile.ZipInfo(name), content)  # of 1980, so that the same content is the same file
    target.chmod(0o755)


def requirements(wheels: Iterable[Path]) -> str:
    """What pip installs from the archive: Tranche with every extra, and the locked dependencies, with hashes."""
    own = "".join(f" \\\n    --hash=sha256:{hashlib.sha256(each.read_bytes()).hexdigest()}" for each in wheels)
    return f"tranche-gpu[{_EXTRAS}]=={version()}{own}\n{_DEPENDENCIES.read_text()}"


def dependencies() -> str:
    """The locked dependencies for every Python on Linux: pip would judge their markers by the Python that it runs with."""
    return "".join(
        f"{entry['pin']} \\\n{entry['hashes']}"
        for entry in _ENTRY.finditer(_DEPENDENCIES.read_text())
        if "== 'emscripten'" not in (entry["marker"] or "")
    )


def _fetch(tools: Path, folder: Path, required: str, processor: str, python: str) -> None:
    (folder / "required.txt").write_text(required)
    platform = ("--platform", f"manylinux2014_{processor}", "--python-version", python)
    _pip(tools, *platform, "--dest", str(folder / "wheels"), "-r", str(folder / "required.txt"))


def _fetch_pip(tools: Path, folder: Path) -> Path:
    (entry,) = (each for each in _ENTRY.finditer(_TOOLS.read_text()) if each["pin"].startswith("pip=="))
    (folder / "pip.txt").write_text(f"{entry['pin']} \\\n{entry['hashes']}")
    _pip(tools, "--dest", str(folder), "-r", str(folder / "pip.txt"))
    (pip,) = folder.glob("pip-*.whl")
    return pip


def _pip(tools: Path, *arguments: str) -> None:
    command = [str(tools / "python"), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary=:all:", "--require-hashes", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ReleaseError(f"pip cannot fetch what goes into the archive: {done.stderr.strip()[-2000:]}")
