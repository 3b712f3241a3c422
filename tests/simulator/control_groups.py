"""Control groups of version 2 for tests: a hierarchy mounted beside the machine's own, and groups that are removed again."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def hierarchy(folder: Path) -> Iterator[Path]:
    """The hierarchy of version 2, mounted in a new folder; the test is skipped where this process may not mount it."""
    place = folder / "groups"
    place.mkdir()
    command = ["mount", "-t", "cgroup2", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("control groups of version 2 cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextmanager
def group(parent: Path, name: str = "") -> Iterator[Path]:
    """A group below another, removed at the end of the block if it is still there; its processes have ended by then."""
    folder = parent / (name or f"tranche-test-{uuid.uuid4().hex[:12]}")
    folder.mkdir()
    try:
        yield folder
    finally:
        with suppress(FileNotFoundError):
            folder.rmdir()
