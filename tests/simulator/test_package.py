"""The simulator in the distribution: it is whole there, and it works without the product and its dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parents[2]

USE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tranche_simulator import SimulatedMachine, SimulatorError
machine = SimulatedMachine.create("alone", machine_type="p5.48xlarge", root=Path(sys.argv[2]), time_scale=0)
try:
    SimulatedMachine.create("alone", machine_type="p5.48xlarge", root=Path(sys.argv[2]))
except SimulatorError as error:
    print(error.hint)
import subprocess, os
listed = subprocess.run(["nvidia-smi", "-L"], env={**os.environ, **machine.environment()}, capture_output=True, text=True)
print(len(listed.stdout.splitlines()), sorted(name for name in sys.modules if name.split(".")[0] in ("tranche", "click")))
"""


def build(project: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def test_the_simulator_works_alone(tmp_path: Path) -> None:
    """The wheel is made from the source archive, as an index would have it; no other package can be imported (-S)."""
    with tarfile.open(build(PROJECT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    with zipfile.ZipFile(build(source, "wheel", tmp_path / "wheel")) as wheel:
        wheel.extractall(tmp_path / "installed")
    assert list((tmp_path / "installed").glob("*.dist-info/licenses/LICENSE"))
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')  # a third of the time
    compiler.chmod(0o755)
    used = subprocess.run(
        [sys.executable, "-I", "-S", "-c", USE, str(tmp_path / "installed"), str(tmp_path / "machines")],
        env={**os.environ, "TRANCHE_CACHE_DIR": str(tmp_path / "cache"), "CC": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert used.stdout == "destroy it first, or choose another name\n8 []\n"
    assert used.stderr == "compiling the simulator, once for this version\n"


def test_every_file_of_the_simulator_is_in_the_wheel(tmp_path: Path) -> None:
    sources = PROJECT / "simulator" / "src"
    kept = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(build(PROJECT, "wheel", tmp_path)) as wheel:
        assert kept <= set(wheel.namelist())
