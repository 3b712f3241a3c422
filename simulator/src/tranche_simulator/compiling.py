"""Compiles the simulator's sources: two shared libraries of the same code, and nvidia-smi."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tranche_simulator import board_tables
from tranche_simulator.errors import SimulatorError
from tranche_simulator.recipe import COMPILE_FLAGS, NATIVE, compiler, layout

STUB_TEXT = """#include "session.h"

#define UNSUPPORTED(name) \\
    NVML_API nvmlReturn_t name(void); \\
    nvmlReturn_t name(void) { return unsupported(#name); }

"""


def run_compiler(arguments: Sequence[str], product: str = "the simulator") -> None:
    """Run the C compiler; `product` is what it makes of it, for the error.

    Raises:
        SimulatorError: there is no C compiler, or it fails.
    """
    command = [*compiler(), *arguments]
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
            f"the C compiler could not build {product}: {shlex.join(command)}\n" + "\n".join(lines[:20]),
            hint="the message above is the compiler's; CC and the installed C headers are the usual causes",
        )


def build_into(root: Path, target: Path) -> None:
    """Compile into a folder of this process's own under `root`, then rename it to `target`.

    Raises:
        SimulatorError: no C compiler, a compile error, or the folder cannot be written.
    """
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
            if not layout(target).nvidia_smi.exists():  # otherwise another process was first, with the same result
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
    built = layout(draft)
    for output in (built.library, built.control, built.nvidia_smi):
        output.parent.mkdir()
    for output in (built.library, built.control):
        flags = ["-shared", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-soname,{output.name}"]
        run_compiler([*flags, "-o", str(output), *library_objects])
    link = ["-pthread", "-o", str(built.nvidia_smi), *smi_objects, *library_objects]
    try:
        run_compiler([*link, "-static"])
    except SimulatorError:
        run_compiler(link)  # this compiler has no static C library: nvidia-smi then needs the shared one of its host
    shutil.rmtree(objects)


def _compile(source: Path, objects: Path) -> str:
    output = objects / f"{source.parent.name}-{source.stem}.o"
    run_compiler([*COMPILE_FLAGS, f"-I{NATIVE}", "-c", str(source), "-o", str(output)])
    return str(output)
