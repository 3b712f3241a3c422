"""`tranche run --detach`: a command survives its session, and what is said of it is true, whatever is killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.test_reference_pages import described_objects
from tests.local.sessions import HALF, OpenSession, Session, ended, shares, waiters
from tests.local.test_service import SharedMachine
from tests.machines import wait_until
from tests.support.in_process import NOBODY
from tests.support.length import some_of
from tranche.cli.detached import run_detached
from tranche.cli.runtime import Settings
from tranche.core.errors import (
    CommandNotFound,
    GpuBusy,
    JobFailed,
    KubeconfigInvalid,
    OutputUnwritable,
    TooManyGpus,
    UsageError,
    WaitTimeout,
)
from tranche.local.child import Launch
from tranche.local.jobs import MOST_ENDED, JobLaunch, JobStore, MachineJob, open_jobs
from tranche.node.locks.interrupts import heed_signals
from tranche.node.processes.processes import process_at

NO_LAUNCH = JobLaunch(("true",), {}, "/", {}, {})
ROOT = pytest.mark.parametrize("opened", ["root"], indirect=True)


class Detaching:
    """Sessions of one user, with a state folder of their own."""

    def __init__(self, opened: OpenSession) -> None:
        self._opened = opened
        self.session = opened()
        self.machine = self.session.machine
        self.home = self.machine.folder / "home"
        self.home.mkdir()
        if self.session.of_user:
            os.chown(self.home, NOBODY, NOBODY)
        self.use(self.session)

    def use(self, session: Session) -> None:
        self.session = session
        session.do(f"export XDG_STATE_HOME={self.home}; unset KUBECONFIG")

    def log_out(self) -> None:
        """End the session; another begins."""
        self.session.end()
        self.open_another()

    def open_another(self) -> None:
        """Open another session, and leave this one as it is."""
        self.use(self._opened())

    def tranche(self, line: str) -> tuple[int, str]:
        """Run `tranche`; its exit code, and what it says."""
        self.session.begin(f"{self.session.tranche} {line} 2>&1")
        return self.session.finish()

    def detach(self, script: str, options: str = HALF, name: str = "exp7") -> None:
        code, said = self.tranche(f"run --detach --name {name} {options} -- sh -c {shlex.quote(script)}")
        assert (code, said.splitlines()[0]) == (0, name), said

    def jobs(self) -> list[dict[str, Any]]:
        code, said = self.tranche("job list -o json")
        assert code == 0, said
        found: list[dict[str, Any]] = json.loads(said)["jobs"]
        return found

    def job(self) -> dict[str, Any]:
        (found,) = self.jobs()
        return found

    def job_named(self, name: str) -> dict[str, Any]:
        return next(each for each in self.jobs() if each["name"] == name)

    @property
    def status(self) -> str:
        return str(self.job()["status"])


@pytest.fixture
def detaching(opened: OpenSession) -> Detaching:
    return Detaching(opened)


def test_a_detached_run_survives_the_session_and_keeps_its_output_and_its_code(detaching: Detaching) -> None:
    go_on = detaching.machine.folder / "go-on"
    detaching.detach(f"echo $CUDA_VISIBLE_DEVICES; until [ -e {go_on} ]; do sleep 0.05; done; echo over >&2; exit 7")
    detaching.log_out()
    job = detaching.job()
    (share,) = shares(detaching.machine)
    assert set(job) == described_objects()["MachineJob"]
    assert (job["status"], job["allocationId"], job["exitCode"]) == ("running", share["id"], None)
    assert detaching.tranche("job wait exp7 --for running")[0] == 0
    assert detaching.tranche("job wait exp7 --timeout 0.1")[0] == WaitTimeout.exit_code
    code, said = detaching.tranche("job describe exp7 -o json")
    assert json.loads(said) == {"apiVersion": "tranche.dev/v1", "kind": "MachineJob", **job, "folder": "/"}
    code, said = detaching.tranche("job describe exp7")
    assert (code, f"share      {share['id']}" in said, "status     running" in said) == (0, True, True), said
    for verb in ("attach exp7", "exec exp7 -- true"):
        code, said = detaching.tranche(f"job {verb}")
        assert (code, "exp7 is a detached run on this machine" in said) == (UsageError.exit_code, True), said
    detaching.session.begin(f"{detaching.session.tranche} job logs -f exp7 2>&1")
    go_on.touch()
    code, said = detaching.session.finish()
    assert (code, said.splitlines()[-2][:4], said.splitlines()[-1]) == (0, "MIG-", "over"), said
    assert detaching.tranche("job logs exp7 --tail 1") == (0, "over\n")
    assert detaching.tranche("job wait exp7") == (7, "job exp7 has ended with exit code 7\n")
    assert (detaching.status, detaching.job()["exitCode"]) == ("ended", 7)
    assert ended(detaching.machine)


def test_no_other_user_can_read_what_is_kept(detaching: Detaching) -> None:
    detaching.detach("true")
    detaching.tranche("job wait exp7")
    made = list(detaching.home.rglob("*"))
    assert {each.name for each in made} == {
        "tranche",
        "jobs",
        os.uname().nodename,
        "exp7",
        "launch.json",
        "log",
        "lock",
        "state.json",
    }
    owner = NOBODY if detaching.session.of_user else 0
    for each in made:
        assert each.stat().st_uid == owner
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600)


@pytest.mark.parametrize(
    "refused",
    some_of(
        [
            ("--gpus 9 -- true", TooManyGpus.exit_code),
            ("--gpus 1 -- no-such-command", CommandNotFound.exit_code),
            *(
                (f"--gpus 1 --name {name} -- true", UsageError.exit_code)
                for name in ("a/b", "..", ".a", "''", "-a", "a" * 64)
            ),
        ],
        3,
    ),
)
def test_a_request_that_is_refused_is_an_error_and_no_run(detaching: Detaching, refused: tuple[str, int]) -> None:
    options, code = refused
    found, said = detaching.tranche(f"run --detach --name exp7 {options}")
    assert (found, "error: " in said) == (code, True), said
    assert list(detaching.home.glob("tranche/jobs/*/*")) == []
    detaching.detach("true")


@ROOT
def test_a_name_is_for_one_run(detaching: Detaching) -> None:
    detaching.detach("exec sleep 600")
    code, said = detaching.tranche(f"run --detach --name exp7 {HALF} -- true")
    assert (code, "already have a detached run named exp7, which is running" in said) == (UsageError.exit_code, True)
    assert len(shares(detaching.machine)) == 1
    os.kill(detaching.machine.one_running()["pid"], signal.SIGKILL)
    assert detaching.tranche("job wait exp7")[0] == 128 + signal.SIGKILL
    code, said = detaching.tranche(f"run --detach --name exp7 {HALF} -- true")
    assert (code, "which is ended" in said) == (UsageError.exit_code, True)
    assert detaching.tranche("job delete exp7")[0] == 0
    detaching.detach("exit 3")
    assert detaching.tranche("job wait exp7")[0] == 3
    assert detaching.tranche("run --name exp7 --gpus 1 -- true")[0] == UsageError.exit_code


def test_wait_waits_for_all_runs_and_gives_the_first_code_that_is_not_0(detaching: Detaching) -> None:
    """Names of a sweep have the values that it tries."""
    go_on = detaching.machine.folder / "go-on"
    until = f"until [ -e {go_on} ]; do sleep 0.05; done"
    detaching.detach("true", name="0")
    assert detaching.tranche("job wait 0")[0] == 0
    for name, script in (("lr_0.1", f"{until}; exit 3"), ("lr_1e-3.A", f"{until}; exit 4")):
        detaching.detach(script, name=name)
    code, said = detaching.tranche("job wait 0 lr_0.1 lr_1e-3.A --timeout 1s")
    assert (code, said.count("at the timeout")) == (WaitTimeout.exit_code, 2), said
    assert detaching.tranche("job wait lr_0.1 lr_1e-3.A --for running")[0] == 0
    go_on.touch()
    code, said = detaching.tranche("job wait 0 lr_1e-3.A none lr_0.1")
    assert (code, "no detached run named none" in said, "lr_0.1 has ended with exit code 3" in said) == (4, True, True)
    assert detaching.tranche("job logs lr_0.1")[0] == 0
    for near in ("lr_/0.1", "lr_0.1/", "./lr_0.1", ""):
        assert detaching.tranche(f"job delete '{near}'")[0] == UsageError.exit_code
    assert detaching.tranche("job delete 0 lr_0.1 lr_1e-3.A")[0] == 0


def test_a_run_waits_in_the_queue_and_its_log_says_why(detaching: Detaching) -> None:
    detaching.detach("exec sleep 600", "--gpus 1", "first")
    detaching.detach("true", HALF, "second")
    detaching.log_out()
    assert [each["status"] for each in detaching.jobs()] == ["running", "waiting"]
    assert "waiting, next in the queue: GPU 0: held whole by" in detaching.tranche("job logs second")[1]
    code, said = detaching.tranche("job describe second")
    assert (code, "status     waiting" in said, "run: tranche explain second" in said) == (0, True, True), said
    code, said = detaching.tranche("job delete first")
    assert (code, said) == (0, "deleted first\n")
    assert detaching.tranche("job wait second")[0] == 0


def test_explain_takes_the_name_of_a_run_that_waits(detaching: Detaching) -> None:
    detaching.open_another()
    detaching.session.hold("--gpus 1")
    detaching.open_another()
    detaching.detach("true")
    code, said = detaching.tranche("explain exp7")
    assert (code, said.startswith("Waiting: --mig-profile 3g.20gb waits: ")) == (0, True), said
    (waiting,) = waiters(detaching.machine)
    detaching.detach("true", HALF, str(waiting["id"]))
    code, said = detaching.tranche(f"explain {waiting['id']}")
    assert (code, said.startswith("Waiting: --mig-profile 3g.20gb waits: ")) == (0, True), "an id is no name"


def test_delete_ends_a_run_with_its_command(detaching: Detaching) -> None:
    detaching.detach("exec sleep 600", "--gpus 1", "first")
    share = detaching.machine.one_running()
    detaching.detach("true", HALF, "second")
    assert detaching.tranche("job delete second first") == (0, "deleted second\ndeleted first\n")
    assert process_at(share["pid"]) is None
    assert ended(detaching.machine)
    assert waiters(detaching.machine) == []
    assert list(detaching.home.glob("tranche/jobs/*/*")) == []


def test_delete_ends_a_run_that_is_stopped(detaching: Detaching) -> None:
    saved = detaching.home / "saved"
    detaching.detach(f"trap 'touch {saved}; exit 0' TERM; while :; do sleep 0.1; done", "--gpus 1")
    share = detaching.machine.one_running()
    for pid in (detaching.job()["pid"], share["pid"]):
        os.kill(pid, signal.SIGSTOP)
    assert detaching.tranche("job delete exp7") == (0, "deleted exp7\n")
    assert saved.exists()
    assert ended(detaching.machine)


def test_delete_lets_what_a_stopped_command_started_save(detaching: Detaching) -> None:
    """The command waits for its trainer, which is stopped, too, and has neither the lock nor the share's variables."""
    saved, ready = detaching.home / "saved", detaching.home / "ready"
    trainer = f"trap 'touch {saved}; exit 0' TERM; touch {ready}; while :; do sleep 0.1; done"
    begin = f"env -i sh -c {shlex.quote(trainer)} 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- & c=$!"
    detaching.detach(f"{begin}; trap 'kill $c; wait $c; touch {saved}.copy; exit 0' TERM; wait", "--gpus 1")
    wait_until(ready.exists)
    share = detaching.machine.one_running()
    os.killpg(os.getpgid(share["pid"]), signal.SIGSTOP)
    assert detaching.tranche("job delete exp7") == (0, "deleted exp7\n")
    assert (saved.exists(), saved.with_suffix(".copy").exists()) == (True, True)


def test_a_stopped_run_whose_command_has_ended_gives_its_share_back(detaching: Detaching) -> None:
    detaching.detach("exec sleep 600", "--gpus 1")
    job, share = detaching.job(), detaching.machine.one_running()
    os.kill(job["pid"], signal.SIGSTOP)
    os.kill(share["pid"], signal.SIGKILL)
    if not detaching.session.of_user:  # a service continues it
        code, said = detaching.tranche(f"release {share['id']}")
        assert (code, f" pid {job['pid']}" in said) == (GpuBusy.exit_code, True), said
        assert detaching.tranche(f"release {share['id']} --terminate --grace 1s")[0] == 0
    assert detaching.tranche("job wait exp7")[0] == 128 + signal.SIGKILL
    assert detaching.tranche("job delete exp7") == (0, "deleted exp7\n")
    assert ended(detaching.machine)


def test_delete_ends_a_stopped_run_that_waits(detaching: Detaching) -> None:
    holder = detaching.machine.hold("--gpus", "1")
    detaching.detach("true", "--gpus 1")
    os.kill(detaching.job()["pid"], signal.SIGSTOP)
    assert detaching.tranche("job delete exp7") == (0, "deleted exp7\n")
    assert waiters(detaching.machine) == []
    holder.process.terminate()


def lose(detaching: Detaching) -> None:
    """Kill a run and its command, as the end of the machine does."""
    os.kill(detaching.job()["pid"], signal.SIGKILL)
    share = detaching.machine.one_running()
    os.kill(share["pid"], signal.SIGKILL)
    wait_until(lambda: detaching.status == "lost")


def test_a_lost_run_starts_again_as_it_was(detaching: Detaching) -> None:
    folder = detaching.home / "work here"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    detaching.session.do(f"cd '{folder}'; export SEED='a b'")
    script = "echo $PWD $SEED; [ -e second ] && exit 5; touch second; exec sleep 600"
    detaching.detach(script, f"{HALF} --time 1h")
    lose(detaching)
    detaching.log_out()
    code, said = detaching.tranche("job restart --lost")
    assert (code, said.splitlines()[0]) == (0, "exp7"), said
    assert detaching.tranche("job wait exp7")[0] == 5
    assert (detaching.job()["request"], detaching.job()["command"][:5]) == (f"{HALF} --time 1h", "sh -c")
    assert detaching.tranche("job logs exp7")[1].splitlines().count(f"{folder} a b") == 2
    assert detaching.tranche("job restart --lost") == (0, "there are no lost runs to restart\n")
    assert detaching.tranche("job restart exp7")[0] == 0
    assert detaching.tranche("job wait exp7")[0] == 5


def test_only_a_run_that_is_over_starts_again(detaching: Detaching) -> None:
    detaching.detach("exec sleep 600")
    code, said = detaching.tranche("job restart exp7")
    assert (code, "which is running" in said) == (UsageError.exit_code, True), said
    assert len(shares(detaching.machine)) == 1
    for arguments, words in (
        ("exp7 other", "no detached run named other"),
        ("", "names or --lost"),
        ("exp7 --lost", "names or"),
    ):
        code, said = detaching.tranche(f"job restart {arguments}")
        assert (code, words in said) == (UsageError.exit_code, True), said
    lose(detaching)
    (detaching.home / "tranche/jobs" / os.uname().nodename / "exp7/launch.json").write_text("{")
    code, said = detaching.tranche("job restart exp7")
    assert (code, "cannot read how exp7 was started" in said) == (UsageError.exit_code, True), said
    assert detaching.status == "lost"


def test_a_run_that_cannot_start_again_stays_as_it_was_and_the_others_start(detaching: Detaching) -> None:
    """And each runs once, on the machine that it was started on."""
    folder = detaching.home / "folder"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    for name in ("a", "b", "c"):
        detaching.session.do(f"cd '{folder if name == 'a' else '/'}'")
        detaching.detach(f"echo $$ >> {detaching.home}/{name}; exit 3", name=name)
        assert detaching.tranche(f"job wait {name}")[0] == 3
    folder.rmdir()
    code, said = detaching.tranche("job restart a b c")
    assert (code, "cannot start a in " in said) == (UsageError.exit_code, True), said
    for name in ("b", "c"):
        assert detaching.tranche(f"job wait {name}")[0] == 3
        assert len((detaching.home / name).read_text().split()) == 2
        assert "error" not in detaching.tranche(f"job logs {name}")[1]
    assert {each["name"]: each["exitCode"] for each in detaching.jobs()} == {"a": 3, "b": 3, "c": 3}
    state = detaching.home / "tranche/jobs" / os.uname().nodename / "a/launch.json"
    launch = json.loads(state.read_text())
    wrong: list[dict[str, Any]] = [
        {"options": {"zz": 1}},
        {"options": 5},
        {"folder": 7},
        {"command": []},
        {"environment": {"A": 1}},
    ]
    for change in wrong:
        state.write_text(json.dumps({**launch, **change}))
        assert detaching.tranche("job restart a")[0] == UsageError.exit_code
    assert detaching.job_named("a")["exitCode"] == 3


def test_a_run_with_processes_left_does_not_start_again(detaching: Detaching) -> None:
    detaching.detach("sleep 600 & exit 3")
    assert detaching.tranche("job wait exp7")[0] == 3
    code, said = detaching.tranche("job restart exp7")
    assert (code, "processes that it started are still running" in said) == (UsageError.exit_code, True), said
    detaching.detach("true", name="other")
    os.kill(detaching.machine.one_running()["pid"], signal.SIGKILL)


@pytest.mark.parametrize("opened", ["user"], indirect=True)
def test_lost_runs_wait_for_the_service(detaching: Detaching) -> None:
    """At boot it may start later than what starts them."""
    shared: SharedMachine = detaching._opened.shared  # type: ignore[attr-defined]
    detaching.detach(f"[ -e {detaching.home}/second ] && exit 5; touch {detaching.home}/second; exec sleep 600")
    lose(detaching)
    assert shared.service is not None
    shared.service.kill()
    shared.service.wait()
    detaching.session.begin(f"{detaching.session.tranche} job restart --lost 2>&1")
    time.sleep(1.5)
    shared.serve()
    code, said = detaching.session.finish()
    assert (code, said.splitlines()[0]) == (0, "exp7"), said
    assert detaching.tranche("job wait exp7")[0] == 5


def test_delete_keeps_an_ended_run_whose_processes_still_hold_the_share(detaching: Detaching) -> None:
    detaching.detach("sleep 600 & exit 3")
    assert detaching.tranche("job wait exp7")[0] == 3
    share = detaching.machine.one_running()
    code, said = detaching.tranche("job delete exp7")
    assert (code, f"is in use by pid {share['pid']}: " in said) == (GpuBusy.exit_code, True), said
    way = f"tranche release {share['id']} --terminate"
    assert way in said
    detaching.detach("true", name="other")
    assert detaching.tranche("job wait other")[0] == 0
    closed = detaching.machine.folder / "closed"
    closed.mkdir(mode=0o700)
    detaching.session.do(f"export HOME={closed}; unset KUBERNETES_SERVICE_HOST")
    code, said = detaching.tranche("job delete exp7 none other")
    assert (code, "no detached run named none" in said, "deleted other" in said) == (GpuBusy.exit_code, True, True), (
        said
    )
    assert (detaching.status, process_at(share["pid"]) is None) == ("ended", False)
    assert detaching.tranche(way.removeprefix("tranche "))[0] == 0
    assert detaching.tranche("job delete exp7") == (0, "deleted exp7\n")


def test_an_ended_run_can_be_deleted_from_inside_a_share(detaching: Detaching) -> None:
    detaching.detach("true")
    assert detaching.tranche("job wait exp7")[0] == 0
    detaching.session.hold(HALF)
    assert detaching.tranche("job delete exp7") == (0, "deleted exp7\n")


def test_a_run_that_was_killed_while_it_waited_is_lost(detaching: Detaching) -> None:
    detaching.session.hold("--gpus 1")
    detaching.open_another()
    detaching.detach("true")
    os.kill(detaching.job()["pid"], signal.SIGKILL)
    wait_until(lambda: detaching.status == "lost")
    code, said = detaching.tranche("job wait exp7")
    assert (code, "was killed, or the machine restarted" in said) == (JobFailed.exit_code, True)
    assert detaching.tranche("job logs -f exp7")[0] == 0
    assert detaching.tranche("job delete exp7")[0] == 0


def test_a_run_whose_command_lives_on_runs_until_that_ends(detaching: Detaching) -> None:
    detaching.detach("exec sleep 600")
    share = detaching.machine.one_running()
    os.kill(detaching.job()["pid"], signal.SIGKILL)
    wait_until(lambda: process_at(detaching.job()["pid"]) is None)
    assert (detaching.status, detaching.job()["exitCode"]) == ("running", None)
    os.kill(share["pid"], signal.SIGKILL)
    wait_until(lambda: detaching.status == "lost")


@ROOT
def test_a_caller_that_is_killed_leaves_a_run_that_is_listed(detaching: Detaching) -> None:
    detaching.session.hold("--gpus 1")
    detaching.open_another()
    detaching.session.begin(
        f"{detaching.session.tranche} run --detach --name exp7 {HALF} -- true & kill -9 $!; wait $!"
    )
    code, _ = detaching.session.finish()
    assert code in (0, 128 + signal.SIGKILL)
    if list(detaching.home.glob("tranche/jobs/*/*/state.json")):
        assert len(waiters(detaching.machine)) == len(
            [each for each in detaching.jobs() if each["status"] == "waiting"]
        )


@ROOT
@pytest.mark.parametrize("part", ["tranche", "tranche/jobs"])
def test_a_symbolic_link_or_another_users_folder_is_not_used(detaching: Detaching, part: str) -> None:
    elsewhere = detaching.machine.folder / "elsewhere"
    elsewhere.mkdir()
    link = detaching.home / part
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    code, said = detaching.tranche(f"run --detach {HALF} -- true")
    assert (code, "cannot store a detached run in" in said) == (OutputUnwritable.exit_code, True)
    assert list(elsewhere.iterdir()) == []
    link.unlink()
    link.mkdir()
    os.chown(link, NOBODY, NOBODY)
    assert detaching.tranche(f"run --detach {HALF} -- true")[0] == OutputUnwritable.exit_code
    assert ended(detaching.machine)


@ROOT
def test_job_asks_the_cluster_if_one_is_known_and_no_run_is_meant(detaching: Detaching) -> None:
    unknown = KubeconfigInvalid.exit_code
    detaching.session.do(f"export KUBECONFIG={detaching.home}/none")
    assert detaching.tranche("job list")[0] == unknown
    detaching.detach("true")
    assert detaching.tranche("job list")[0] == 0
    for line in ("list -n team", "list -A", "logs exp7 -n team", "logs other", "wait other", "delete other"):
        assert detaching.tranche(f"job {line}")[0] == unknown, line


@ROOT
def test_without_a_cluster_job_is_about_this_machine(detaching: Detaching) -> None:
    detaching.session.do(f"export HOME={detaching.home}; unset KUBERNETES_SERVICE_HOST")
    code, said = detaching.tranche("job list")
    assert (code, "you have no detached runs on this machine" in said) == (0, True), said
    code, said = detaching.tranche("job logs other")
    assert (code, "you have no detached run named other on this machine" in said) == (UsageError.exit_code, True), said
    assert detaching.tranche("job list -A")[0] == KubeconfigInvalid.exit_code


def test_why_a_run_failed_is_in_its_log_before_it_counts_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, write = tmp_path / "known", JobStore.write

    def look_first(self: JobStore, job: MachineJob) -> None:
        if job.exit_code is not None:
            known.write_text(f"{job.exit_code}: {(folder / 'log').read_text()}")
        write(self, job)

    def fail_later(settings: Settings, command: Sequence[str], how: Launch, **options: Any) -> int:
        how.accepted()
        raise WaitTimeout("too late")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(JobStore, "write", look_first)
    folder = tmp_path / "tranche" / "jobs" / os.uname().nodename / "exp7"
    detach_here(fail_later)
    wait_until(known.exists)
    assert known.read_text() == f"{WaitTimeout.exit_code}: error: too late\n"


def test_a_run_goes_on_while_its_disk_is_full_and_its_end_is_known_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, ran, write = tmp_path / "full", tmp_path / "ran", JobStore.write

    def write_where_there_is_room(self: JobStore, job: MachineJob) -> None:
        if full.exists():
            raise OutputUnwritable("No space left on device")
        write(self, job)

    def run_twice(settings: Settings, command: Sequence[str], how: Launch, **options: Any) -> int:
        how.starting({"TRANCHE_ALLOCATION": "a"})
        full.touch()
        how.waits_again()  # it was preempted
        how.starting({"TRANCHE_ALLOCATION": "b"})
        ran.touch()
        return 5

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(JobStore, "write", write_where_there_is_room)
    monkeypatch.setattr("tranche.cli.detached._ROOM_SECONDS", 0.05)
    detach_here(run_twice)
    wait_until(ran.exists)
    store = open_jobs(os.environ)
    assert store is not None
    assert (store.jobs()[0].exit_code, store.jobs()[0].status) == (None, "running")
    full.unlink()
    wait_until(lambda: store.jobs()[0].exit_code == 5)
    assert (store.jobs()[0].allocation_id, store.jobs()[0].status) == ("b", "ended")


def detach_here(run: Callable[..., int]) -> None:
    """Detach a run that does this from a fork of this process."""
    caller = os.fork()
    if caller == 0:
        code, sys.stdout, sys.stderr = 99, sys.__stdout__, sys.__stderr__
        heed_signals()  # as `tranche run` does, and forget what earlier tests were told
        try:
            code = run_detached(Settings(), ["true"], "exp7", {"gpus": "1", "quiet": True}, run)
        finally:
            os._exit(code)
    assert os.waitpid(caller, 0)[1] == 0


def test_the_latest_ended_runs_are_kept(tmp_path: Path) -> None:
    store = open_jobs({"XDG_STATE_HOME": str(tmp_path)}, create=True)
    assert store is not None
    for number in range(MOST_ENDED + 5):
        job = MachineJob(f"j{number}", "--gpus 1", "true", 1, float(number))
        os.close(store.create(job, NO_LAUNCH))
        store.write(job._replace(ended=1.0, exit_code=0))
    assert [each.name for each in store.jobs()] == [f"j{number}" for number in range(5, MOST_ENDED + 5)]


def test_what_is_no_state_is_no_run(tmp_path: Path) -> None:
    store = open_jobs({"XDG_STATE_HOME": str(tmp_path)}, create=True)
    assert store is not None
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"name": "c"}'), ("d", None)):
        (store.path / name).mkdir()
        if text is not None:
            (store.path / name / "state.json").write_text(text)
            (store.path / name / "lock").touch()
    (store.path / "e").write_text("")
    (store.path / "f").mkdir()
    os.mkfifo(store.path / "f" / "state.json")
    (store.path / "f" / "lock").touch()
    assert store.jobs() == []
    assert [store.find(each) for each in ("a", "..", ".", "", "../jobs", "x")] == [None] * 6


def test_runs_of_another_machine_with_the_same_home_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("a", "b"):
        monkeypatch.setattr(os, "uname", lambda host=host: SimpleNamespace(nodename=host))
        store = open_jobs({"XDG_STATE_HOME": str(tmp_path)}, create=True)
        assert store is not None
        assert store.jobs() == []
        os.close(store.create(MachineJob("exp7", "--gpus 1", host, 1, 1.0), NO_LAUNCH))
        assert [each.command for each in store.jobs()] == [host]
