"""Wheels and source archives: what is in them, and what is installed of them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from release.cross import PROCESSORS, problems
from release.shared_files import write_shared_files
from release.trial import CleanPlace, clean_place, try_command
from release.wheels import simulator_sdist, simulator_wheel, tranche_sdist, tranche_wheel

from tranche_simulator import ensure_built
from tranche_simulator.prebuilt import write_stamp


@dataclass(frozen=True, slots=True)
class Packages:
    """What was made of this checkout, with a build by this machine's own compiler."""

    tranche: Path
    tranche_sdist: Path
    simulator: Path
    simulator_sdist: Path
    build: Path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    folder = tmp_path_factory.mktemp("packages")
    share, build, made = folder / "share", folder / "build", folder / "dist"
    write_shared_files(share, "0.1.0")
    shutil.copytree(ensure_built().directory, build)
    write_stamp(build, platform.machine())
    return Packages(
        tranche=tranche_wheel(made, share, "c0ffee"),
        tranche_sdist=tranche_sdist(made, share, "c0ffee"),
        simulator=simulator_wheel(made, build, f"linux_{platform.machine()}"),
        simulator_sdist=simulator_sdist(made),
        build=build,
    )


@pytest.fixture
def place() -> Iterator[CleanPlace]:
    with clean_place() as place:
        yield place


def installed(place: CleanPlace, *wheels: Path) -> Path:
    """The `tranche` of an environment with those wheels, and with this environment's packages below them."""
    environment = place.folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--disable-pip-version-check", *map(str, wheels)], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    others = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text(f"{others}\n")  # a folder named so has no effect by .pth files of its own
    return environment / "bin" / "tranche"


def test_installed_wheels_need_no_compiler_and_no_cache(packages: Packages, place: CleanPlace) -> None:
    assert shutil.which("cc", path=place.environment["PATH"]) is None
    tranche = installed(place, packages.simulator, packages.tranche)
    try_command(place, tranche)
    assert '"commit": "c0ffee"' in place.run([tranche, "version", "-o", "json"])
    assert '"kind": "DemoResult"' in place.run([tranche, "demo", "--speed", "200", "-o", "json"])
    assert (place.folder / "no-cache").read_text() == "", "nothing was compiled"
    assert (place.folder / "environment" / "share" / "man" / "man1" / "tranche-run.1").is_file()


def test_a_source_that_was_edited_is_compiled_anew(packages: Packages, place: CleanPlace) -> None:
    tranche = installed(place, packages.simulator, packages.tranche)
    (source,) = place.folder.rglob("native/timing.c")
    source.write_text(source.read_text() + "\n")
    listing = [str(tranche), "--simulate", "p4d.24xlarge", "gpus"]
    done = subprocess.run(listing, env=dict(place.environment), capture_output=True, text=True, check=False)
    assert done.returncode == 27
    assert "cannot write the simulator's build folder" in done.stderr
    cache = {"TRANCHE_CACHE_DIR": str(place.folder / "cache")}
    done = subprocess.run(listing, env={**place.environment, **cache}, capture_output=True, text=True, check=False)
    assert "there is no C compiler" in done.stderr


def test_a_build_for_another_processor_is_not_used(packages: Packages, place: CleanPlace) -> None:
    tranche = installed(place, packages.simulator, packages.tranche)
    (stamp,) = place.folder.rglob("prebuilt/made-of")
    stamp.write_text(stamp.read_text().replace(platform.machine(), "riscv64"))
    with pytest.raises(Exception, match="cannot write the simulator's build folder"):
        try_command(place, tranche)


def test_the_wheel_of_the_simulator_is_of_one_processor_and_of_every_python(packages: Packages) -> None:
    assert packages.simulator.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(packages.simulator) as wheel:
        program = wheel.getinfo("tranche_simulator/prebuilt/bin/nvidia-smi")
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/WHEEL"))
        assert "Root-Is-Purelib: false" in wheel.read(metadata).decode()
    assert program.external_attr >> 16 & 0o111 == 0o111


def test_sources_compile_as_in_a_checkout(packages: Packages) -> None:
    with tarfile.open(packages.simulator_sdist) as archive:
        names = archive.getnames()
    assert not any("prebuilt/" in name for name in names)
    assert any(name.endswith("native/nvidia_smi/main.c") for name in names)
    with zipfile.ZipFile(packages.simulator) as wheel:
        inside = {name for name in wheel.namelist() if "/native/" in name or name.endswith(".json")}
    assert inside <= {name.partition("/src/")[2] for name in names}


def test_a_wheel_made_of_the_source_archive_is_the_same(packages: Packages, tmp_path: Path) -> None:
    with tarfile.open(packages.tranche_sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "again")]
    subprocess.run(build, cwd=folder, capture_output=True, check=True, env={**os.environ, "TRANCHE_SHARE": ""})
    (again,) = (tmp_path / "again").iterdir()
    with zipfile.ZipFile(packages.tranche) as one, zipfile.ZipFile(again) as other:
        names = [name for name in one.namelist() if not name.endswith("/RECORD")]  # lists the same in another order
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert {name: one.read(name) for name in names} == {name: other.read(name) for name in names}


def test_a_build_is_looked_at(packages: Packages) -> None:
    processor = platform.machine()
    other = next(each for each in PROCESSORS if each != processor)
    compiled = {
        path.name for path in packages.build.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"
    }
    assert {line for line in problems(packages.build, other) if "is not for" in line} == {
        f"{name} is not for {other}" for name in compiled
    }
    assert [line for line in problems(packages.build, processor) if "is not for" in line] == []


def test_a_library_that_wants_a_newer_c_library_is_refused(packages: Packages, tmp_path: Path) -> None:
    build = tmp_path / "build"
    shutil.copytree(packages.build, build)
    library = build / "lib" / "libnvidia-ml.so.1"
    library.write_bytes(library.read_bytes() + b"\0GLIBC_2.99\0")
    assert "libnvidia-ml.so.1 wants glibc 2.99" in list(problems(build, platform.machine()))
