"""A request that is stopped while it has a lock: others go on, and once its owner has continued it, nobody stops it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.test_child import shell_with_job
from tests.machines import TRANCHE, TestMachine, machine_in, wait_until
from tranche.node.locks.locks import lock_holder, lock_pids
from tranche.node.state.session import StateFolder, process_stopped

SLICE = ("--mig-profile", "1g.5gb")


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process_stopped(pid))


def run_until_it_is_told(folder: Path) -> list[str]:
    """The end of a command line whose command writes down that it runs, and ends when the test says so."""
    return ["--", "sh", "-c", f"touch {folder}/ready; while [ ! -e {folder}/go ]; do sleep 0.02; done; exit 7"]


def test_ctrl_z_while_a_slice_is_made_stops_the_request_when_it_has_no_lock(a100: TestMachine) -> None:
    places, folder = StateFolder(a100.state_dir), a100.folder
    a100.tranche("ps")
    a100.machine.set_time_scale(1.0)
    with shell_with_job([*TRANCHE, "run", "-q", *SLICE, *run_until_it_is_told(folder)], a100.environment) as job:
        wait_until(lambda: any(lock_pids(each) for each in places.gpu_locks.glob("*")))
        os.write(job.terminal, b"\x1a")
        wait_until(lambda: process_stopped(job.pid))
        assert [lock_holder(each) for each in (places.decision_lock, *places.gpu_locks.iterdir())] == [None, None]
        a100.machine.set_time_scale(0)
        a100.tranche("run", "--timeout", "60", *SLICE, "--", "true")
        assert process_stopped(job.pid)
        os.killpg(job.pid, signal.SIGCONT)
        wait_until((folder / "ready").exists)
        (folder / "go").touch()
        assert os.waitstatus_to_exitcode(os.waitpid(job.shell, 0)[1]) == 7


def test_a_request_that_was_stopped_amid_its_decision_is_continued_for_good(a100: TestMachine) -> None:
    """SIGSTOP cannot be held back. Who waits continues it, and so does its owner; its share then runs to its end."""
    places, folder = StateFolder(a100.state_dir), a100.folder
    a100.tranche("ps")
    for _ in range(30):
        runs = a100.start("run", "-q", *SLICE, *run_until_it_is_told(folder))
        while lock_pids(places.decision_lock) != (runs.pid,) and not (folder / "ready").exists():
            assert runs.poll() is None
        stop(runs.pid)
        if lock_pids(places.decision_lock) == (runs.pid,):
            break
        runs.send_signal(signal.SIGCONT)
        (folder / "go").touch()
        assert runs.wait(120) == 7
        (folder / "go").unlink()
        (folder / "ready").unlink()
    else:
        pytest.fail("no request could be stopped amid its decision")
    a100.tranche("run", *SLICE, "--", "true")
    runs.send_signal(signal.SIGCONT)
    wait_until((folder / "ready").exists, runs)
    (folder / "go").touch()
    assert runs.wait(120) == 7
