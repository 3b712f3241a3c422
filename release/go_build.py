"""Builds programs from published Go modules, as a `go.mod` of ours pins them, and tells how far it is."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.errors import ReleaseError
from release.progress import run_with_progress


@dataclass(frozen=True, slots=True)
class GoModule:
    """A folder with a go.mod and a go.sum. Nothing but what these pin is built."""

    folder: Path

    @property
    def versions(self) -> dict[str, str]:
        """Path of each required module to its version, such as v1.36.3."""
        text = (self.folder / "go.mod").read_text()
        return dict(re.findall(r"^(?:require)?\s*(\S+) (v\d\S*)(?: //.*)?$", text, re.MULTILINE))

    @property
    def pins(self) -> str:
        """A name for what is built of it: it changes with what is pinned, and with the processor."""
        content = (self.folder / "go.mod").read_bytes() + (self.folder / "go.sum").read_bytes()
        return f"{hashlib.sha256(content).hexdigest()[:16]}-{platform.machine()}"

    def build(
        self,
        programs: Mapping[str, str],
        target: Path,
        doing: str,
        say: Callable[[str], None],
        *,
        stamps: Mapping[str, str] | None = None,
        cgo: bool = False,
    ) -> None:
        """Compile programs, by name their packages, into the folder `target`, where they appear only when all are built.

        `stamps` gives string variables of the packages their values. Builds of two processes do not disturb each other.

        Raises:
            ReleaseError: there is no Go, or a module cannot be fetched or compiled.
        """
        go = shutil.which("go")
        if go is None:
            raise ReleaseError("there is no Go to build it with", hint="install Go")
        target.mkdir(parents=True, exist_ok=True)
        flags = " ".join(("-s -w", *(f"-X {name}={value}" for name, value in (stamps or {}).items())))
        # -v names each package when it is compiled: the lines that tell how far it is.
        # Debugging tables, which -s drops from the program anyway, cost a tenth of the time.
        options = (
            "-v",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            "-gcflags=all=-dwarf=false",
            "-ldflags",
            flags,
        )
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
            built = run_with_progress(
                ["nice", "-n", "5", go, "build", *options, "-o", f"{folder}/", *programs.values()],
                doing,
                say,
                summary=go_summary,
                environment=os.environ | {"CGO_ENABLED": str(int(cgo)), "GOFLAGS": ""},
                folder=self.folder,
            )
            if built.returncode != 0:
                raise ReleaseError(f"go build failed:\n{built.stdout[-2000:]}")
            for name, package in programs.items():
                os.replace(Path(folder) / _output_name(package), target / name)


def go_summary(lines: Sequence[str]) -> str:
    """How far `go build -v` is: it prints a line for each module that it fetches, and for each package that it compiles."""
    fetched = sum(line.startswith("go: downloading ") for line in lines)
    compiled = len(lines) - fetched
    if not compiled:
        return f"{fetched} modules fetched" if fetched else "looking for the modules"
    return f"{compiled} packages compiled, {lines[-1].strip()} last"


def _output_name(package: str) -> str:
    """The name that `go build` gives a program: the last part of its package that is no major version."""
    parts = package.split("/")
    return parts[-2] if parts[-1].removeprefix("v").isdecimal() else parts[-1]
