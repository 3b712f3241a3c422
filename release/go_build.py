"""Builds programs from published Go modules, as a `go.mod` of ours pins them, and tells how far it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from release.progress import run_with_progress

STRIPPED = "-s -w"
"""Linker flags of a program without symbols."""


def go_build(
    go: str,
    packages: Sequence[str],
    output: str,
    *,
    module: Path,
    doing: str,
    say: Callable[[str], None],
    linker_flags: str = STRIPPED,
    cgo: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Compile the packages to `output`, a file, or with a slash at its end a folder; `module` has go.mod and go.sum.

    Nothing but what these pin is built. What comes back has the exit code, and all that Go said as `stdout`.
    """
    # -v names each package when it is compiled: the lines that tell how far it is.
    options = ("-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", linker_flags)
    return run_with_progress(
        ["nice", "-n", "19", go, "build", *options, "-o", output, *packages],
        doing,
        say,
        summary=go_summary,
        environment=os.environ | {"CGO_ENABLED": str(int(cgo)), "GOFLAGS": ""},
        folder=module,
    )


def go_summary(lines: Sequence[str]) -> str:
    """How far `go build -v` is: it prints a line for each module that it fetches, and for each package that it compiles."""
    fetched = sum(line.startswith("go: downloading ") for line in lines)
    compiled = len(lines) - fetched
    if not compiled:
        return f"{fetched} modules fetched" if fetched else "looking for the modules"
    return f"{compiled} packages compiled, {lines[-1].strip()} last"
