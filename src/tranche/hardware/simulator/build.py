"""Compiles the simulator from the sources that come with the package, once per version of those sources."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tranche.core.errors import SimulatorError
from tranche.hardware.simulator import board_tables

NATIVE = Path(__file__).parent / "native"
NVML_SONAME = "libnvidia-ml.so.1"
CONTROL_SONAME = "libtranche-sim.so"
COMPILE_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
STUB_TEXT = """#include "session.h"

#define UNSUPPORTED(name) \\
    NVML_API nvmlReturn_t name(void); \\
    nvmlReturn_t name(void) { return unsupported(#name); }

"""


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
    built = _layout(target)
    if not built.nvidia_smi.exists():
        _build_into(root, target)
    return built


def _layout(directory: Path) -> BuiltSimulator:
    return BuiltSimulator(
        library=directory / "lib" / NVML_SONAME,
        control=directory / "control" / CONTROL_SONAME,
        nvidia_smi=directory / "bin" / "nvidia-smi",
        directory=directory,
    )


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _fingerprint() -> str:
    """Name of the build: changes with any source file (by name, size and time) and with the compiler command."""
    hasher = hashlib.sha256("\0".join((*_compiler(), *COMPILE_FLAGS)).encode())
    sources = [Path(board_tables.__file__), board_tables.CATALOGUE, board_tables.PLAIN_BOARDS, Path(__file__)]
    for folder in (NATIVE, NATIVE / "nvidia_smi"):
        sources += sorted(Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith((".c", ".h", ".txt")))
    for source in sources:
        status = source.stat()
        hasher.update(f"{source.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return hasher.hexdigest()[:20]


def _build_into(root: Path, target: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix="build-", dir=root))
    except OSError as error:
        raise SimulatorError(
            f"cannot write the simulator's build folder {root}: {error.strerror}",
            hint="set TRANCHE_CACHE_DIR to a folder that you may write",
        ) from error
    try:
        _compile_everything(draft)
        draft.chmod(0o755)
        try:
            draft.rename(target)
        except OSError:
            if not _layout(target).nvidia_smi.exists():  # otherwise another process was first, with the same result
                raise
    except OSError as error:
        raise SimulatorError(f"cannot store the simulator in {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _compile_everything(draft: Path) -> None:
    objects = draft / "objects"
    objects.mkdir()
    tables = objects / "boards_table.c"
    tables.write_text(board_tables.c_source(board_tables.load_models()))
    stubs = objects / "unsupported.c"
    names = (NATIVE / "unsupported_symbols.txt").read_text().split()
    stubs.write_text(STUB_TEXT + "".join(f"UNSUPPORTED({name})\n" for name in names))
    library_sources = [*sorted(NATIVE.glob("*.c")), tables, stubs]
    smi_sources = sorted((NATIVE / "nvidia_smi").glob("*.c"))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        library_objects = list(pool.map(lambda source: _compile(source, objects), library_sources))
        smi_objects = list(pool.map(lambda source: _compile(source, objects), smi_sources))
    built = _layout(draft)
    for output in (built.library, built.control, built.nvidia_smi):
        output.parent.mkdir()
    for output in (built.library, built.control):
        flags = ["-shared", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-soname,{output.name}"]
        _run([*_compiler(), *flags, "-o", str(output), *library_objects])
    link = [*_compiler(), "-pthread", "-o", str(built.nvidia_smi), *smi_objects, *library_objects]
    try:
        _run([*link, "-static"])
    except SimulatorError:
        _run(link)  # this compiler has no static C library: nvidia-smi then needs the shared one of its host
    shutil.rmtree(objects)


def _compile(source: Path, objects: Path) -> str:
    output = objects / f"{source.parent.name}-{source.stem}.o"
    _run([*_compiler(), *COMPILE_FLAGS, f"-I{NATIVE}", "-c", str(source), "-o", str(output)])
    return str(output)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SimulatorError(
            f"there is no C compiler: cannot run {command[0]!r} ({error.strerror})",
            hint="install gcc or clang with the C library's headers, or name a compiler in CC",
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise SimulatorError(
            f"the C compiler could not build the simulator: {shlex.join(command)}\n" + "\n".join(lines[:20]),
            hint="the message above is the compiler's; CC and the installed C headers are the usual causes",
        )
