"""Compiles the simulator from the sources that come with the package, once per version of those sources."""

from __future__ import annotations

import os
import shlex
import zlib
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
NATIVE = _HERE / "native"
NVML_SONAME = "libnvidia-ml.so.1"
CONTROL_SONAME = "libtranche-sim.so"
COMPILE_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")


@dataclass(frozen=True, slots=True)
class BuiltSimulator:
    """The compiled simulator.

    `library` is the NVML library (soname `libnvidia-ml.so.1`) in a folder of its own for LD_LIBRARY_PATH, `control` the same code
    under another soname, for a process that must not meet the simulator when it loads NVML. `nvidia_smi` is self-contained.
    """

    library: Path
    control: Path
    nvidia_smi: Path
    directory: Path


def cache_directory() -> Path:
    """Where builds are kept: $TRANCHE_CACHE_DIR, else $XDG_CACHE_HOME/tranche, else ~/.cache/tranche."""
    chosen = os.environ.get("TRANCHE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tranche"


def ensure_built(cache: Path | None = None) -> BuiltSimulator:
    """Compile the simulator unless this version is in the cache already.

    Safe when many processes do it at once: each compiles in a folder of its own, and the first to rename it wins.

    Raises:
        SimulatorError: no C compiler, a compile error, or the cache cannot be written.
    """
    root = (cache or cache_directory()) / "simulator"
    target = root / _fingerprint()
    built = layout(target)
    if not built.nvidia_smi.exists():
        # What compiling needs is imported for that only: this function runs at the start of every command.
        from tranche_simulator.compiling import build_into

        build_into(root, target)
    return built


def layout(directory: Path) -> BuiltSimulator:
    """Where the parts of a build lie in its folder."""
    return BuiltSimulator(
        library=directory / "lib" / NVML_SONAME,
        control=directory / "control" / CONTROL_SONAME,
        nvidia_smi=directory / "bin" / "nvidia-smi",
        directory=directory,
    )


def compiler() -> list[str]:
    """The compiler's command: $CC, else cc."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _fingerprint() -> str:
    """Name of the build: changes with any source file (by name, size and time) and with the compiler command."""
    parts = [*compiler(), *COMPILE_FLAGS]
    names = ("build.py", "compiling.py", "board_tables.py", "catalogue.py", "boards.json", "plain_boards.json")
    sources = [_HERE / name for name in names]
    for folder in (NATIVE, NATIVE / "nvidia_smi"):
        sources += sorted(Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith((".c", ".h", ".txt")))
    for source in sources:
        status = source.stat()
        parts.append(f"{source.name} {status.st_size} {status.st_mtime_ns}")
    # Two checksums, since hashlib takes as long to import as all the rest takes to run.
    text = "\0".join(parts).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"
