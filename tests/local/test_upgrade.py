"""The files of Tranche are replaced while commands run and wait, as an upgrade does it; then the service starts again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grimp
import pytest

import tranche
from tests.local.test_service import HALF, OTHER, SharedMachine
from tests.machines import machine_in, needs_root, readable_folder, wait_until
from tests.support.in_process import DROP, NOBODY
from tests.support.length import some_of
from tranche.core.errors import NoRoom, PermissionDenied, ServiceUnavailable, UsageError
from tranche.local import client
from tranche.node.state import connection
from tranche.node.state.connection import VERSION, ServiceConnection, ask, listen

pytestmark = needs_root


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SharedMachine, Path]]:
    """A machine whose service and clients run an installation of their own, and the folder of that."""
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        (origin,) = tranche.__path__
        files = folder / "installed"
        shutil.copytree(origin, files / "tranche", ignore=shutil.ignore_patterns("__pycache__"))
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", str(files))
            shared = SharedMachine(machine)
            shared.serve()
        try:
            yield shared, files
        finally:
            shared.end()


def test_the_service_has_imported_all_that_a_request_may_import() -> None:
    graph = grimp.build_graph("tranche", exclude_type_checking_imports=True, cache_dir=None)
    needed = graph.find_upstream_modules("tranche.local.service")
    script = "from tranche.cli import serve; serve.import_what_requests_need(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert needed - set(done.stdout.split()) == set()


def start(shared: SharedMachine, files: Path, *arguments: str) -> subprocess.Popen[str]:
    """A client of the installed version."""
    process = subprocess.Popen(
        [sys.executable, "-c", DROP, str(NOBODY), *arguments],
        env={**shared.machine.environment, "PYTHONPATH": str(files)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    shared._started.append(process)
    return process


def running(shared: SharedMachine, files: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """A command in half of the GPU, which exits with 5 when it is told to end; and its pid."""
    script = "trap 'kill $!; exit 5' TERM; echo $$; sleep 600 & wait"
    process = start(shared, files, "run", *HALF, *options, "--", "bash", "-c", script)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    shared.held.append(pid)
    return process, pid


@pytest.mark.parametrize("fair", some_of([False, True], 1))
def test_commands_and_waiting_requests_go_on_while_the_files_are_replaced(
    installed: tuple[SharedMachine, Path], fair: bool
) -> None:
    """At the worst moment of an upgrade there are no files."""
    shared, files = installed
    if fair:
        shared.machine.tranche("policy", "fair")
    first, pid = running(shared, files, "--time", "1h")
    second, other = running(shared, files)
    waiting = [start(shared, files, "run", *HALF, "--time", "1m", "--", "sh", "-c", "exit 6") for _ in range(2)]
    wait_until(lambda: len(shared.waiters()) == 2, waiting[0])
    shutil.rmtree(files)
    code, _, _ = shared.run("run", "--no-wait", "--gpu", "0.3", "--", "true")
    assert code == NoRoom.exit_code, "\n".join(shared.log)
    limited = next(str(each["id"]) for each in shared.shares() if each["request"]["timeLimitSeconds"])  # type: ignore[index]
    assert shared.run("extend", limited, "1m", uid=OTHER)[0] == PermissionDenied.exit_code
    assert len(json.loads(shared.run("ps", "-o", "json")[1])["allocations"]) == 2
    for process, one in ((first, pid), (second, other)):
        os.kill(one, signal.SIGTERM)
        assert process.wait(60) == 5, (process.communicate(), shared.log)
    for process in waiting:
        assert process.wait(60) == 6, (process.communicate(), shared.log)
    assert shared.service is not None
    shared.service.terminate()
    assert shared.service.wait(60) == 0, shared.log
    assert not any("the process failed" in line or "Traceback" in line for line in shared.log), shared.log
    shared.serve()
    assert shared.run("run", "-q", *HALF, "--", "true")[0] == 0
    assert shared.shares() == []


@pytest.fixture(params=[-1, 1])
def other_version(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[SharedMachine]:
    """A service of today, and clients that speak an earlier or a later version of its messages."""
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        shared = SharedMachine(machine)
        shared.serve()
        for module in (client, connection):
            monkeypatch.setattr(module, "VERSION", VERSION + request.param)
        try:
            yield shared
        finally:
            shared.end()


def test_a_client_of_another_version_is_told_so(other_version: SharedMachine) -> None:
    for arguments in (
        ("run", *HALF, "--", "true"),
        ("extend", "feedbeef", "1m"),
        ("release", "feedbeef"),
        ("ps",),
        ("explain", *HALF),
    ):
        code, out, err = other_version.run(*arguments)
        assert (code, out) == (UsageError.exit_code, ""), arguments
        assert f"the service uses version {VERSION} of the protocol" in err, arguments
        assert "use the version of Tranche that the service runs" in err


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_question_that_a_replaced_service_leaves_unanswered_is_asked_once_more(tmp_path: Path, deaths: int) -> None:
    asked: list[object] = []

    def serve() -> None:
        for number in range(2):
            accepted, _ = listener.accept()
            with closing(ServiceConnection(accepted)) as client_end:
                asked.append(client_end.receive())
                if number == deaths:
                    client_end.send({"event": "ledger"})

    with closing(listen(tmp_path / "socket")) as listener:
        service = threading.Thread(target=serve)
        service.start()
        if deaths == 1:
            assert ask(tmp_path / "socket", "ledger", 30) == ({"event": "ledger"}, [])
        else:
            with pytest.raises(ServiceUnavailable, match="the service ended before it sent the ledger"):
                ask(tmp_path / "socket", "ledger", 30)
        service.join()
    assert len(asked) == 2
