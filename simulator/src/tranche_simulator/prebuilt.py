"""The simulator build in a wheel for one kind of processor, so that its users need neither a compiler nor a cache."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tranche_simulator.recipe import NATIVE, PROGRAM_FOLDERS, BuiltSimulator, layout

_PACKAGE = Path(__file__).parent
_PREBUILT = _PACKAGE / "prebuilt"
_STAMP = "made-of"
_MAKERS = ("recipe.py", "compiling.py", "board_tables.py", "catalogue.py", "boards.json", "plain_boards.json")


def sources() -> list[str]:
    """The path of every source file of a build, in a fixed order; as texts, because every command makes this list."""
    found = [str(_PACKAGE / name) for name in _MAKERS]
    for folder in (NATIVE, NATIVE / "cuda", NATIVE / "mps", *(NATIVE / name for name in PROGRAM_FOLDERS)):
        files = (entry for entry in os.scandir(folder) if entry.name.endswith((".c", ".h", ".txt", ".map")))
        found += sorted(entry.path for entry in files)
    return found


def stamp(processor: str) -> str:
    """The stamp of a build of these sources for a processor: changes with any byte of them."""
    crc = adler = 0
    for source in map(Path, sources()):
        content = source.name.encode() + b"\0" + source.read_bytes()
        crc, adler = zlib.crc32(content, crc), zlib.adler32(content, adler)
    return f"{processor} {crc:08x}{adler:08x}\n"


def write_stamp(directory: Path, processor: str) -> None:
    """Stamp a build, in its folder, as made from these sources for a processor (x86_64, aarch64)."""
    (directory / _STAMP).write_text(stamp(processor))


def prebuilt() -> BuiltSimulator | None:
    """The build in the package; None if there is none for this processor and these sources."""
    try:
        made_of = (_PREBUILT / _STAMP).read_text()
    except OSError:
        return None
    return layout(_PREBUILT) if made_of == stamp(os.uname().machine) else None
