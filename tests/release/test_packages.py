"""Wheel and source archive: what is in them, and what is installed of them."""

from __future__ import annotations

import ensurepip
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from release.cross import PROCESSORS, problems
from release.image_sources import ROOT
from release.tool_environment import tool_environment
from release.trial import CleanPlace, try_command

from tests.release.conftest import Packages, lend_dependencies
from tests.release.package_index import empty_dependencies, package_index
from tests.support.page_commands import executed
from tranche_simulator.build import cache_directory


def installed(place: CleanPlace, packages: Packages) -> Path:
    """The `tranche` of an environment with that wheel, and with this environment's packages below it."""
    environment = place.folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment), "install", "--quiet", "--no-index", "--no-deps"]
    # A few commands run: they compile what they import, a third of it.
    subprocess.run([*pip, "--disable-pip-version-check", "--no-compile", str(packages.wheel)], check=True)
    lend_dependencies(environment)
    return environment / "bin" / "tranche"


def test_an_installed_wheel_needs_no_compiler_and_no_cache(packages: Packages, place: CleanPlace) -> None:
    assert shutil.which("cc", path=place.environment["PATH"]) is None
    tranche = installed(place, packages)
    try_command(place, tranche)
    assert '"commit": "c0ffee"' in place.run([tranche, "version", "-o", "json"])
    assert '"kind": "DemoResult"' in place.run([tranche, "demo", "--speed", "200", "-o", "json"])
    assert (place.folder / "no-cache").read_text() == "", "nothing was compiled"
    assert (place.folder / "environment" / "share" / "man" / "man1" / "tranche-run.1").is_file()


def test_a_source_that_was_edited_is_compiled_anew(packages: Packages, place: CleanPlace) -> None:
    tranche = installed(place, packages)
    (source,) = place.folder.rglob("native/timing.c")
    source.write_text(source.read_text() + "\n")
    listing = [str(tranche), "--simulate", "p4d.24xlarge", "gpus"]
    done = subprocess.run(listing, env=dict(place.environment), capture_output=True, text=True, check=False)
    assert done.returncode == 27
    assert "cannot write the simulator's build folder" in done.stderr
    cache = {"TRANCHE_CACHE_DIR": str(place.folder / "cache")}
    done = subprocess.run(listing, env={**place.environment, **cache}, capture_output=True, text=True, check=False)
    assert "cannot run the C compiler" in done.stderr


def test_a_build_for_another_processor_is_not_used(packages: Packages, place: CleanPlace) -> None:
    tranche = installed(place, packages)
    (stamp,) = place.folder.rglob("prebuilt/made-of")
    stamp.write_text(stamp.read_text().replace(platform.machine(), "riscv64"))
    with pytest.raises(Exception, match="cannot write the simulator's build folder"):
        try_command(place, tranche)


def test_the_wheel_is_of_one_processor_and_of_every_python(packages: Packages) -> None:
    assert packages.wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(packages.wheel) as wheel:
        program = wheel.getinfo("tranche_simulator/prebuilt/bin/nvidia-smi")
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/WHEEL"))
        assert "Root-Is-Purelib: false" in wheel.read(metadata).decode()
    assert program.external_attr >> 16 & 0o111 == 0o111


def test_sources_compile_as_in_a_checkout(packages: Packages) -> None:
    with tarfile.open(packages.sdist) as archive:
        names = archive.getnames()
    assert not any("prebuilt/" in name for name in names)
    assert any(name.endswith("native/nvidia_smi/main.c") for name in names)
    with zipfile.ZipFile(packages.wheel) as wheel:
        inside = {name for name in wheel.namelist() if "/native/" in name or name.endswith(".json")}
    assert inside <= {name.partition("/src/")[2] for name in names}


def test_a_wheel_made_of_the_source_archive_is_the_same(packages: Packages, tmp_path: Path) -> None:
    with tarfile.open(packages.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "again")]
    simulator = {
        "TRANCHE_SIMULATOR_PREBUILT": str(packages.build),
        "TRANCHE_SIMULATOR_PLATFORM": f"linux_{platform.machine()}",
    }
    environment = {**os.environ, **simulator, "TRANCHE_SHARE": ""}
    subprocess.run(build, cwd=folder, capture_output=True, check=True, env=environment)
    (again,) = (tmp_path / "again").iterdir()
    with zipfile.ZipFile(packages.wheel) as one, zipfile.ZipFile(again) as other:
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


def asks_no_index_for_it(place: CleanPlace, packages: Packages, environment: Path, *command: str | Path) -> None:
    """The command installs the wheel into the environment, and asks an index for dependencies only."""
    bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("*.whl"))
    served = [*empty_dependencies(packages.wheel, place.folder / "wheels"), *bundled]
    with package_index(served) as index:
        urls = {"PIP_INDEX_URL": index.url, "UV_INDEX_URL": index.url, "UV_DEFAULT_INDEX": index.url}
        CleanPlace(place.folder, {**place.environment, **urls}).run([*command, packages.wheel])
    assert "click" in index.asked
    assert [name for name in index.asked if "tranche" in name] == []
    lend_dependencies(environment)
    assert '"commit": "c0ffee"' in place.run([environment / "bin" / "tranche", "version", "-o", "json"])


def test_pip_asks_no_index_for_it(packages: Packages, place: CleanPlace) -> None:
    environment = place.folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = (sys.executable, "-m", "pip", "--python", environment, "--disable-pip-version-check", "install", "--quiet")
    asks_no_index_for_it(place, packages, environment, *pip)


def test_the_support_matrix_names_the_oldest_installers_that_are_tried() -> None:
    lock = (ROOT / "requirements-oldest.lock").read_text()
    (tried,) = (line for line in (ROOT / "docs/reference/support-matrix.md").read_text().splitlines() if "pipx" in line)
    names, _, versions = (cell.strip().split(", ") for cell in tried.strip("|").split("|"))
    for name, version in zip(names, versions, strict=True):
        assert f"\n{name}=={version} " in f"\n{lock}"


EXECUTED = executed("docs/guides/install.md", "machine")
"""How the page installs a wheel, which is named last."""


@pytest.mark.long
@pytest.mark.parametrize("tool", ["pip", "pipx", "uv"])
def test_the_oldest_installers_ask_no_index_for_it(packages: Packages, place: CleanPlace, tool: str) -> None:
    programs = tool_environment(
        ROOT / "requirements-oldest.lock", cache_directory() / "oldest-installers", "fetching the oldest", print
    )
    folders = {
        "PIPX_HOME": "pipx",
        "PIPX_BIN_DIR": "pipx-bin",
        "UV_TOOL_DIR": "uv",
        "UV_TOOL_BIN_DIR": "uv-bin",
        "UV_CACHE_DIR": "uv-cache",
    }
    places = {key: str(place.folder / name) for key, name in folders.items()}
    place = CleanPlace(place.folder, {**place.environment, **places, "UV_PYTHON_DOWNLOADS": "never"})
    words = next((words[1:-1] for command in EXECUTED if (words := command.text.split())[0] == tool), [])
    match tool:
        case "pip":
            subprocess.run([programs / "python", "-m", "venv", "--without-pip", place.folder / "pip"], check=True)
            pip = (programs / "python", "-m", "pip", "--python", place.folder / "pip", "install", "--quiet")
            asks_no_index_for_it(place, packages, place.folder / "pip", *pip)
        case "pipx":
            environment = place.folder / "pipx" / "venvs" / "tranche-gpu"
            asks_no_index_for_it(place, packages, environment, programs / tool, *words)
        case _:
            environment = place.folder / "uv" / "tranche-gpu"
            asks_no_index_for_it(place, packages, environment, programs / tool, *words)
