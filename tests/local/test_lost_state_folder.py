"""A state folder that is lost while devices are shared: daemons, compute modes and control groups are found again, and go."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.local.test_fractions import GB, compute_mode, folder, holders, later, nothing_stays, tenant
from tests.local.test_fractions import t4 as shared_t4
from tests.local.test_memory_limits import groups, of_shares
from tests.local.test_memory_limits import t4 as limited_t4
from tests.local.test_service import SharedMachine
from tests.machines import (
    TRANCHE,
    TestMachine,
    lose_ledger,
    machine_in,
    needs_root,
    readable_folder,
    remove_under_writers,
    wait_until,
)
from tests.node.test_mps_daemons import end
from tests.support.length import some_of
from tranche.core.errors import LedgerUnavailable, NoRoom
from tranche.core.quantity import MIB
from tranche.hardware.mps_process import MpsProcess
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.state.session import StateFolder, process_command, process_lives

__all__ = ["folder", "groups", "limited_t4", "shared_t4"]  # fixtures

JOB = "context(); tell(0); wait()"


def records(machine: TestMachine) -> tuple[DaemonRecord, ...]:
    return DaemonRecordStore(StateFolder(machine.state_dir).mps).all()


@contextmanager
def ended_with(record: DaemonRecord, machine: TestMachine) -> Iterator[None]:
    """Whatever the test finds, nothing of the daemon is left after it."""
    process = MpsDaemonManager(StateFolder(machine.state_dir), machine.environment).process(record.device_uuid)
    try:
        yield
    finally:
        process.stop()


def lose(machine: TestMachine) -> None:
    remove_under_writers(machine.state_dir)


@pytest.mark.parametrize("what", some_of(["sockets and record", "record"], 1))
@pytest.mark.parametrize("shared", some_of([True, False], 1))
def test_a_daemon_whose_record_alone_is_lost_is_found_again(shared_t4: TestMachine, what: str, shared: bool) -> None:
    first = tenant(shared_t4, "--gpu-memory", "3G", code=JOB)
    assert first.told() == 0
    (before,) = records(shared_t4)
    with ended_with(before, shared_t4):
        if not shared:
            first.go_on()
            first.ended()
        for path in shared_t4.state_dir.glob("mps/*"):
            if path.suffix == ".json":
                path.unlink()
            elif what == "sockets and record" and path.is_dir():
                shutil.rmtree(path)
        if shared:
            refused = shared_t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true", code=32)
            assert ("its record was lost" if what == "record" else "has died or cannot be found") in refused.stderr
            assert process_lives(before.pid, before.started), "somebody runs there"
            first.go_on()
            first.ended()
        assert tenant(shared_t4, "--gpu-memory", "3G", code=JOB).told() == 0
        assert not process_lives(before.pid, before.started)


@pytest.mark.parametrize("what", some_of(["everything", "records"], 1))
def test_a_daemon_is_found_again_and_ends_with_the_last_who_shares(shared_t4: TestMachine, what: str) -> None:
    first = tenant(shared_t4, "--gpu-memory", "3G", code=JOB)
    assert first.told() == 0
    (before,) = records(shared_t4)
    with ended_with(before, shared_t4):
        if what == "everything":
            lose(shared_t4)
        else:
            for path in (*shared_t4.state_dir.glob("ledger.db*"), *shared_t4.state_dir.glob("mps/*.json")):
                path.unlink()
        assert before.device_uuid in shared_t4.tranche("doctor").stdout
        (holder,) = holders(shared_t4)
        assert 3 * GB <= holder["request"]["gpuMemoryBytes"] < 3 * GB + MIB, "without the context, which comes on top"
        # Nobody finds the way to a daemon without sockets: a process that the command starts now would have no limit.
        assert holder["grants"][0]["isolation"] == ("none" if what == "everything" else "soft")
        refused = shared_t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true", code=32)
        assert "a new one starts when all shares" in refused.stderr
        assert process_lives(before.pid, before.started)
        first.go_on()
        first.ended()
        wait_until(lambda: holders(shared_t4) == [])
        nothing_stays(shared_t4)
        assert not process_lives(before.pid, before.started)
        assert "was lost" not in shared_t4.tranche("doctor").stdout
        assert tenant(shared_t4, "--gpu-memory", "3G", code=JOB).told() == 0


@pytest.mark.parametrize("alive", [True, False])
def test_an_idle_daemon_and_a_server_without_one_end_at_once(shared_t4: TestMachine, alive: bool) -> None:
    shared_t4.tranche("run", "--gpu-memory", "3G", "--", "true")
    (before,) = records(shared_t4)
    with ended_with(before, shared_t4):
        process = MpsDaemonManager(StateFolder(shared_t4.state_dir)).process(before.device_uuid)
        (server,) = process.servers()
        if not alive:
            os.kill(server.pid, signal.SIGSTOP)  # it would end with its daemon
            end(before.pid)
        lose(shared_t4)
        shared_t4.tranche("run", "--gpu-memory", "3G", "--", "true")
        assert not server.lives
        assert len(records(shared_t4)) == 1
        later(shared_t4)
        nothing_stays(shared_t4)


def test_a_compute_mode_is_put_back_when_nothing_of_the_daemon_is_left_but_who_shared(shared_t4: TestMachine) -> None:
    first = tenant(shared_t4, "--gpu-memory", "3G", code=JOB)
    assert first.told() == 0
    (before,) = records(shared_t4)
    (server,) = MpsDaemonManager(StateFolder(shared_t4.state_dir)).process(before.device_uuid).servers()
    for pid in (before.pid, server.pid):
        end(pid)
    lose(shared_t4)
    holder = shared_t4.one_running()
    assert holder["grants"][0]["isolation"] == "none"
    assert compute_mode(shared_t4) == "Exclusive_Process"
    os.kill(holder["pid"], signal.SIGKILL)
    wait_until(lambda: holders(shared_t4) == [])
    nothing_stays(shared_t4)


def test_a_daemon_of_a_device_that_is_not_there_ends_too(shared_t4: TestMachine) -> None:
    pipes = StateFolder(shared_t4.state_dir).mps / "abc"
    process = MpsProcess(pipes, shared_t4.environment)
    daemon = process.start("MIG-not-there")
    try:
        shared_t4.tranche("run", "--gpu", "1", "--", "true")
        assert not daemon.lives
        assert not pipes.exists()
        assert DaemonRecordStore(StateFolder(shared_t4.state_dir).mps).look().damaged == frozenset()
    finally:
        process.stop()


def test_a_compute_mode_that_nobody_explains_is_named(shared_t4: TestMachine) -> None:
    shared_t4.tranche("ps")
    shared_t4.smi("-c", "EXCLUSIVE_PROCESS")
    assert "EXCLUSIVE_PROCESS" in shared_t4.tranche("doctor").stdout


def test_limits_of_a_lost_folder_are_found_and_lifted_with_the_share(limited_t4: TestMachine, groups: Path) -> None:
    first = tenant(limited_t4, "--gpu-memory", "3G", code=JOB)
    assert first.told() == 0
    holder = limited_t4.one_running()
    group = groups / f"tranche-{holder['id']}"
    assert group.exists()
    lose(limited_t4)
    assert group.name in limited_t4.tranche("doctor").stdout
    assert [each["id"] for each in holders(limited_t4)] == [holder["id"]]
    assert of_shares(limited_t4) == [holder["id"]]
    # Its own command cannot clear up any more.
    first.process.kill()
    first.process.wait()
    os.kill(holder["pid"], signal.SIGKILL)
    wait_until(lambda: holders(limited_t4) == [])
    wait_until(lambda: (limited_t4.tranche("gpus"), of_shares(limited_t4))[1] == [])
    assert not group.exists()


def test_limits_whose_share_ended_while_the_folder_was_lost_are_lifted_too(
    limited_t4: TestMachine, groups: Path
) -> None:
    first = tenant(limited_t4, "--gpu-memory", "3G", code=JOB)
    assert first.told() == 0
    holder = limited_t4.one_running()
    group, other = groups / f"tranche-{holder['id']}", groups / "tranche-aaaa0001"
    other.mkdir()
    try:
        lose(limited_t4)
        first.process.kill()
        first.process.wait()
        os.kill(holder["pid"], signal.SIGKILL)
        wait_until(lambda: "populated 0" in (group / "cgroup.events").read_text())
        limited_t4.tranche("run", "--gpu-memory", "3G", "--", "true")
        assert not group.exists()
        assert other.exists(), "it may be another register's"
    finally:
        other.rmdir()


@pytest.mark.parametrize("served", [False, pytest.param(True, marks=needs_root)])
@pytest.mark.parametrize("request_", ["--gpus 1", "--mig-profile 1g.5gb", "--gpu-memory 3Gi --isolation soft"])
def test_a_command_that_hides_its_environment_keeps_its_share_when_the_ledger_is_lost(
    folder: Path, request_: str, served: bool
) -> None:
    """Programs may overwrite their environment; the lock that they have inherited tells what the share is."""
    with machine_in(folder, "A100-40GB") as machine, ExitStack() as stack:
        if served:
            shared = SharedMachine(machine)
            stack.callback(shared.end)
            shared.serve()
        hides = f"touch {folder}/on; exec sleep 600"
        run = machine.start("run", "-q", *request_.split(), "--", "env", "-i", "sh", "-c", hides)
        wait_until((folder / "on").exists, run)
        (before,) = machine.json("ps")["allocations"]
        lose_ledger(machine)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        (after,) = machine.json("ps")["allocations"]
        kept = ("id", "request", "grants", "command", "created")
        assert {each: after[each] for each in kept} == {each: before[each] for each in kept}
        assert after["keeper"]["uid"] == before["keeper"]["uid"]
        machine.tranche("release", before["id"], "--terminate", "--grace", "1s")
        run.wait(60)
        wait_until(lambda: machine.json("ps")["allocations"] == [])


_SHOWS_NOTHING = """for each in /proc/$$/fd/*; do
    [ "${each##*/}" -gt 2 ] && eval "exec ${each##*/}>&-"
done
exec env -i sleep 600"""


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("served", [False, pytest.param(True, marks=needs_root)])
def test_a_command_that_shows_nothing_keeps_its_share_when_its_run_is_killed(served: bool, lost: bool) -> None:
    """Programs such as sudo close inherited files and clear the environment; the register names the command's process."""
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine, ExitStack() as stack:
        machine.cache = folder / "cache"
        ask = ("run", "-q", "--gpus", "1", "--", "bash", "-c", _SHOWS_NOTHING)
        if served:
            shared = SharedMachine(machine)
            stack.callback(shared.end)
            shared.serve()
            run = shared.start(*ask)
        else:
            run = machine.start(*ask)

        def keeper() -> int:
            """The pid of the share's keeper, 0 before it is known or without a share."""
            return next((each["keeper"].get("pid", 0) for each in machine.json("ps")["allocations"]), 0)

        wait_until(lambda: process_command(keeper()) == "sleep 600", run)
        pid = keeper()
        if lost:
            lose_ledger(machine)
            machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        run.kill()
        run.wait()
        try:
            for _ in range(3):
                machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
                assert keeper() == pid
                time.sleep(0.5)  # what the service does when a client has gone takes a moment
        finally:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: machine.json("ps")["allocations"] == [])


@pytest.mark.parametrize("known", [True, False])
def test_what_a_command_left_keeps_its_share_although_the_ledger_was_lost(tmp_path: Path, known: bool) -> None:
    """Only `tranche run` knows by descent what shows nothing, and the ledger that it has open is gone."""
    with machine_in(tmp_path, "A100-40GB") as machine:
        left, end = tmp_path / "left", tmp_path / "end"
        script = f"bash -c '{_SHOWS_NOTHING}' & echo $! > {left}; until [ -e {end} ]; do sleep 0.05; done"
        run = machine.start("run", "-q", "--gpus", "1", "--", "bash", "-c", script)
        wait_until(lambda: left.exists() and left.read_text().endswith("\n"), run)
        pid = int(left.read_text())
        wait_until(lambda: process_command(pid) == "sleep 600")
        (before,) = machine.json("ps")["allocations"]
        lose_ledger(machine)
        if known:
            machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        end.touch()
        run.wait(60)
        try:
            machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
            (after,) = machine.json("ps")["allocations"]
            assert (after["id"], after["grants"], after["keeper"]["pid"]) == (before["id"], before["grants"], pid)
        finally:
            os.kill(pid, signal.SIGKILL)
        machine.tranche("run", "--gpus", "1", "--timeout", "1m", "--", "true")


def _hidden(machine: TestMachine, *ask: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A running command that only its lock shows, and its share."""
    on = machine.folder / "on"
    run = machine.start("run", "-q", *ask, "--", "env", "-i", "sh", "-c", f"touch {on}; exec sleep 600")
    wait_until(on.exists, run)
    (share,) = machine.json("ps")["allocations"]
    return run, share


def test_a_slice_that_is_still_being_created_is_kept_when_the_ledger_is_lost(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine:
        machine.tranche("layout", "apply", "-c", "all-enabled")
        machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 4.0)
        run = machine.start("run", "-q", "--mig-profile", "2g.10gb", "--", "true")
        wait_until(lambda: [each["phase"] for each in machine.json("ps")["allocations"]] == ["preparing"], run)
        lose_ledger(machine)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        (share,) = machine.json("ps")["allocations"]
        assert share["request"]["migProfile"] == "2g.10gb"
        assert run.wait(60) == LedgerUnavailable.exit_code


@pytest.mark.parametrize("ask", ["--mig-profile 2g.10gb", "--gpu-memory 3G --isolation soft"])
def test_a_share_of_a_gpu_that_does_not_answer_is_kept_when_the_ledger_is_lost(folder: Path, ask: str) -> None:
    with machine_in(folder, "A100-40GB") as machine:
        run, before = _hidden(machine, *ask.split())
        machine.machine.inject_lost(0)
        lose_ledger(machine)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        machine.machine.inject_lost(0, lost=False)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        (after,) = machine.json("ps")["allocations"]
        assert (after["id"], after["grants"]) == (before["id"], before["grants"])
        machine.tranche("release", before["id"], "--terminate", "--grace", "1s")
        run.wait(60)
        machine.tranche("run", *ask.split(), "--timeout", "1m", "--", "true")


def test_a_time_that_was_extended_outlives_the_ledger(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine:
        run, share = _hidden(machine, "--gpus", "1", "--time", "1m")
        machine.tranche("extend", share["id"], "2h")
        (before,) = machine.json("ps")["allocations"]
        lose_ledger(machine)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        (after,) = machine.json("ps")["allocations"]
        assert after["request"] == before["request"] != share["request"]
        assert after["keeper"]["pid"] == share["keeper"]["pid"]
        machine.tranche("release", share["id"], "--terminate", "--grace", "1s")
        run.wait(60)


@pytest.mark.parametrize(
    "changed",
    some_of(
        [
            {"command": "\ud800"},
            {"keeper": {"kind": "process", "pid": [], "uid": 0}},
            {"grants": [{"kind": "gpu", "gpuUuid": []}]},
            {"created": []},
            {"command": None},
            {"keeper": {"kind": "process", "uid": "x"}},
            {"keeper": []},
            {"request": 5},
        ],
        3,
    ),
)
def test_a_damaged_note_of_a_held_lock_fails_no_command(tmp_path: Path, changed: dict[str, Any]) -> None:
    with machine_in(tmp_path, "A100-40GB", "A100-40GB") as machine:
        run, share = _hidden(machine, "--gpus", "1")
        lock = StateFolder(machine.state_dir).allocation(share["id"])
        lock.write_text(json.dumps(json.loads(lock.read_text()) | changed))
        lose_ledger(machine)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true")
        assert machine.json("ps")["allocations"] == []
        run.kill()
        run.wait()
        os.kill(share["keeper"]["pid"], signal.SIGKILL)


def test_a_session_keeps_its_share_as_a_session_when_the_ledger_is_lost(folder: Path) -> None:
    with machine_in(folder, "A100-40GB") as machine:
        shell = subprocess.Popen(["sh"], env=machine.environment, stdin=subprocess.PIPE, text=True)
        assert shell.stdin is not None
        print(f'eval "$({shlex.join(TRANCHE)} hold --gpus 1)"', file=shell.stdin, flush=True)
        wait_until(lambda: [each["phase"] for each in machine.json("ps")["allocations"]] == ["active"], None)
        (before,) = machine.json("ps")["allocations"]
        lose_ledger(machine)
        machine.tranche("run", "--no-wait", "--gpus", "1", "--", "true", code=NoRoom.exit_code)
        (after,) = machine.json("ps")["allocations"]
        assert (after["id"], after["command"]) == (before["id"], before["command"])
        machine.tranche("release", before["id"])
        assert machine.json("ps")["allocations"] == []
        shell.communicate(timeout=60)
