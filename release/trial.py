"""Installs what was made as a user would, where no compiler is on PATH and no cache can be written, and tries them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from release.errors import ReleaseError

_MACHINE = "p4d.24xlarge"


@dataclass(frozen=True, slots=True)
class CleanPlace:
    """A folder and an environment in which only Python and the programs named by a whole path are found."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, command: Sequence[str | Path]) -> str:
        """What a command prints; ReleaseError where it fails."""
        words = [str(word) for word in command]
        done = subprocess.run(
            words, env=dict(self.environment), cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ReleaseError(f"`{' '.join(words)}` failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout


@contextmanager
def clean_place() -> Iterator[CleanPlace]:
    """Such a place; it is gone when the block ends. A file stands where the cache's folder would be made."""
    with tempfile.TemporaryDirectory(prefix="tranche-trial-") as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(sys.base_prefix + f"/bin/python3.{sys.version_info.minor}")
        (folder / "no-cache").write_text("")
        kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_", "SSL_", "LANG"))}
        proxies = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
        environment = {
            **kept,
            **proxies,
            "HOME": name,
            "PATH": f"{folder / 'bin'}",
            "TRANCHE_CACHE_DIR": str(folder / "no-cache"),
            "TRANCHE_SIM_ROOT": str(folder / "machines"),
        }
        yield CleanPlace(folder, environment)


def try_archive(archive: Path) -> None:
    """The archive installs itself, and asks no index.

    Raises:
        ReleaseError: it fails, or what it installs does.
    """
    with clean_place() as place:
        place = CleanPlace(place.folder, {**place.environment, "PIP_INDEX_URL": "http://127.0.0.1:9/"})
        folders = ("--to", place.folder / "environment", "--bin", place.folder / "commands")
        place.run([place.folder / "bin" / "python3", archive, *folders])
        try_command(place, place.folder / "commands" / "tranche")


def try_pipx(tools: Path, wheel: Path) -> None:
    """`pipx install`, with man pages.

    Raises:
        ReleaseError: it fails, or what it installs does.
    """
    with clean_place() as place:
        folders = {"PIPX_HOME": "pipx", "PIPX_BIN_DIR": "pipx-bin", "PIPX_MAN_DIR": "pipx-man"}
        environment = {**place.environment, **{key: str(place.folder / value) for key, value in folders.items()}}
        place = CleanPlace(place.folder, environment)
        place.run([tools / "pipx", "install", "--quiet", wheel])
        try_command(place, place.folder / "pipx-bin" / "tranche")
        if not (place.folder / "pipx-man" / "man1" / "tranche-run.1").is_file():
            raise ReleaseError("pipx shows no man page of `tranche run`")


def try_uv(tools: Path, wheel: Path) -> None:
    """`uv tool install`.

    Raises:
        ReleaseError: it fails, or what it installs does.
    """
    with clean_place() as place:
        folders = {"UV_TOOL_DIR": "uv", "UV_TOOL_BIN_DIR": "uv-bin", "UV_CACHE_DIR": "uv-cache"}
        environment = {**place.environment, **{key: str(place.folder / value) for key, value in folders.items()}}
        place = CleanPlace(place.folder, {**environment, "UV_PYTHON_DOWNLOADS": "never"})
        place.run([tools / "uv", "tool", "install", "--quiet", wheel])
        try_command(place, place.folder / "uv-bin" / "tranche")


def try_command(place: CleanPlace, tranche: Path) -> None:
    """Cut a simulated machine and run in a slice of it: the library, nvidia-smi and the register are used.

    Raises:
        ReleaseError: something fails, or does not say what it should.
    """
    for arguments, expected in _EXPECTED:
        said = place.run([tranche, "--simulate", _MACHINE, *arguments])
        if not expected(said):
            raise ReleaseError(f"`tranche {' '.join(arguments)}` says: {said[-2000:]}")


_EXPECTED: Sequence[tuple[tuple[str, ...], Callable[[str], bool]]] = (
    (("version", "-o", "json"), lambda said: '"driverError": null' in said),
    (("run", "--quiet", "--gpu-memory", "4Gi", "--", "nvidia-smi", "-L"), lambda said: said.count("MIG 1g.5gb") == 1),
    (("gpus",), lambda said: said.count("A100-SXM4-40GB") == 8),
)
