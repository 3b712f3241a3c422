"""What the tests of one machine share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Path]:
    """Where the daemon says its pid; it is ended after the test."""
    path = tmp_path / "daemon.pid"
    yield path
    if path.exists():
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)
