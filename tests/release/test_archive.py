"""The self-contained archive: it installs itself without an index, and leaves alone what is not its own."""

from __future__ import annotations

import ast
import ensurepip
import hashlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from release.archive import PYTHONS, dependencies, requirements, write_archive
from release.image_sources import ROOT
from release.trial import CleanPlace, try_command

from tests.release.conftest import Packages, lend_dependencies
from tests.release.package_index import PackageIndex, empty_dependencies, package_index

MAIN = ROOT / "release/installer/__main__.py"


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive with this checkout's wheel, in the place that it is run in."""

    packages: Packages
    place: CleanPlace
    index: PackageIndex

    @property
    def environment(self) -> Path:
        return self.place.folder / "environment"

    @property
    def command(self) -> Path:
        return self.place.folder / "commands" / "tranche"

    def write(self, *, processor: str = platform.machine(), damaged: bool = False) -> Path:
        """Write the archive; the hashes in a damaged one are wrong."""
        wheels = [self.packages.wheel, *empty_dependencies(self.packages.wheel, self.place.folder / "wheels")]
        required = ""
        for wheel in wheels:
            name, version = wheel.name.split("-")[:2]
            checksum = "0" * 64 if damaged else hashlib.sha256(wheel.read_bytes()).hexdigest()
            required += f"{name.replace('_', '-')}=={version} --hash=sha256:{checksum}\n"
        (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
        target = self.place.folder / "tranche.pyz"
        write_archive(target, required, wheels, pip, (processor,))
        return target

    def install(self, archive: Path) -> subprocess.CompletedProcess[str]:
        folders = ["--to", self.environment, "--bin", self.command.parent]
        words = [str(word) for word in (self.place.folder / "bin" / "python3", archive, *folders)]
        environment = {**self.place.environment, "PIP_INDEX_URL": self.index.url}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def archive(packages: Packages, place: CleanPlace) -> Iterator[Archive]:
    with package_index([]) as index:
        yield Archive(packages, place, index)


def test_it_installs_itself_and_asks_no_index(archive: Archive) -> None:
    file = archive.write()
    done = archive.install(file)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"installed in {archive.environment}, command in {archive.command}\nnext: {archive.command} doctor\n"
    )
    lend_dependencies(archive.environment)
    try_command(archive.place, archive.command)
    assert archive.install(file).returncode == 0, "an upgrade"
    assert archive.index.asked == []


def test_a_file_that_is_not_whole_leaves_nothing(archive: Archive) -> None:
    done = archive.install(archive.write(damaged=True))
    assert done.returncode == 1
    assert "error: pip failed:" in done.stderr
    assert "hint: check the file against SHA256SUMS" in done.stderr
    assert not archive.environment.exists()
    assert not archive.command.parent.exists()


def test_what_belongs_to_something_else_stays(archive: Archive) -> None:
    file = archive.write()
    archive.environment.mkdir()
    (archive.environment / "mine").touch()
    assert "choose another folder with --to" in archive.install(file).stderr
    assert [each.name for each in archive.environment.iterdir()] == ["mine"]
    (archive.environment / "mine").unlink()
    archive.command.parent.mkdir()
    archive.command.write_text("mine")
    assert "choose another folder with --bin" in archive.install(file).stderr
    assert archive.command.read_text() == "mine"
    assert list(archive.environment.iterdir()) == []


def test_it_names_the_processors_that_it_serves(archive: Archive) -> None:
    done = archive.install(archive.write(processor="riscv64"))
    assert done.returncode == 1
    assert f"error: this is linux on {platform.machine()}\n  hint: Tranche runs on Linux on riscv64" in done.stderr


@pytest.mark.parametrize("newer", [False, True])
def test_an_older_python_is_told_what_to_do(tmp_path: Path, newer: bool) -> None:
    ast.parse(MAIN.read_text(), feature_version=(3, 7))
    if newer:
        (tmp_path / "python3.12").touch(mode=0o755)
    program = (
        f"import sys; sys.version_info = (3, 10, 12, 'final', 0); sys.argv = ['x.pyz']; exec({MAIN.read_text()!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error: Tranche needs Python 3.11 or newer, and this is Python 3.10\n" in done.stderr
    assert ("hint: run: python3.12 x.pyz" in done.stderr) is newer


def test_every_locked_dependency_goes_into_it(packages: Packages) -> None:
    lock = (ROOT / "requirements-image.lock").read_text()
    pins = set(re.findall(r"^([a-z0-9-]+==\S+)", lock, re.MULTILINE))
    taken = set(re.findall(r"^([a-z0-9-]+==\S+) \\\n +--hash=sha256:", dependencies(), re.MULTILINE))
    assert {each.partition("==")[0] for each in pins - taken} == {"httpx2-jsfetch"}
    assert requirements([packages.wheel]).startswith("tranche-gpu[kubernetes,metrics,dashboard]==0.1.0 \\\n    --hash=")
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS
