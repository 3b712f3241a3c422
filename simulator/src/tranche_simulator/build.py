"""The compiled simulator: the package's own, or one compiled from its sources, once per version."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tranche_simulator.prebuilt import prebuilt, sources
from tranche_simulator.recipe import COMPILE_FLAGS, BuiltSimulator, compiler, layout

BUILD_VARIABLE = "TRANCHE_SIM_BUILD"
"""Names the folder of a build made elsewhere, for a container with neither a compiler nor the sources."""


def cache_directory() -> Path:
    """Where builds are kept: $TRANCHE_CACHE_DIR, else $XDG_CACHE_HOME/tranche, else ~/.cache/tranche."""
    chosen = os.environ.get("TRANCHE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # its specification ignores relative paths
    return (base if base.is_absolute() else Path.home() / ".cache") / "tranche"


def ensure_built(cache: Path | None = None) -> BuiltSimulator:
    """The simulator in the folder that `TRANCHE_SIM_BUILD` names, or the one in the package.

    Without either, it is compiled unless the cache has this version already.

    Safe when many processes do it at once: each compiles in its own folder, and the first to rename it wins.

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
    if not os.path.exists(built.nvidia_smi):  # also where this user may not look
        # Imported only for compiling: this function runs at the start of every command.
        from tranche_simulator.compiling import build_into

        build_into(root, target)
    return built


def _fingerprint() -> str:
    """Name of the build: changes with any source file (by name, size and time) and with the compiler command."""
    parts = [*compiler(), *COMPILE_FLAGS]
    for source in sources():
        status = os.stat(source)
        parts.append(f"{os.path.basename(source)} {status.st_size} {status.st_mtime_ns}")
    # Two checksums, because importing hashlib takes as long as everything else together.
    text = "\0".join(parts).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"
