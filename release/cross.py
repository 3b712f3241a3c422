"""Builds of the simulator for every kind of processor, on whichever this machine has."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from tranche_simulator.compiling import compile_everything
from tranche_simulator.prebuilt import write_stamp
from tranche_simulator.recipe import Toolchain, layout

GLIBC = (2, 17)
"""The oldest GNU C library that the shared libraries run with, which is what manylinux_2_17 promises."""
PROCESSORS: Mapping[str, int] = {"x86_64": 62, "aarch64": 183}
"""The kinds of processors by the number that an ELF file has for each."""


def platform_tag(processor: str) -> str:
    """The tag of a wheel with that build."""
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{processor}"


def cross_build(processor: str, folder: Path, python: Path) -> None:
    """Compile the simulator for a processor into a new folder, with the compiler of the ziglang package of that Python.

    The shared libraries are made for an old GNU C library. The programs are linked statically with musl, since they run in
    containers that have any C library or none.

    Raises:
        tranche_simulator.SimulatorError: the compiler fails.
    """
    zig = (str(python), "-m", "ziglang", "cc", "-target")
    tools = Toolchain(
        libraries=(*zig, f"{processor}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"),
        programs=(*zig, f"{processor}-linux-musl"),
        link_flags=("-s",),
    )
    folder.mkdir(parents=True)
    compile_everything(folder, tools)
    write_stamp(folder, processor)
    (musl,) = python.parent.parent.glob("lib/python*/site-packages/ziglang/lib/libc/musl/COPYRIGHT")
    shutil.copyfile(musl, folder / "musl-COPYRIGHT")


def problems(folder: Path, processor: str) -> Iterator[str]:
    """What is wrong with a build for that processor, a line each."""
    built = layout(folder)
    libraries = (built.library, built.control, built.cuda)
    for path in (*libraries, *built.programs):
        content = path.read_bytes()
        (machine,) = struct.unpack_from("<H", content, 18) if content[:4] == b"\x7fELF" else (None,)
        if machine != PROCESSORS[processor]:
            yield f"{path.name} is not for {processor}"
        asked = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)]
        if path in libraries:
            if max(asked, default=(0, 0)) > GLIBC:
                yield f"{path.name} wants glibc {'.'.join(map(str, max(asked)))}"
        elif asked:
            yield f"{path.name} is not linked statically"
