"""Compiles the simulator's sources: NVML twice, CUDA's driver, nvidia-smi, the programs of MPS, and a job."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tranche_simulator import board_tables
from tranche_simulator.errors import SimulatorError
from tranche_simulator.recipe import COMPILE_FLAGS, CUDA_SONAME, NATIVE, PROGRAM_FOLDERS, Toolchain, compiler, layout

_DRAFT = "build-"
_ABANDONED_SECONDS = 3600.0  # compiling takes seconds

STUB_TEXT = """#include "session.h"

#define UNSUPPORTED(name) \\
    NVML_API nvmlReturn_t name(void); \\
    nvmlReturn_t name(void) { return unsupported(#name); }

"""
CUDA_STUB_TEXT = """#include "cuda/entry_points.h"

#define UNSUPPORTED(name) \\
    CUDA_API CUresult name(void); \\
    CUresult name(void) { return unsupported_call(#name); }

"""


def run_compiler(
    arguments: Sequence[str], product: str = "the simulator", *, command: Sequence[str] | None = None
) -> None:
    """Run the C compiler, or `command` if given; `product` is what it makes, for the error.

    Raises:
        SimulatorError: there is no C compiler, or it fails.
    """
    words = [*(command or compiler()), *arguments]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SimulatorError(
            f"cannot run the C compiler {words[0]!r} ({error.strerror})",
            hint="install gcc or clang and the C library's headers, or set CC to your compiler",
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise SimulatorError(
            f"the C compiler could not build {product}: {shlex.join(words)}\n" + "\n".join(lines[:20]),
            hint="see the compiler's message above; check CC and the installed C headers",
        )


def build_into(root: Path, target: Path) -> None:
    """Compile into this process's own folder under `root`, then rename it to `target`.

    Raises:
        SimulatorError: no C compiler, a compile error, or the folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root)
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=root))
    except OSError as error:
        raise SimulatorError(
            f"cannot write the simulator's build folder {root}: {error.strerror}",
            hint="set TRANCHE_CACHE_DIR to a writable folder",
        ) from error
    with suppress(AttributeError, OSError):  # no stderr
        sys.stderr.write("compiling the simulator, once for this version\n")
    try:
        compile_everything(draft)
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


def _remove_abandoned(root: Path) -> None:
    """Remove the folders of processes that were killed while they compiled."""
    for folder in root.glob(f"{_DRAFT}*"):
        with suppress(OSError):  # another process may remove it as well
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def compile_everything(folder: Path, toolchain: Toolchain | None = None) -> None:
    """Compile into an existing empty folder, with this host's compiler unless a toolchain is given.

    Raises:
        SimulatorError: no C compiler, or a compile error.
    """
    ours = tuple(compiler())
    tools = toolchain or Toolchain(libraries=ours, programs=ours)
    generated = folder / "generated"
    generated.mkdir()
    tables = generated / "boards_table.c"
    tables.write_text(board_tables.c_source(board_tables.load_models()))
    stubs = generated / "unsupported.c"
    names = (NATIVE / "unsupported_symbols.txt").read_text().split()
    stubs.write_text(STUB_TEXT + "".join(f"UNSUPPORTED({name})\n" for name in names))
    common = _compile([*sorted(NATIVE.glob("*.c")), tables, stubs], generated / "libraries", tools.libraries)
    built = layout(folder)
    for output in (built.library, built.control):
        output.parent.mkdir()
        flags = ["-shared", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-soname,{output.name}", *tools.link_flags]
        run_compiler([*flags, "-o", str(output), *common], command=tools.libraries)
    cuda_sources = (each for name in ("cuda", "mps") for each in sorted((NATIVE / name).glob("*.c")))
    own = _compile([*cuda_sources, _cuda_stubs(generated)], generated / "cuda", tools.libraries)
    exported = NATIVE / "cuda" / "symbols.map"  # not NVML's symbols, which are in it too
    flags = ["-shared", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-soname,{CUDA_SONAME}", f"-Wl,--version-script={exported}"]
    run_compiler([*flags, *tools.link_flags, "-o", str(built.cuda), *own, *common], command=tools.libraries)
    if tools.programs != tools.libraries:
        common = _compile([*sorted(NATIVE.glob("*.c")), tables, stubs], generated / "common", tools.programs)
    mps = _compile(sorted((NATIVE / "mps").glob("*.c")), generated / "mps", tools.programs)
    for output, folder_name in zip(built.programs, PROGRAM_FOLDERS, strict=True):
        output.parent.mkdir(exist_ok=True)
        own = _compile(sorted((NATIVE / folder_name).glob("*.c")), generated / output.name, tools.programs)
        _link_program(output, [*own, *mps, *common], tools)
    shutil.rmtree(generated)


def _cuda_stubs(folder: Path) -> Path:
    """The source of the functions of CUDA's driver that exist but do nothing, and of the table of their names."""
    names = (NATIVE / "cuda" / "unsupported_symbols.txt").read_text().split()
    rows = "".join(f'    {{"{name}", {name}}},\n' for name in names)
    table = f"const struct unsupported_entry unsupported_entries[] = {{\n{rows}    {{0, 0}},\n}};\n"
    source = folder / "cuda_unsupported.c"
    source.write_text(CUDA_STUB_TEXT + "".join(f"UNSUPPORTED({name})\n" for name in names) + table)
    return source


def _link_program(output: Path, objects: Sequence[str], tools: Toolchain) -> None:
    link = ["-pthread", *tools.link_flags, "-o", str(output), *objects]
    try:
        run_compiler([*link, "-static"], command=tools.programs)
    except SimulatorError:
        # This compiler has no static C library: the program then needs its host's shared one.
        run_compiler(link, command=tools.programs)


def _compile(sources: Sequence[Path], folder: Path, command: Sequence[str]) -> list[str]:
    """The object files of the sources, made in a new folder."""
    folder.mkdir()

    def one(source: Path) -> str:
        output = folder / f"{source.stem}.o"
        run_compiler([*COMPILE_FLAGS, f"-I{NATIVE}", "-c", str(source), "-o", str(output)], command=command)
        return str(output)

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(one, sources))
