"""`tranche serve`: users without root get shares and keep them, and no end of a process loses or doubles a share."""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.local.test_fractions import end_daemons
from tests.machines import TRANCHE, TestMachine, lose_ledger, machine_in, needs_root, readable_folder, wait_until
from tests.support import in_process
from tests.support.in_process import DROP, NOBODY
from tranche.core.errors import (
    NoRoom,
    PermissionDenied,
    QuotaExceeded,
    ServiceUnavailable,
    SimulatorError,
    UsageError,
    WaitTimeout,
)
from tranche.core.usage import DayUsage
from tranche.local import client_workload
from tranche.local.client_workload import ClientProcess, ClientWorkload
from tranche.local.service import MOST_OF_A_USER, RunService, answer
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.locks import FileLock, is_held
from tranche.node.mps.mps_records import IDLE_SECONDS
from tranche.node.processes.processes import children_of, process_at
from tranche.node.state.connection import LONGEST, VERSION, ServiceConnection, connect
from tranche.node.state.session import StateFolder
from tranche.node.store import records
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import chore_done
from tranche.node.store.schema import ADOPT_SHARES
from tranche_simulator.machine import SimulatedMachine

pytestmark = needs_root

OTHER = NOBODY + 10_000
HALF = ("--mig-profile", "3g.20gb")


class SharedMachine:
    """A machine with one A100 and the service."""

    def __init__(self, machine: TestMachine) -> None:
        self.machine = machine
        self.service: subprocess.Popen[str] | None = None
        self._started: list[subprocess.Popen[str]] = []
        self.held: list[int] = []

    def serve(self) -> subprocess.Popen[str]:
        before = self.served
        log = (self.machine.folder / "log").open("a")
        with closing(log):
            self.service = subprocess.Popen(
                [*TRANCHE, "serve"], env=self.machine.environment, stderr=log, stdin=subprocess.DEVNULL, text=True
            )
        wait_until(lambda: self.served > before, self.service)
        return self.service

    @property
    def served(self) -> int:
        """How often a service has begun."""
        return sum(line.startswith("tranche: serving") for line in self.log)

    @property
    def log(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.machine.folder / "log").read_text().splitlines()
        return []

    def start(self, *arguments: str, uid: int = NOBODY) -> subprocess.Popen[str]:
        process = in_process.start(arguments, self.machine.environment, stdout=subprocess.PIPE, user=uid)
        self._started.append(process)
        return process

    def run(self, *arguments: str, uid: int = NOBODY) -> tuple[int, str, str]:
        process = self.start(*arguments, uid=uid)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def hold(self, uid: int = NOBODY) -> tuple[subprocess.Popen[str], int]:
        """A command in half of the GPU; it prints its pid and sleeps."""
        process = self.start("run", "-q", *HALF, "--", "sh", "-c", "echo $$; exec sleep 600", uid=uid)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1] + "\n".join(self.log))
        self.held.append(int(line))
        return process, self.held[-1]

    def shares(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.machine.json("ps")["allocations"]
        return found

    def waiters(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.machine.json("ps")["waiters"]
        return found

    def end(self) -> None:
        for pid in self.held:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in [*self._started, *([self.service] if self.service else [])]:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def shared() -> Iterator[SharedMachine]:
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        made = SharedMachine(machine)
        made.serve()
        try:
            yield made
        finally:
            made.end()


def test_a_user_is_told_who_holds_what_after_the_ledger_was_lost(shared: SharedMachine) -> None:
    shared.hold()
    (share,) = shared.shares()
    lose_ledger(shared.machine)
    code, out, err = shared.run("ps", "-o", "json")
    assert (code, [each["id"] for each in json.loads(out)["allocations"]]) == (0, [share["id"]]), err


def test_a_user_runs_a_command_with_their_own_environment_and_rights(shared: SharedMachine) -> None:
    code, out, err = shared.run("run", *HALF, "--", "sh", "-c", "id -u; pwd; env; exit 7")
    assert code == 7, err
    uid, folder, *variables = out.splitlines()
    assert (int(uid), folder) == (NOBODY, "/")
    assert any(line.startswith("CUDA_VISIBLE_DEVICES=MIG-") for line in variables)
    assert "MIG slice 3g.20gb" in err
    assert shared.shares() == []


def test_a_ledger_that_was_moved_away_is_rebuilt_with_the_shares_of_users(shared: SharedMachine) -> None:
    """And no user can read the new one."""
    shared.hold()
    shared.hold(OTHER)
    before = {each["id"] for each in shared.shares()}
    for each in shared.machine.state_dir.glob("ledger.db*"):
        each.unlink()
    code, _, err = shared.run("run", "--no-wait", *HALF, "--", "true")
    assert (code, "nothing is free" in err) == (NoRoom.exit_code, True), err
    assert {each["id"] for each in shared.shares()} == before
    assert all(each.stat().st_mode & 0o077 == 0 for each in shared.machine.state_dir.glob("ledger.db*"))


def in_user_namespace(shared: SharedMachine, program: str) -> subprocess.CompletedProcess[str]:
    """Run `id -u` in a share; the program enters a namespace before it becomes the command."""
    return subprocess.run(
        [sys.executable, "-c", program, str(NOBODY), "run", "-q", *HALF, "--", "id", "-u"],
        env=shared.machine.environment,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def test_root_of_a_user_namespace_is_the_user_outside(shared: SharedMachine) -> None:
    into = """
import ctypes
libc = ctypes.CDLL(None)
libc.prctl(4, 1)  # PR_SET_DUMPABLE: after the change of user, /proc/self is root's
assert libc.unshare(0x10000000) == 0  # CLONE_NEWUSER
for name, text in ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1"):
    open(f"/proc/self/{name}", "w").write(text)
"""
    program = DROP.replace("from tranche.cli.main", f"{into}from tranche.cli.main")
    done = in_user_namespace(shared, program)
    assert done.stderr == ""
    assert done.stdout == "0\n"


def open_files(pid: int) -> list[str]:
    """What the process has open."""
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]


@pytest.mark.parametrize("nested", [False, True])
def test_a_user_has_no_more_users_by_subordinate_uids(shared: SharedMachine, nested: bool) -> None:
    """In a user namespace with lent uids, as newuidmap(1) makes it, the user changes to one of them."""
    again = """
assert libc.unshare(0x10000000) == 0
for name, text in ("setgroups", "deny"), ("uid_map", "0 5 1"), ("gid_map", "0 5 1"):
    open(f"/proc/self/{name}", "w").write(text)
"""
    become = f"""
import ctypes
libc = ctypes.CDLL(None)
told, telling = os.pipe()
told_back, telling_back = os.pipe()
user = os.getpid()
if not (lender := os.fork()):
    os.read(told, 1)
    for name in "uid_map", "gid_map":
        open(f"/proc/{{user}}/{{name}}", "w").write(f"0 {{uid}} 1\\n1 {OTHER + 1} 1000")
    os.write(telling_back, b".")
    os._exit(0)
os.setgroups([]); os.setgid(uid); os.setuid(uid)
libc.prctl(4, 1)  # PR_SET_DUMPABLE: after the change of user, /proc/self is root's
assert libc.unshare(0x10000000) == 0  # CLONE_NEWUSER
os.write(telling, b"."); os.read(told_back, 1); os.waitpid(lender, 0)
os.setgroups([]); os.setgid(5); os.setuid(5)
libc.prctl(4, 1)
{again if nested else ""}
"""
    program = DROP.replace("os.setgroups([]); os.setgid(uid); os.setuid(uid)\n", become)
    done = in_user_namespace(shared, program)
    assert (done.stdout, done.returncode) == ("", PermissionDenied.exit_code), done.stderr
    assert f"uid {OTHER + 5} is a subordinate uid" in done.stderr
    assert shared.shares() == []
    assert shared.service is not None
    assert not [each for each in open_files(shared.service.pid) if each.startswith("user:")]


def test_a_command_that_a_signal_ends_has_its_code(shared: SharedMachine) -> None:
    assert shared.run("run", "-q", *HALF, "--", "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL


def test_a_listing_names_the_user(shared: SharedMachine) -> None:
    shared.hold()
    shared.hold(OTHER)
    wait_until(lambda: all(each["pid"] for each in shared.shares()))
    owners = [each["owner"] for each in shared.shares()]
    assert owners == [{"kind": "user", "name": str(NOBODY)}, {"kind": "user", "name": str(OTHER)}]


def test_a_users_checkup_asks_the_service_instead_of_the_state_folder(shared: SharedMachine) -> None:
    shared.hold()
    code, out, err = shared.run("doctor")
    assert code == 0, (out, err)
    assert "partitions GPUs for this user" in out
    assert err.startswith("next: tranche run ")
    assert shared.service is not None
    shared.service.send_signal(signal.SIGSTOP)
    code, out, err = shared.run("doctor")
    shared.service.send_signal(signal.SIGCONT)
    assert (code, "has not answered within 5 s" in out) == (1, True), out
    shared.service.terminate()
    shared.service.wait()
    code, out, err = shared.run("doctor")
    assert code == 1
    assert "next:" not in err


def test_a_user_is_told_what_the_service_can_do(shared: SharedMachine) -> None:
    ceiling = ("--gpu-memory", "2G", "--compute", "20")
    code, out, err = shared.run("explain", *ceiling)
    assert (code, out.startswith("Startable:")) == (0, True), (out, err)
    assert shared.run("run", *ceiling, "--", "true")[0] == 0
    end_daemons(shared.machine)


def all_reaped(service: RunService) -> bool:
    service._reap()
    return True


def test_the_service_puts_the_machine_in_order_some_time_after_a_share_has_ended(tmp_path: Path) -> None:
    ordered = tmp_path / "ordered"

    @contextmanager
    def open_host(uid: int) -> Iterator[Host]:
        yield cast(Host, SimpleNamespace(view=lambda seconds, thorough: ordered.write_text(f"{uid} {thorough}")))

    with socket.socket() as listener, selectors.DefaultSelector() as selector, FileLock(tmp_path / "lock") as lock:
        service = RunService(listener, lock, tmp_path / "ledger.db", open_host, lambda line: None)
        assert service._tidy_at == math.inf
        request = subprocess.Popen(["true"])
        service._served[request.pid] = ClientProcess(os.getpid(), NOBODY, -1)
        wait_until(lambda: all_reaped(service) and not service._served)
        assert time.monotonic() + IDLE_SECONDS < service._tidy_at < time.monotonic() + 2 * IDLE_SECONDS
        service._tidy(selector)
        wait_until(ordered.exists)
        wait_until(lambda: ordered.read_text() == f"{os.getuid()} True")
        wait_until(lambda: all_reaped(service) and not children_of(os.getpid()))
        assert service._tidy_at == math.inf, "its own end is no share's"
        request.returncode = 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--mig-profile", "9g.90gb"), 30, "9g.90gb"),
        (("--gpus", "2"), 31, ""),
        (("--adopt-foreign=destroy", *HALF), 22, "ask an administrator"),
    ],
)
def test_a_refusal_has_the_code_and_words_of_the_same_request_by_root(
    shared: SharedMachine, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, _, err = shared.run("run", *arguments, "--", "true")
    assert found == code
    assert words in err
    assert "Traceback" not in err
    if arguments[0] != "--adopt-foreign=destroy":
        assert err == shared.machine.tranche("run", *arguments, "--", "true", code=code).stderr


def test_a_request_waits_says_why_and_starts_when_there_is_room(shared: SharedMachine) -> None:
    first, pid = shared.hold()
    shared.hold(OTHER)
    third = shared.start("run", *HALF, "--", "true")
    wait_until(lambda: len(shared.waiters()) == 1, third)
    assert shared.waiters()[0]["pid"] == third.pid
    assert shared.run("run", "--no-wait", *HALF, "--", "true")[0] == NoRoom.exit_code
    os.kill(pid, signal.SIGTERM)
    assert first.wait(60) == 128 + signal.SIGTERM
    assert third.wait(60) == 0
    assert third.stderr is not None
    assert "waiting" in third.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_request_whose_client_ends_leaves_the_queue(shared: SharedMachine, number: signal.Signals) -> None:
    shared.hold()
    shared.hold()
    third = shared.start("run", *HALF, "--", "true")
    wait_until(lambda: len(shared.waiters()) == 1, third)
    third.send_signal(number)
    assert third.wait(60) in (128 + number, -number)
    wait_until(lambda: shared.waiters() == [])


def test_a_stopped_client_is_not_granted_a_share_until_it_goes_on(shared: SharedMachine) -> None:
    held = [shared.hold(OTHER), shared.hold(OTHER)]
    stopped = shared.start("run", "-q", *HALF, "--", "true")
    wait_until(lambda: len(shared.waiters()) == 1, stopped)
    stopped.send_signal(signal.SIGSTOP)
    for each, _ in held:
        each.terminate()
        each.wait(60)
    wait_until(lambda: shared.shares() == [])
    assert shared.run("run", "-q", *HALF, "--", "true", uid=OTHER)[0] == 0
    assert len(shared.waiters()) == 1
    assert shared.shares() == []
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait(60) == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_a_command_of_a_user_ends_at_its_time_also_if_its_client_is_stopped(
    shared: SharedMachine, stopped: bool
) -> None:
    process = shared.start("run", "-q", *HALF, "--time", "2s", "--", "sh", "-c", "echo $$; sleep 600 & exec sleep 600")
    assert process.stdout is not None
    shared.held.append(int(process.stdout.readline()))
    if stopped:
        process.send_signal(signal.SIGSTOP)
    wait_until(lambda: shared.shares() == [])
    assert process.wait(20) == 128 + signal.SIGTERM
    assert process.stderr is not None
    assert "the time limit of 2s has passed" in process.stderr.read()


@pytest.mark.long
@pytest.mark.parametrize("client", [False, True])
def test_the_service_ends_a_command_whose_own_process_was_killed(shared: SharedMachine, client: bool) -> None:
    process = shared.start("run", "-q", *HALF, "--time", "2s", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert process.stdout is not None
    shared.held.append(int(process.stdout.readline()))
    if client:
        process.kill()
    else:
        service = shared.service
        assert service is not None
        for pid in children(service.pid):
            os.kill(pid, signal.SIGKILL)
        service.kill()
        service.wait()
        shared.serve()
    wait_until(lambda: shared.shares() == [])
    assert process_at(shared.held[-1]) is None
    assert shared.machine.json("events")["events"][-1]["message"] == "its time limit had passed"


def test_a_quota_gives_a_users_command_its_time_limit(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "quota", "--time", "2s")
    code, _, error = shared.run("run", *HALF, "--", "sleep", "600")
    assert code == 128 + signal.SIGTERM
    assert "hard isolation, for at most 2s" in error
    assert "the time limit of 2s has passed" in error
    code, _, error = shared.run("run", *HALF, "--time", "3s", "--", "true")
    assert (code, "commands can run for at most 2s" in error) == (37, True)


def test_users_extend_their_own_commands_while_no_request_waits_for_the_gpu(shared: SharedMachine) -> None:
    process = shared.start("run", "-q", *HALF, "--time", "10m", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert process.stdout is not None
    shared.held.append(int(process.stdout.readline()))
    (share,) = shared.shares()
    id = str(share["id"])
    code, _, error = shared.run("extend", id, "1h", uid=OTHER)
    assert (code, error.partition("\n")[0]) == (22, f"error: allocation {id} belongs to another user")
    assert shared.run("extend", id[:5], "1h") == (0, "", f"{id}: the time limit is now 1h10m; it was 10m\n")
    whole = shared.start("run", "-q", "--gpus", "1", "--", "true", uid=OTHER)
    wait_until(lambda: len(shared.waiters()) == 1, whole)
    (queued,) = shared.waiters()
    code, _, error = shared.run("extend", str(queued["id"]), "1h", uid=OTHER)
    assert (code, "is still waiting" in error) == (2, True)
    code, _, error = shared.run("extend", id, "1h")
    assert code == 32
    assert "is waiting for a GPU of allocation" in error
    assert f"{id}: the time limit is now 2h10m; it was 1h10m\n" in shared.machine.tranche("extend", id, "1h").stderr
    assert shared.shares()[0]["request"]["timeLimitSeconds"] == 7800  # type: ignore[index]
    whole.terminate()
    wait_until(lambda: shared.waiters() == [])
    shared.machine.tranche("policy", "quota", "--time", "3h")
    assert shared.run("extend", id, "1h")[0] == 37
    shared.machine.tranche("policy", "quota", "--remove")
    shared.hold(OTHER)
    other = next(str(each["id"]) for each in shared.shares() if each["id"] != id)
    assert shared.run("extend", other, "1h", uid=OTHER)[0] == 2
    assert shared.run("extend", "feedbeef", "1h")[0] == 34


def test_a_share_outlives_service_and_request_process_and_client(shared: SharedMachine) -> None:
    """Each is killed in turn; the share lasts as long as the command, is given to nobody else, and is free after it."""
    client, pid = shared.hold()
    (before,) = shared.shares()
    assert shared.service is not None
    workers = children(shared.service.pid)
    shared.service.kill()
    shared.service.wait()
    for each in workers:
        os.kill(each, signal.SIGKILL)
    client.kill()
    client.wait()
    os.kill(pid, 0)
    assert [each["id"] for each in shared.shares()] == [before["id"]]
    shared.serve()
    _, other = shared.hold(OTHER)
    taken = {json.dumps(each["grants"][0]["placement"]) for each in shared.shares()}  # type: ignore[index]
    assert len(taken) == 2
    for each in (pid, other):
        os.kill(each, signal.SIGKILL)
    wait_until(lambda: shared.shares() == [])


def test_a_command_ends_with_its_own_code_after_the_service_was_killed(shared: SharedMachine) -> None:
    go_on = shared.machine.folder / "go-on"
    script = f"echo on; while [ ! -e {go_on} ]; do sleep 0.05; done; exit 5"
    process = shared.start("run", *HALF, "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    assert shared.service is not None
    workers = children(shared.service.pid)
    shared.service.kill()
    shared.service.wait()
    for each in workers:
        os.kill(each, signal.SIGKILL)
    go_on.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert "the next tranche command frees it" in err
    shared.serve()
    assert shared.run("run", *HALF, "--", "true")[0] == 0
    assert shared.shares() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_service_that_ends_lets_its_requests_go_on(shared: SharedMachine, number: signal.Signals) -> None:
    client, pid = shared.hold()
    assert shared.service is not None
    shared.service.send_signal(number)
    assert shared.service.wait(30) == 0
    assert "the service is stopping" in shared.log[-1]
    assert shared.run("run", *HALF, "--", "true")[0] == ServiceUnavailable.exit_code
    shared.serve()
    assert shared.run("run", *HALF, "--", "true")[0] == 0
    os.kill(pid, signal.SIGTERM)
    assert client.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: shared.shares() == [])


def test_what_a_command_leaves_running_keeps_the_share(shared: SharedMachine) -> None:
    code, out, err = shared.run("run", *HALF, "--", "sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!")
    assert code == 0
    assert "keeps the share" in err
    assert len(shared.shares()) == 1
    os.kill(int(out), signal.SIGKILL)
    wait_until(lambda: shared.shares() == [])


_LEFT = {
    "with the lock": "sleep 600 >/dev/null 2>&1 & echo $!; sleep 600 >/dev/null 2>&1 & echo $!",
    "with the environment": "exec {lock}>&-; setsid sleep 600 >/dev/null 2>&1 & echo $!",
    "by descent": "exec {lock}>&-; env -i setsid sleep 600 >/dev/null 2>&1 & echo $!; env -i sleep 601 >/dev/null 2>&1 & echo $!",
}
_CLOSED = "for lock in /proc/$$/fd/*; do lock=${lock##*/}; case $lock in [012]|255) continue;; esac; "


@pytest.mark.parametrize(
    ("left", "dead"), [("with the lock", 1), ("with the environment", 0), ("by descent", 0), ("by descent", 1)]
)
def test_a_user_ends_what_a_command_left_running(shared: SharedMachine, left: str, dead: int) -> None:
    script = _LEFT[left].replace("exec {lock}>&-;", f"{_CLOSED} exec {{lock}}>&-; done;")
    code, out, err = shared.run("run", *HALF, "--", "bash", "-c", script)
    assert code == 0, err
    pids = [int(each) for each in out.split()]
    shared.held += pids
    (share,) = shared.shares()
    for pid in pids[:-1][:dead]:
        os.kill(pid, signal.SIGKILL)
    code, out, err = shared.run("ps", "-o", "json")
    assert [each["owner"]["name"] for each in json.loads(out)["allocations"]] == [str(NOBODY)]
    assert str(pids[-1]) in shared.run("release", str(share["id"]))[2]
    code, _, err = shared.run("release", str(share["id"]), "--terminate")
    assert (code, err.startswith(f"released {share['id']} after SIGTERM to pid ")) == (0, True), err
    assert not any(map(process_at, pids))
    assert shared.shares() == []


def test_a_users_listing_shows_no_share_of_an_ended_command(shared: SharedMachine) -> None:
    _, out, _ = shared.run("run", "-q", *HALF, "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
    os.kill(int(out), signal.SIGKILL)
    wait_until(lambda: process_at(int(out)) is None)
    assert json.loads(shared.run("ps", "-o", "json")[1])["allocations"] == []


def test_users_release_their_own_shares_and_requests_and_no_others(shared: SharedMachine) -> None:
    client, _ = shared.hold()
    shared.hold()
    waiting = shared.start("run", "-q", *HALF, "--", "true")
    wait_until(lambda: len(shared.waiters()) == 1 and all(each["pid"] for each in shared.shares()), waiting)
    (queued,), (share, _) = shared.waiters(), shared.shares()
    for id in (queued["id"], share["id"]):
        code, _, err = shared.run("release", str(id), "--terminate", uid=OTHER)
        assert code == 22, err
    code, _, err = shared.run("release", str(share["id"]), uid=OTHER)
    assert f"the share belongs to {NOBODY}: only {NOBODY} and root can end it" in err
    assert len(shared.waiters()) == 1
    assert len(shared.shares()) == 2
    assert shared.run("release", str(queued["id"]))[0] == 0
    wait_until(lambda: shared.waiters() == [])
    code, _, err = shared.run("release", str(share["id"]), "--terminate")
    assert code == 0, err
    assert client.wait(60) == 128 + signal.SIGTERM
    assert [each["id"] for each in shared.shares()] != [share["id"]]
    assert len(shared.shares()) == 1


def test_inside_a_share_there_is_no_other(shared: SharedMachine) -> None:
    shared.hold()
    (share,) = shared.shares()
    inside = {**shared.machine.environment, "TRANCHE_ALLOCATION": str(share["id"])}
    code = f"""
import sys
from pathlib import Path
from tranche.node.state.connection import connect
connection = connect(Path(sys.argv[1]))
connection.send({asking()!r})
print(connection.receive()[0]["event"], connection.receive()[0]["message"])
"""
    path = str(StateFolder(shared.machine.state_dir).socket)
    done = subprocess.run([sys.executable, "-c", code, path], env=inside, capture_output=True, text=True, check=True)
    assert f"inside share {share['id']}" in done.stdout


# What a hostile client may do. Each test ends with a request that works.


def asking(**more: object) -> dict[str, object]:
    parameters: dict[str, object] = {
        "request": {"mig_profile": "3g.20gb"},
        "command": "true",
        "wait": True,
        "timeout": None,
        **more,
    }
    return {"version": VERSION, "method": "run", "parameters": parameters}


def connected(shared: SharedMachine) -> closing[ServiceConnection]:
    return closing(connect(StateFolder(shared.machine.state_dir).socket))


def last_of(connection: ServiceConnection) -> dict[str, object]:
    """The last message before the service closes the connection."""
    found: dict[str, object] = {}
    while (received := connection.receive()) is not None:
        found = received[0]
        for each in received[1]:
            os.close(each)
    return found


def granted(connection: ServiceConnection) -> None:
    """Read until the share is granted, and let its lock go, which its user cannot write to."""
    while (received := connection.receive()) is not None and received[0]["event"] != "granted":
        pass
    assert received is not None
    for each in received[1]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(each, b"x")
        os.close(each)


def test_messages_that_the_service_does_not_understand_are_refused(shared: SharedMachine) -> None:
    for message in (
        {},
        {"version": VERSION},
        {"version": 99, "method": "run"},
        {"version": VERSION, "method": "exec", "parameters": {}},
        asking(request={}),
        asking(request={"mig_profile": "3g.20gb", "uid": "0"}),
        asking(request={"gpus": 1}),
        asking(command="\ud800"),
        asking(request={"gpu": "0." + "3" * 300}),
        asking(request={"gpu": "1e999999999"}),
        asking(timeout=-1),
        asking(timeout=float("nan")),
        asking(timeout=True),
        asking(uid=0),
        asking(cdi="yes"),
        {**asking(), "uid": 0},
    ):
        with connected(shared) as connection:
            connection.send(message)
            found = last_of(connection)
        assert (found["event"], found["reason"]) == ("error", UsageError.reason), message


def test_bytes_that_are_no_message_are_refused(shared: SharedMachine) -> None:
    for packet in (b"{", b"[]", b"\xff", b"[" * 20_000, b"9" * 20_000, b"x" * (LONGEST + 1)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
            raw.connect(str(StateFolder(shared.machine.state_dir).socket))
            raw.send(packet)
            found = last_of(ServiceConnection(raw))
        assert found["reason"] == UsageError.reason, packet
        assert shared.run("run", "-q", *HALF, "--", "true")[0] == 0


def test_files_that_a_client_sends_are_closed(shared: SharedMachine) -> None:
    reading, writing = os.pipe()
    with connected(shared) as connection, open(reading, "rb") as end:
        connection.send(asking(), [writing] * 3)
        os.close(writing)
        assert end.read() == b""  # the last copy is closed while the connection is still open
        received = connection.receive()
        assert received is not None


def test_a_process_that_is_not_the_clients_child_is_refused(shared: SharedMachine) -> None:
    with connected(shared) as connection:
        connection.send(asking())
        granted(connection)
        connection.send({"started": 1})
        assert last_of(connection)["reason"] == UsageError.reason
    assert shared.shares() == []


def test_a_client_that_answers_nonsense_loses_its_share(shared: SharedMachine) -> None:
    for nonsense in ({"started": "x"}, {"started": -1}, {"started": True}, {"ended": 0}, {}):
        with connected(shared) as connection:
            connection.send(asking())
            granted(connection)
            connection.send(nonsense)
            last_of(connection)
            assert shared.shares() == [], nonsense


def test_a_share_whose_command_does_not_start_is_taken_back_although_the_client_keeps_the_lock(
    shared: SharedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_workload, "_STARTS_WITHIN_SECONDS", 0.5)
    ours, theirs = (ServiceConnection(each) for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    lock = FileLock(shared.machine.folder / "lock")
    with closing(ours), closing(theirs):
        workload = ClientWorkload(ours, ClientProcess(os.getpid(), 0, os.pidfd_open(os.getpid())), "work")
        held = SimpleNamespace(allocation=SimpleNamespace(id="a"), lock=lock, group=None)
        child = subprocess.Popen(["sleep", "600"])
        try:
            with pytest.raises(WaitTimeout, match="did not start within"):
                workload.run(cast(HeldAllocation, held), {}, lambda pid: None, lambda: None)
            assert workload.orphans() == (), "nothing of the client runs in the share"
        finally:
            child.kill()
            child.wait()
        received = theirs.receive()
        assert received is not None
        (kept,) = received[1]
        lock.release()
        assert not is_held(shared.machine.folder / "lock")
        os.close(kept)


@pytest.mark.long
def test_a_client_stopped_between_grant_and_start_loses_its_share_and_is_told(shared: SharedMachine) -> None:
    first, _ = shared.hold()
    second, _ = shared.hold()
    with connected(shared) as stopped:
        stopped.send(asking(request={"mig_profile": "3g.20gb", "time": "5s"}))
        wait_until(lambda: len(shared.waiters()) == 1)
        first.kill()
        os.kill(shared.held[0], signal.SIGKILL)
        granted(stopped)
        waits = shared.start("run", "-q", *HALF, "--", "true")
        assert waits.wait(60) == 0
        assert last_of(stopped)["reason"] == WaitTimeout.reason
    second.kill()


def test_a_client_that_says_nothing_is_dropped_and_others_are_served_meanwhile(shared: SharedMachine) -> None:
    with connected(shared) as silent:
        assert shared.run("run", "-q", *HALF, "--", "true")[0] == 0
        assert silent.receive() is None


def test_a_client_that_does_not_read_holds_nobody_up(shared: SharedMachine) -> None:
    shared.hold()
    shared.hold()
    with connected(shared) as deaf:
        deaf.send(asking())
        wait_until(lambda: len(shared.waiters()) == 1)
        other = shared.start("run", "-q", *HALF, "--", "true")
        wait_until(lambda: len(shared.waiters()) == 2, other)
        other.send_signal(signal.SIGINT)
        assert other.wait(60) == 128 + signal.SIGINT
    wait_until(lambda: shared.waiters() == [])


def test_a_user_lists_shares_but_cannot_lock_the_ledger(shared: SharedMachine) -> None:
    """A reader's lock on a file that SQLite locks, too, would hold up every decision of the machine."""
    shared.hold()
    reader = f"""
import glob, os, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
for each in glob.glob(sys.argv[1] + "*"):
    try:
        print(each, os.open(each, os.O_RDONLY))
    except PermissionError:
        pass
"""
    ledger = shared.machine.state_dir / "ledger.db"
    assert ledger.is_file()
    assert subprocess.run([sys.executable, "-c", reader, str(ledger)], check=True, capture_output=True).stdout == b""
    code, out, err = shared.run("ps", "-o", "json", uid=OTHER)
    assert code == 0, err
    assert [each["id"] for each in json.loads(out)["allocations"]] == [each["id"] for each in shared.shares()]
    assert shared.service is not None
    shared.service.terminate()
    shared.service.wait()
    code, out, err = shared.run("ps", uid=OTHER)
    assert code == ServiceUnavailable.exit_code, err
    assert "tranche serve" in err


@pytest.mark.parametrize(
    ("message", "event"), [({"version": VERSION, "method": "ledger"}, "ledger"), (asking(), "error")]
)
def test_a_user_with_all_their_runs_can_still_list_them(tmp_path: Path, message: dict[str, object], event: str) -> None:
    with socket.socket() as listener, ExitStack() as stack:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here, there = (stack.enter_context(closing(ServiceConnection(each))) for each in ends)
        here.send(message)
        peer = ClientProcess(os.getpid(), NOBODY, os.pidfd_open(os.getpid()))
        stack.callback(os.close, peer.handle)
        lock = stack.enter_context(FileLock(tmp_path / "lock"))
        ledger = stack.enter_context(closing(Ledger(tmp_path / "ledger.db")))
        with ledger.write() as db:
            chore_done(db, ADOPT_SHARES)
        service = RunService(listener, lock, ledger.path, lambda uid: pytest.fail("opened"), lambda line: None)
        answer(there, peer, service, full=True)
        received = here.receive()
    assert received is not None
    assert received[0]["event"] == event
    assert received[0].get("reason") in (None, NoRoom.reason)
    for each in received[1]:
        os.close(each)


def test_a_stopped_service_keeps_no_client_longer_than_its_time(shared: SharedMachine) -> None:
    assert shared.service is not None
    shared.service.send_signal(signal.SIGSTOP)
    try:
        code, _, err = shared.run("run", "--timeout", "2", *HALF, "--", "true")
    finally:
        shared.service.send_signal(signal.SIGCONT)
    assert code == ServiceUnavailable.exit_code
    assert "has not answered within 2 s" in err
    assert "run the command again; if the service still does not answer, ask an administrator to restart it" in err
    assert shared.run("run", "-q", *HALF, "--", "true")[0] == 0


def test_a_client_in_a_pid_namespace_is_refused_before_it_waits(shared: SharedMachine) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", DROP, str(NOBODY)]
    done = subprocess.run(
        [*command, "run", *HALF, "--", "true"],
        env=shared.machine.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == PermissionDenied.exit_code
    assert "PID namespace" in done.stderr
    assert not any("asks for" in line for line in shared.log)


def test_one_user_cannot_take_all_places(shared: SharedMachine) -> None:
    """A crowd of connections of one user is refused from some number on, with the reason; another user is served."""
    code = f"""
import os, socket, sys, json
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
kept = []
for each in range({MOST_OF_A_USER} + 10):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(sys.argv[1])
    kept.append(one)
refused = [json.loads(each.recv(10000))["reason"] for each in kept[-10:]]
print(refused == ["NoRoom"] * 10, flush=True)
sys.stdin.read()
"""
    path = str(StateFolder(shared.machine.state_dir).socket)
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crowd:
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "True\n"
        assert shared.run("run", "-q", *HALF, "--", "true", uid=OTHER)[0] == 0
        crowd.kill()


def test_a_second_service_is_refused_and_a_dead_ones_socket_is_replaced(shared: SharedMachine) -> None:
    done = shared.machine.tranche("serve", code=ServiceUnavailable.exit_code)
    assert "another service" in done.stderr
    assert shared.service is not None
    shared.service.kill()
    shared.service.wait()
    code, _, err = shared.run("run", "-q", *HALF, "--", "true")
    assert (code, "the service may still be starting; if not, ask" in err) == (ServiceUnavailable.exit_code, True), err
    shared.serve()
    assert shared.run("run", "-q", *HALF, "--", "true")[0] == 0


def test_a_service_compiles_the_simulator_before_anyone_waits_for_it(tmp_path: Path) -> None:
    SimulatedMachine.create("m", boards=["T4"], root=tmp_path)
    variables = {"TRANCHE_SIM_ROOT": str(tmp_path), "TRANCHE_CACHE_DIR": str(tmp_path / "cache"), "CC": "false"}
    done = in_process.run_anew(("--simulate", "m", "serve"), {**os.environ, **variables})
    assert (done.code, "the C compiler could not build" in done.stderr) == (SimulatorError.exit_code, True), done.stderr
    assert not StateFolder(tmp_path / "m" / "tranche").socket.exists()


def test_a_service_that_nobody_can_reach_ends_and_another_takes_its_place(
    shared: SharedMachine, tmp_path: Path
) -> None:
    path = StateFolder(shared.machine.state_dir).socket
    first = shared.service
    assert first is not None
    path.unlink()
    path.mkdir()
    assert first.wait(60) == ServiceUnavailable.exit_code
    assert any("was removed or replaced" in line for line in shared.log)
    assert subprocess.run([*TRANCHE, "serve"], env=shared.machine.environment, check=False).returncode == 2
    path.rmdir()
    shared.serve()
    assert shared.run("run", "-q", *HALF, "--", "true")[0] == 0


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_connection_that_another_process_keeps_ends_with_the_process_that_made_it(shared: SharedMachine) -> None:
    """Else the pid of the one that ended, and with it the share, could become that of a stranger."""
    shared.hold()
    shared.hold()
    path = StateFolder(shared.machine.state_dir).socket
    ours, theirs = socket.socketpair()
    maker = os.fork()
    if maker == 0:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(str(path))
        made.send(json.dumps(asking()).encode())
        socket.send_fds(theirs, [b"here"], [made.fileno()])
        theirs.recv(1)
        os._exit(0)
    with ours, theirs:
        _, (kept,), _, _ = socket.recv_fds(ours, 10, 1)
        wait_until(lambda: len(shared.waiters()) == 1)
        assert shared.waiters()[0]["pid"] == maker
        ours.send(b"x")
        os.waitpid(maker, 0)
        wait_until(lambda: shared.waiters() == [])
    os.close(kept)


def test_a_user_gets_a_part_of_a_gpu_by_a_daemon_that_serves_every_user() -> None:
    with readable_folder() as folder, machine_in(folder, machine_type="g4dn.xlarge") as machine:
        machine.cache = folder / "cache"
        made = SharedMachine(machine)
        made.serve()
        try:
            code, out, err = made.run(
                "run", "--gpu-memory", "3G", "--", "sh", "-c", "env; test -x $CUDA_MPS_PIPE_DIRECTORY"
            )
            assert code == 0, err
            assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=" in out
            assert made.shares() == []
        finally:
            made.end()
            end_daemons(machine)


def test_a_user_beyond_the_limit_waits_and_holds_no_other_up(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "quota", "--user", str(NOBODY), "--shares", "1")
    mine, _ = shared.hold()
    second = shared.start("run", *HALF, "--", "true")
    wait_until(lambda: len(shared.waiters()) == 1, second)
    other, _ = shared.hold(OTHER)
    (waiter,) = shared.waiters()
    code, out, _ = shared.run("explain", str(waiter["id"]))
    assert (code, "the user may hold at most 1 share at once, already holds 1, and this request needs 1" in out) == (
        0,
        True,
    ), out
    code, out, _ = shared.run("explain", "--mig-profile", "1g.5gb", "-o", "json", uid=OTHER)
    assert (code, [each["obstacle"]["reason"] for each in json.loads(out)["gpus"]]) == (0, ["NoRoom"])
    code, _, err = shared.run("run", "--no-wait", *HALF, "--", "true")
    assert (code, "no share for" in err) == (NoRoom.exit_code, True)
    for process in (other, mine):
        process.kill()
    os.kill(shared.held[0], signal.SIGKILL)
    assert second.wait(60) == 0


def test_a_fair_queue_serves_first_who_has_used_less_and_says_so(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "fair")
    first, _ = shared.hold()
    second, _ = shared.hold()
    mine = shared.start("run", *HALF, "--", "sleep", "600")
    wait_until(lambda: len(shared.waiters()) == 1, mine)
    others = shared.start("run", *HALF, "--", "sh", "-c", "exit 3", uid=OTHER)
    wait_until(lambda: len(shared.waiters()) == 2, others)
    assert [cast(dict[str, str], each["owner"])["name"] for each in shared.waiters()] == [str(OTHER), str(NOBODY)]
    assert mine.stderr is not None
    turns = [mine.stderr.readline().split(":")[1] for _ in range(2)]
    assert turns == [" waiting, next in the queue", " waiting, 1 ahead in the queue"]
    waits = shared.waiters()[1]["id"]
    code, out, _ = shared.run("explain", str(waits))
    assert (code, f"{OTHER} goes first: 0.00 GPU-hours used, " in out) == (0, True), out
    code, out, _ = shared.run("explain", *HALF, "-o", "json")
    document = json.loads(out)
    assert (document["waitersAhead"], [each["user"] for each in document["fairness"]][1]) == (2, str(OTHER))
    code, out, _ = shared.run("explain", *HALF, "-o", "json", uid=OTHER)
    assert json.loads(out)["waitersAhead"] == 1, "a new request of the other user goes before mine, too"
    os.kill(shared.held[0], signal.SIGKILL)
    first.wait(60)
    assert others.wait(60) == 3
    wait_until(lambda: not shared.waiters(), mine)
    mine.kill()
    second.kill()


def test_the_hours_of_the_week_count_and_the_next_request_waits(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "quota", "--user", str(NOBODY), "--gpu-hours", "1")
    with closing(Ledger(shared.machine.ledger)) as ledger, ledger.write() as db:
        records.add_usage(db, [DayUsage(int(time.time() // 86400) - 6, NOBODY, 3599.0, 3599.0, 1)])
    code, _, err = shared.run("run", "--gpus", "1", "--", "sleep", "1.2")
    assert (code, err.count("Quota")) == (0, 0), err
    code, _, err = shared.run("run", "--no-wait", *HALF, "--", "true")
    assert (code, "may use at most 1 GPU-hour in seven days, and has used 1" in err) == (NoRoom.exit_code, True), err
    assert shared.run("run", "--no-wait", *HALF, "--", "true", uid=OTHER)[0] == 0


def test_a_request_larger_than_the_limit_is_refused(shared: SharedMachine) -> None:
    shared.machine.tranche("policy", "quota", "--gpus", "0.5")
    code, _, err = shared.run("run", "--gpus", "1", "--", "true")
    assert (code, "exceeds the quota: the user may hold at most 0.5 GPUs" in err) == (QuotaExceeded.exit_code, True)
    assert shared.machine.tranche("run", "--gpus", "1", "--", "true").returncode == 0, "root has no limits of everyone"
    shared.machine.tranche("policy", "quota", "--remove")
    assert shared.run("run", "--gpus", "1", "--", "true")[0] == 0
