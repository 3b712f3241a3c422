"""The compiled simulator: the one that came with the package, else one made of its sources, once per version of those."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tranche_simulator.prebuilt import prebuilt, sources
from tranche_simulator.recipe import COMPILE_FLAGS, BuiltSimulator, compiler, layout

BUILD_VARIABLE = "TRANCHE_SIM_BUILD"
"""Names the folder of a build that was made elsewhere, for a container that has neither a compiler nor the sources."""


def cache_directory() -> Path:
    """Where builds are kept: $TRANCHE_CACHE_DIR, else $XDG_CACHE_HOME/tranche, else ~/.cache/tranche."""
    chosen = os.environ.get("TRANCHE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # where it is relative, its specification has it ignored
    return (base if base.is_absolute() else Path.home() / ".cache") / "tranche"


def ensure_built(cache: Path | None = None) -> BuiltSimulator:
    """The simulator whose folder `TRANCHE_SIM_BUILD` names, else the one that the package brings along.

    Without either, it is compiled unless this version is in the cache already.

    Safe when many processes do it at once: each compiles in a folder of its own, and the first to rename it wins.

    Raises:
        SimulatorError: no C compiler, a compile error, or the cache cannot be written.
    """
    if elsewhere := os.environ.get(BUILD_VARIABLE):
        return layout(Path(elsewhere))
    if (shipped := prebuilt()) is not None:
        return shipped
    root = (cache or cache_directory()) / "simulator"
    target = root / _fingerprint()
    built = layout(target)
    if not built.nvidia_smi.exists():
        # What compiling needs is imported for that only: this function runs at the start of every command.
        from tranche_simulator.compiling import build_into

        build_into(root, target)
    return built


def _fingerprint() -> str:
    """Name of the build: changes with any source file (by name, size and time) and with the compiler command."""
    parts = [*compiler(), *COMPILE_FLAGS]
    for source in sources():
        status = os.stat(source)
        parts.append(f"{os.path.basename(source)} {status.st_size} {status.st_mtime_ns}")
    # Two checksums, since hashlib takes as long to import as all the rest takes to run.
    text = "\0".join(parts).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"
