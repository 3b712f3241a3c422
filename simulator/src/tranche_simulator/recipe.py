"""The tools and flags of a simulator build, and where its parts lie."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

NATIVE = Path(__file__).parent / "native"
NVML_SONAME = "libnvidia-ml.so.1"
CUDA_SONAME = "libcuda.so.1"
CONTROL_SONAME = "libtranche-sim.so"
PROGRAM_FOLDERS = ("nvidia_smi", "mps_control", "mps_server", "job")
"""Folders of the sources of the programs, in the order of `BuiltSimulator.programs`."""
# gnu11: under c11 each C library exposes a different part of POSIX.
COMPILE_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")


class Toolchain(NamedTuple):
    """The command of the compiler for the shared libraries, and of the one for the programs.

    They differ if the programs are linked with another C library.
    """

    libraries: tuple[str, ...]
    programs: tuple[str, ...]
    link_flags: tuple[str, ...] = ()


class BuiltSimulator(NamedTuple):
    """The compiled simulator.

    `library` is the NVML library (soname `libnvidia-ml.so.1`) in a folder of its own for LD_LIBRARY_PATH, `control` the same code
    under another soname, for a process that must not find the simulator when it loads NVML. `cuda` is CUDA's driver library
    (soname `libcuda.so.1`), beside `library`. `nvidia_smi`, the two programs of MPS and `job`, a program that uses the GPUs it is
    given, are self-contained.
    """

    library: Path
    cuda: Path
    control: Path
    nvidia_smi: Path
    mps_control: Path
    mps_server: Path
    job: Path
    directory: Path

    @property
    def programs(self) -> tuple[Path, ...]:
        """The self-contained programs."""
        return (self.nvidia_smi, self.mps_control, self.mps_server, self.job)


def layout(directory: Path) -> BuiltSimulator:
    """Where the parts of a build lie in its folder."""
    return BuiltSimulator(
        library=directory / "lib" / NVML_SONAME,
        cuda=directory / "lib" / CUDA_SONAME,
        control=directory / "control" / CONTROL_SONAME,
        nvidia_smi=directory / "bin" / "nvidia-smi",
        mps_control=directory / "bin" / "nvidia-cuda-mps-control",
        mps_server=directory / "bin" / "nvidia-cuda-mps-server",
        job=directory / "job" / "gpu-job",
        directory=directory,
    )


def compiler() -> list[str]:
    """The compiler's command: $CC, else cc."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]
