"""Where the cluster's programs come from: a folder that is named, PATH, the cache, a download, or a build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from release.one_at_a_time import one_at_a_time
from release.progress import telling

from cluster.download import download_kit
from cluster.errors import ClusterError
from cluster.kits import GO_MODULE, KITS, Kit, Say, build_kits
from tranche_simulator.build import cache_directory

PROGRAMS = "a cluster's programs"
"""What processes wait for that need them while another one builds them."""
FOLDER_VARIABLE = "TRANCHE_CLUSTER_BIN"
_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.\d+")


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where each program lies, and which release the nodes run."""

    paths: dict[str, Path]

    def with_programs(self, folder: str) -> Binaries:
        """The same, but for the programs that lie in that folder; "" for none."""
        return (
            Binaries(
                {name: found if (found := Path(folder, name)).is_file() else path for name, path in self.paths.items()}
            )
            if folder
            else self
        )

    def __getitem__(self, program: str) -> str:
        return str(self.paths[program])


def cached_programs() -> Path:
    """The folder that downloads and builds go to. Its name changes with the pinned versions."""
    return cache_directory() / "cluster" / GO_MODULE.pins / "bin"


def find_binaries() -> Binaries | None:
    """Every program, if all are on this machine already; nothing is fetched or built."""
    found = {kit.name: _find(kit) for kit in KITS}
    if None in found.values():
        return None
    return Binaries({name: path for programs in found.values() if programs for name, path in programs.items()})


def ensure_binaries(say: Say) -> Binaries:
    """Every program: those that are missing are downloaded, and built where that fails.

    Raises:
        ClusterError: a program can neither be found nor downloaded nor built.
    """
    with one_at_a_time(PROGRAMS, say):
        missing = [kit for kit in KITS if _find(kit) is None]
        if missing:
            target = cached_programs()
            target.mkdir(parents=True, exist_ok=True)
            to_build = [kit for kit in missing if not _downloaded(kit, target, say)]
            if to_build:
                build_kits(to_build, target, say)
        binaries = find_binaries()
    if binaries is None:
        raise ClusterError("some of the cluster's programs are still missing after a download and a build")
    return binaries


def _downloaded(kit: Kit, target: Path, say: Say) -> bool:
    try:
        with telling(f"downloading {kit.name} {kit.version}", say):
            download_kit(kit, target)
    except (OSError, ClusterError) as error:
        say(f"{kit.name} {kit.version} cannot be downloaded ({error})")
        return False
    say(f"downloaded {kit.name} {kit.version}")
    return True


def _find(kit: Kit) -> dict[str, Path] | None:
    chosen = os.environ.get(FOLDER_VARIABLE)
    places = [Path(chosen)] if chosen else []
    on_path = shutil.which(next(iter(kit.programs)))
    if on_path:
        places.append(Path(on_path).parent)
    places.append(cached_programs())
    for place in places:
        programs = {name: place / name for name in kit.programs}
        if all(os.access(path, os.X_OK) for path in programs.values()) and _recent_enough(kit, place):
            return programs
    return None


def _recent_enough(kit: Kit, place: Path) -> bool:
    """Whether the kit's first program is of a release that serves. What is in the cache was pinned by us."""
    if place == cached_programs():
        return True
    program = place / next(iter(kit.programs))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    release = _RELEASE.search(said)
    return release is not None and (int(release[1]), int(release[2])) >= kit.oldest
