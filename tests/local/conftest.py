"""What the tests of one machine share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.local.sessions import READABLE_PYTHON, OpenSession, Session, dropped, opening
from tests.local.test_service import SharedMachine
from tests.machines import TRANCHE, machine_in, readable_folder
from tests.support.in_process import NOBODY
from tests.support.length import some_of


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Path]:
    """Where the daemon says its pid; it is ended after the test."""
    path = tmp_path / "daemon.pid"
    yield path
    if path.exists():
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


# Both show the same of a session. What differs has tests with a mode of their own.
@pytest.fixture(params=some_of(["user", "root"] if os.geteuid() == 0 else ["root"], 1))
def opened(request: pytest.FixtureRequest) -> Iterator[OpenSession]:
    """Opens a session on a machine with one A100, whose programs use the register themselves or through the service."""
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        if request.param == "root":
            with opening(machine, [*TRANCHE]) as open_session:
                yield open_session
            return
        if READABLE_PYTHON is None:
            pytest.skip("there is no Python that every user may execute")
        shared = SharedMachine(machine)
        shared.serve()
        try:
            with opening(machine, dropped(NOBODY)) as open_session:
                open_session.shared = shared  # type: ignore[attr-defined]
                yield open_session
        finally:
            shared.end()


@pytest.fixture
def session(opened: OpenSession) -> Session:
    return opened()
