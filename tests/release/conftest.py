"""The packages of this checkout, and a clean place to install them in."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from release.shared_files import write_shared_files
from release.trial import CleanPlace, clean_place
from release.wheels import sdist, wheel

from tranche_simulator import ensure_built
from tranche_simulator.prebuilt import write_stamp


@dataclass(frozen=True, slots=True)
class Packages:
    """Made of this checkout, with a simulator that this machine's own compiler built."""

    wheel: Path
    sdist: Path
    build: Path


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    folder = tmp_path_factory.mktemp("packages")
    share, build, made = folder / "share", folder / "build", folder / "dist"
    tag = f"linux_{platform.machine()}"
    write_shared_files(share, "0.1.0")
    shutil.copytree(ensure_built().directory, build)
    write_stamp(build, platform.machine())
    return Packages(wheel=wheel(made, share, "c0ffee", build, tag), sdist=sdist(made, share, "c0ffee"), build=build)


@pytest.fixture
def place() -> Iterator[CleanPlace]:
    with clean_place() as place:
        yield place


def lend_dependencies(environment: Path) -> None:
    """Let an environment find this one's packages, below its own."""
    packages = next(environment.glob("lib/python*/site-packages"))
    others = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text(f"{others}\n")  # a folder named so has no effect by .pth files of its own
