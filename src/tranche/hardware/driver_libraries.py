"""Which files of the NVIDIA driver a container has to see: its libraries, programs and firmware.

The driver's own libraries carry its version in their names, which tells them from everything else in the same folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_SUBFOLDERS = ("", "vdpau")
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_SOCKETS = ("run/nvidia-persistenced/socket",)


def driver_files(root: Path, version: str) -> tuple[str, ...]:
    """Absolute paths, as the host's root would see them, of what exists under `root`; sorted, each file once."""
    if not version:
        return ()
    seen: set[Path] = set()
    found = []
    for path in _candidates(root, version):
        real = path.resolve()
        if real not in seen:
            seen.add(real)
            found.append("/" + str(path.relative_to(root)))
    return tuple(sorted(found))


def has_driver(root: Path) -> bool:
    """Whether a driver's libcuda is under `root`, of whatever version."""
    return any(any((root / folder).glob("libcuda.so.*.*")) for folder in _FOLDERS)


def library_folders(files: Iterable[str]) -> tuple[str, ...]:
    """The folders of the libraries among the files, sorted."""
    return tuple(sorted({str(PurePosixPath(path).parent) for path in files if ".so." in PurePosixPath(path).name}))


def _candidates(root: Path, version: str) -> Iterator[Path]:
    for folder in _FOLDERS:
        for sub in _SUBFOLDERS:
            yield from sorted((root / folder / sub).glob(f"lib*.so.{version}"))
    for program in _PROGRAMS:
        path = root / "usr/bin" / program
        if path.exists():
            yield path
    yield from sorted((root / "lib/firmware/nvidia" / version).glob("gsp_*.bin"))
    for socket in _SOCKETS:
        path = root / socket
        if path.exists():
            yield path
