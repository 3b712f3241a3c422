"""A preemptible command gives way to other requests, and starts again; nothing else ends for a request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.local.test_detached import Detaching
from tests.local.test_service import OTHER, SharedMachine, shared
from tests.machines import TestMachine, lose_ledger, machine_in, needs_root, wait_until
from tests.node.machines import node_of
from tests.node.processes import isolated
from tests.support.in_process import NOBODY
from tranche.core.allocation import WholeGpu
from tranche.core.errors import NoRoom, PermissionDenied, UsageError, WaitTimeout
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, WholeGpus
from tranche.core.usage import recent_use
from tranche.local.preemption import preempt
from tranche.local.wakeup_pipe import as_asked
from tranche.node.processes.processes import process_at
from tranche.node.state.session import pid_namespace, process_start_time
from tranche.node.store import records
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import user_name

WHOLE = ("--gpus", "1")
TICKS = os.sysconf("SC_CLK_TCK")
HUMBLE = (*WHOLE, "--preemptible")
__all__ = ["shared"]


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A100-40GB") as machine:
        machine.tranche("policy", "preemption", "--on")
        yield machine


def until_third(folder: Path, then: str = "exit 7", first: str = "exec sleep 600") -> tuple[str, ...]:
    """A command that notes each of its starts; from the third on, it ends at once."""
    return ("sh", "-c", f"echo $$ >> {folder}/starts; [ $(wc -l < {folder}/starts) -ge 3 ] && {then}; {first}")


def starts(folder: Path) -> list[int]:
    path = folder / "starts"
    return [int(each) for each in path.read_text().split()] if path.exists() else []


def folder_of_user(shared: SharedMachine) -> Path:
    folder = shared.machine.folder / "of-user"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


def started(folder: Path, count: int) -> bool:
    return len(starts(folder)) == count


def events(machine: TestMachine) -> list[str]:
    return [each["type"] for each in machine.json("events")["events"]]


def test_it_ends_for_others_and_starts_again_until_it_ends_by_itself(a100: TestMachine) -> None:
    run = a100.start("run", *HUMBLE, "--", *until_third(a100.folder))
    for count in (1, 2):
        wait_until(partial(started, a100.folder, count), run)
        done = a100.tranche("run", *WHOLE, "--", "echo", "served")
        assert done.stdout == "served\n"
        assert "Tranche is ending sh -c" in done.stderr
        assert process_at(starts(a100.folder)[count - 1]) is None, "two commands had the GPU"
    assert run.wait(60) == 7
    assert run.stderr is not None
    said = run.stderr.read()
    assert "another request needs this GPU: Tranche sends SIGTERM to this command, and SIGKILL after 30 s" in said
    assert said.count("the command was preempted, so it waits for another share") == 2
    found = events(a100)
    assert found.count("Preempted") == 2
    why = [each["message"] for each in a100.json("events")["events"] if "because" in each["message"]]
    assert why == ["the command ended with exit code 143, because another request needed its GPU"] * 2
    assert a100.json("ps") == {**a100.json("ps"), "allocations": [], "waiters": []}


def test_a_request_that_does_not_wait_ends_nothing(a100: TestMachine) -> None:
    a100.tranche("run", "--no-wait", *HUMBLE, "--", "true", code=UsageError.exit_code)
    run = a100.start("run", *HUMBLE, "--", *until_third(a100.folder))
    wait_until(lambda: bool(starts(a100.folder)), run)
    a100.tranche("run", "--no-wait", *WHOLE, "--", "true", code=NoRoom.exit_code)
    a100.tranche("run", "--timeout", "2", *WHOLE, "--", "true", code=WaitTimeout.exit_code)
    a100.tranche("run", "--timeout", "2", *HUMBLE, "--", "true", code=WaitTimeout.exit_code)
    assert "Preempted" not in events(a100)
    assert len(starts(a100.folder)) == 1
    run.terminate()
    assert run.wait(60) == 143


def test_a_command_that_is_not_preemptible_never_ends_for_others(a100: TestMachine) -> None:
    run = a100.start("run", *WHOLE, "--", *until_third(a100.folder))
    wait_until(lambda: bool(starts(a100.folder)), run)
    a100.tranche("run", "--timeout", "3", *WHOLE, "--", "true", code=WaitTimeout.exit_code)
    assert "Preempted" not in events(a100)
    run.terminate()
    assert run.wait(60) == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_its_user_ends_does_not_start_again(a100: TestMachine, number: signal.Signals) -> None:
    """Even while it ends for another request."""
    script = "trap : TERM; trap 'exit 9' INT; trap 'exit 9' USR1; while :; do sleep 0.1; done"
    run = a100.start("run", *HUMBLE, "--", *until_third(a100.folder, first=script))
    wait_until(lambda: bool(starts(a100.folder)), run)
    other = a100.start("run", *WHOLE, "--", "echo", "served")
    wait_until(lambda: "Preempted" in events(a100), other)
    run.send_signal(number)
    os.kill(starts(a100.folder)[0], signal.SIGUSR1)
    assert run.wait(60) == 9
    assert other.wait(60) == 0
    assert len(starts(a100.folder)) == 1


def test_a_command_that_waits_again_can_be_cancelled(a100: TestMachine) -> None:
    run = a100.start("run", *HUMBLE, "--", *until_third(a100.folder))
    wait_until(lambda: bool(starts(a100.folder)), run)
    other = a100.start("run", *WHOLE, "--", "sleep", "600")
    wait_until(lambda: [each["request"].get("preemptible") for each in a100.json("ps")["waiters"]] == [True], run)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    other.terminate()
    other.wait(60)


def test_those_that_are_not_preemptible_go_first(a100: TestMachine) -> None:
    holder = a100.start("run", *WHOLE, "--", "sleep", "600")
    wait_until(lambda: bool(a100.running()), holder)
    humble = a100.start("run", *HUMBLE, "--", "sh", "-c", f"echo humble >> {a100.folder}/order")
    wait_until(lambda: len(a100.json("ps")["waiters"]) == 1, humble)
    other = a100.start("run", *WHOLE, "--", "sh", "-c", f"echo other >> {a100.folder}/order")
    wait_until(lambda: len(a100.json("ps")["waiters"]) == 2, other)
    holder.terminate()
    assert [each.wait(60) for each in (other, humble)] == [0, 0]
    assert (a100.folder / "order").read_text().split() == ["other", "humble"]


def test_nothing_ends_in_vain_beside_a_program_without_a_share(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB", "A100-40GB") as machine:
        machine.tranche("policy", "preemption", "--on")
        folders = [machine.folder / name for name in ("older", "younger")]
        for folder in folders:
            folder.mkdir()
            run = machine.start("run", *HUMBLE, "--", *until_third(folder))
            wait_until(partial(started, folder, 1), run)
        share = next(each for each in machine.running() if each["pid"] == starts(folders[1])[0])
        with machine.machine.attached(share["grants"][0]["gpuUUID"]):
            assert machine.tranche("run", *WHOLE, "--", "echo", "served").stdout == "served\n"
        wait_until(partial(started, folders[0], 2))
        assert len(starts(folders[1])) == 1


def test_a_request_behind_another_preempts_too(tmp_path: Path) -> None:
    """One that waits for other GPUs is ahead of it, and what it needs comes free only later."""
    with machine_in(tmp_path, "A100-40GB", "H100-80GB-SXM", "H100-80GB-SXM") as machine:
        machine.tranche("policy", "preemption", "--on")
        h100 = (*WHOLE, "--gpu-model", "H100")
        machine.start("run", *WHOLE, "--gpu-model", "A100", "--", "sleep", "600")
        machine.start("run", *h100, "--preemptible", "--", *until_third(machine.folder))
        other = machine.start("run", *h100, "--", "sleep", "600")
        wait_until(lambda: len(machine.running()) == 3, other)
        machine.start("run", *WHOLE, "--gpu-model", "A100", "--", "true")
        wait_until(lambda: len(machine.json("ps")["waiters"]) == 1)
        both = machine.start("run", "--gpus", "2", "--gpu-model", "H100", "--", "true")
        wait_until(lambda: len(machine.json("ps")["waiters"]) == 2, both)
        other.terminate()
        assert both.wait(60) == 0


def test_without_the_administrators_word_no_command_is_preemptible(a100: TestMachine) -> None:
    a100.tranche("policy", "preemption", "--off")
    refused = a100.tranche("run", *HUMBLE, "--", "true", code=PermissionDenied.exit_code)
    assert "this machine does not allow preemptible commands" in refused.stderr
    assert "tranche policy preemption --on" in refused.stderr
    explained = a100.tranche("explain", "--gpus", "1", "--preemptible", code=PermissionDenied.exit_code)
    assert "this machine does not allow preemptible commands" in explained.stderr
    assert a100.json("policy", "list")["preemption"] is False


@pytest.mark.long
def test_a_command_whose_owner_was_killed_ends_for_others_too(a100: TestMachine) -> None:
    run = a100.start("run", *HUMBLE, "--", *until_third(a100.folder))
    wait_until(lambda: bool(starts(a100.folder)), run)
    run.kill()
    assert a100.tranche("run", *WHOLE, "--", "echo", "served").stdout == "served\n"
    assert process_at(starts(a100.folder)[0]) is None


def test_it_gives_way_and_starts_again_after_the_ledger_was_lost(a100: TestMachine) -> None:
    run = a100.start("run", *HUMBLE, "--", *until_third(a100.folder))
    wait_until(partial(started, a100.folder, 1), run)
    a100.one_running()
    lose_ledger(a100)
    a100.tranche("policy", "preemption", "--on")
    for count in (2, 3):
        assert a100.tranche("run", *WHOLE, "--", "echo", "served").stdout == "served\n"
        wait_until(partial(started, a100.folder, count))
    assert run.wait(60) == 7


@isolated
def test_a_command_that_is_asked_again_gets_no_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the clock was put back after it began, so that its end seems far away."""
    node = node_of(tmp_path, "A100-40GB")
    begun = process_start_time(os.getpid())
    keeper = ProcessKeeper(os.getpid(), begun, pid_namespace(), uid=os.getuid(), begun=begun)
    request = Request(WholeGpus(1), preemptible=True)
    limits = []
    with node.host(clock=lambda: time.time() + 86400) as before, node.host() as host:
        gpu = host.driver.observe().gpus[0].uuid
        share = before.add_holder(keeper, request, (WholeGpu(gpu),))
        waiter = host.enqueue(Request(WholeGpus(1)), command="x", pid=os.getpid())
        for later in (100.0, 200.0):
            monkeypatch.setattr("tranche.local.preemption.boot_clock", lambda: begun / TICKS + later)  # noqa: B023
            with host.deciding() as (view, queue):
                there = as_asked(host.places, queue, time.time())
                assert preempt(host, view, there, waiter.id, time.time()) == (share,)
            found = host.allocation(share)
            assert found is not None
            limits.append(found.request.time_limit)
        assert [each.name for each in host.events()].count("Preempted") == 1
    assert limits == [100, 100]


@needs_root
def test_a_user_gets_more_than_the_quota_until_others_need_it(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "quota", "--gpus", "0.5")
    code, _, error = shared.run("run", *HUMBLE, "--", "true")
    assert (code, "does not allow preemptible commands" in error) == (PermissionDenied.exit_code, True)
    shared.machine.tranche("policy", "preemption", "--on")
    folder = folder_of_user(shared)
    run = shared.start("run", *HUMBLE, "--", *until_third(folder))
    for count in (1, 2):
        wait_until(partial(started, folder, count), run)
        code, out, error = shared.run("run", "--mig-profile", "3g.20gb", "--", "echo", "served", uid=OTHER)
        assert (code, out) == (0, "served\n"), error
    assert run.wait(60) == 7
    assert shared.shares() == []
    rows = {each["name"]: each for each in shared.machine.json("report")["rows"]}
    assert rows[user_name(NOBODY)]["shares"] == 3, "it is reported"
    with closing(Ledger(shared.machine.ledger)) as ledger, ledger.read() as db:
        used = records.usage(db)
    assert recent_use(used, time.time())[NOBODY] == 0, "it does not count"
    assert recent_use(used, time.time())[OTHER] > 0


@needs_root
def test_a_preempted_command_waits_for_a_service_that_starts_again(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "preemption", "--on")
    folder = folder_of_user(shared)
    run = shared.start("run", *HUMBLE, "--", *until_third(folder))
    wait_until(partial(started, folder, 1), run)
    assert shared.service is not None
    shared.service.kill()
    shared.service.wait()
    assert shared.machine.tranche("run", *WHOLE, "--", "echo", "served").stdout == "served\n"
    time.sleep(1.5)
    assert run.poll() is None
    shared.serve()
    wait_until(partial(started, folder, 2), run)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 143


@pytest.mark.long
@needs_root
def test_a_command_without_its_run_is_asked_once_and_has_the_time_to_save(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "preemption", "--on")
    folder = folder_of_user(shared)
    save = f"echo term >> {folder}/terms; sleep 8; touch {folder}/saved; exit 0"
    script = f"trap '{save}' TERM; echo $$ >> {folder}/starts; while :; do sleep 0.2; done"
    run = shared.start("run", *HUMBLE, "--", "sh", "-c", script)
    wait_until(partial(started, folder, 1), run)
    run.kill()
    run.wait()
    waiting = [shared.start("run", *WHOLE, "--", "true", uid=OTHER) for _ in range(2)]
    wait_until((folder / "terms").exists)
    (share,) = shared.shares()
    refused = shared.machine.tranche("extend", str(share["id"]), "1h", code=UsageError.exit_code)
    assert "it is being preempted, or has reached its time limit" in refused.stderr
    assert [each.wait(150) for each in waiting] == [0, 0]
    assert (folder / "saved").exists()
    assert (folder / "terms").read_text() == "term\n"


@needs_root
@pytest.mark.parametrize("opened", ["user"], indirect=True)
def test_a_detached_run_waits_again(opened: object) -> None:
    user = Detaching(opened)  # type: ignore[arg-type]
    machine = user.machine
    machine.tranche("policy", "preemption", "--on")
    user.detach(f"echo $$ >> {user.home}/starts; exec sleep 600", options=" ".join(HUMBLE))
    wait_until(lambda: len(starts(user.home)) == 1)
    holder = machine.start("run", *WHOLE, "--", "sleep", "600")
    wait_until(lambda: [each["status"] for each in user.jobs()] == ["waiting"])
    (job,) = user.jobs()
    assert (job["allocationId"], job["exitCode"]) == (None, None)
    holder.terminate()
    holder.wait(60)
    wait_until(lambda: len(starts(user.home)) == 2)
    wait_until(lambda: [each["status"] for each in user.jobs()] == ["running"])
    code, said = user.tranche("job delete exp7")
    assert code == 0, said
    assert user.jobs() == []


def test_the_script_of_these_tests_ends_at_its_third_start(tmp_path: Path) -> None:
    codes = [subprocess.run(until_third(tmp_path, first="exit 0"), check=False).returncode for _ in range(3)]
    assert codes == [0, 0, 7], sys.argv
