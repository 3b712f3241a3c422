"""The end of an MPS server under a share, seen by the share's command; processes of the test stand for daemon and servers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.machines import wait_until
from tranche.core.allocation import Allocation, FractionalShare, Phase, WholeGpu
from tranche.core.request import GpuMemory, Request
from tranche.core.sharing import Sharing
from tranche.local import watches
from tranche.local.child import beside
from tranche.local.watches import ServerEndWatch, watching_limits
from tranche.node.mps.mps_records import DaemonRecordStore, record_of
from tranche.node.state.session import boot_id, children_pids, process_start_time

GPU = "GPU-of-the-test"
# Starts a server at each word `start`, and takes note of the end of one at each word `note`, as a daemon does in its own time.
PARENT = """
import os, signal, sys
for line in sys.stdin:
    if line == "start\\n":
        pid = os.fork()
        if pid == 0:
            signal.pause()
    else:
        pid = os.wait()[0]
    print(pid, flush=True)
"""


class Parent:
    """A process in the place of a daemon."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self) -> int:
        """Have a server started; its pid."""
        return self._ask("start")

    def note(self) -> int:
        """Take note of the end of a server; its pid."""
        return self._ask("note")

    def end(self) -> None:
        """End with all servers."""
        for pid in children_pids(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def _ask(self, word: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture
def daemon() -> Iterator[Parent]:
    """A daemon without a server."""
    made = Parent()
    try:
        yield made
    finally:
        made.end()


def taken(servers: ServerEndWatch, poll: select.poll, *, seconds: float) -> tuple[int, ...]:
    return servers.take({descriptor for descriptor, _ in poll.poll(seconds * 1000)})


def test_a_server_is_named_once_however_late_its_daemon_takes_note_of_its_end(daemon: Parent) -> None:
    poll = select.poll()
    servers = ServerEndWatch([daemon.process.pid], poll)
    for _ in range(3):
        server = daemon.start()
        servers.look()
        assert taken(servers, poll, seconds=0) == ()
        os.kill(server, signal.SIGKILL)
        assert taken(servers, poll, seconds=60) == (server,)
        assert server in children_pids(daemon.process.pid), "the daemon does not know yet"
        servers.look()
        assert taken(servers, poll, seconds=0) == ()
        assert daemon.note() == server
    servers.close()


def test_of_two_servers_each_is_named(daemon: Parent) -> None:
    poll = select.poll()
    servers = ServerEndWatch([daemon.process.pid], poll)
    one, other = daemon.start(), daemon.start()
    servers.look()
    os.kill(one, signal.SIGKILL)
    assert taken(servers, poll, seconds=60) == (one,)
    servers.look()
    os.kill(other, signal.SIGKILL)
    assert taken(servers, poll, seconds=60) == (other,)
    servers.close()


@contextmanager
def watched(daemon: Parent, folder: Path, server_ended: Callable[[int], None]) -> Iterator[None]:
    """A block of a command that has a part of a GPU, whose daemon that process is."""
    pid = daemon.process.pid
    record = record_of(GPU, None, GPU, None)._replace(
        pid=pid, started=process_start_time(pid), boot=boot_id(), ready=True
    )
    records = DaemonRecordStore(folder)
    records.write(record)
    part = FractionalShare(WholeGpu(GPU), 2**30, Sharing.MPS)
    allocation = Allocation("a", Request(GpuMemory(2**30)), (part,), Phase.ACTIVE, 1.0)
    with watching_limits(allocation, records, pytest.fail, server_ended=server_ended):
        yield


def test_a_command_is_told_once_of_a_server_whose_daemon_takes_no_note(
    daemon: Parent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    looks: list[int] = []

    def children(pid: int) -> tuple[int, ...]:
        looks.append(len(told))
        return children_pids(pid)

    monkeypatch.setattr(watches, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watches, "children_pids", children)
    server = daemon.start()
    with watched(daemon, tmp_path, told.append):
        os.kill(server, signal.SIGKILL)
        # Three looks after the first word: one that told again would have done so.
        wait_until(lambda: len([each for each in looks if each]) > 3)
    assert told == [server]


def test_a_command_is_told_of_a_server_that_ends_before_the_watch_has_come_to_run(
    daemon: Parent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, told = threading.Event(), threading.Event()

    def late(name: str, work: Callable[[int], None]) -> AbstractContextManager[None]:
        def work_later(descriptor: int) -> None:
            assert ended.wait(60)
            work(descriptor)

        return beside(name, work_later)

    monkeypatch.setattr(watches, "beside", late)
    server = daemon.start()
    with watched(daemon, tmp_path, lambda pid: told.set() if pid == server else None):
        os.kill(server, signal.SIGKILL)
        assert daemon.note() == server
        ended.set()
        assert told.wait(60)
