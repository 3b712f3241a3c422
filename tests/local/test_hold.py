"""`tranche hold`: a share lasts as long as a session, in both modes, whatever is killed."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_reference_pages import described_objects
from tests.local.sessions import HALF, OpenSession, Session, ended, opening, shares, waiters
from tests.local.test_fractions import end_daemons
from tests.local.test_lost_terminal import leader_of_a_terminal
from tests.machines import TRANCHE, TestMachine, machine_in, needs_root, readable_folder, wait_until
from tests.node.processes import isolated
from tests.simulator.cuda_programs import PREAMBLE
from tests.support.in_process import NOBODY
from tests.support.length import some_of
from tranche.core.errors import GpuBusy, OutputUnwritable, ServiceUnavailable, TooManyGpus, UsageError
from tranche.local.child import Launch
from tranche.local.hold import hold
from tranche.node.processes.processes import children_of, process_at


@pytest.fixture
def machine(session: Session) -> TestMachine:
    return session.machine


def test_programs_of_the_session_have_the_share_until_it_ends(session: Session, machine: TestMachine) -> None:
    held = session.hold()
    assert (held["command"], held["phase"]) == ("(tranche hold)", "active")
    environment = dict(line.split("=", 1) for line in session.do("env").splitlines())
    assert environment["CUDA_VISIBLE_DEVICES"].startswith("MIG-")
    assert environment["TRANCHE_ALLOCATION"] == held["id"]
    assert "MIG 3g.20gb" in session.do("nvidia-smi -L")
    session.end()
    wait_until(lambda: ended(machine))
    assert [each["type"] for each in machine.json("events")["events"]][-2:] == ["Granted", "Released"]


def test_a_subshell_holds_for_the_whole_session(session: Session, machine: TestMachine) -> None:
    session.do(f'(eval "$({session.tranche} hold {HALF})")')
    (held,) = shares(machine)
    assert process_at(held["pid"]) is not None
    session.end()
    wait_until(lambda: ended(machine))


def test_a_script_releases_what_it_holds(session: Session, machine: TestMachine) -> None:
    session.do(f'(eval "$({session.tranche} hold {HALF})"; {session.tranche} release "$TRANCHE_ALLOCATION")')
    wait_until(lambda: ended(machine))


@pytest.mark.parametrize("opened", ["root"], indirect=True)
def test_variables_on_a_terminal_come_with_what_to_do(session: Session, machine: TestMachine) -> None:
    said = session.do(f"script -qec {shlex.quote(f'{session.tranche} hold {HALF}; true')} /dev/null </dev/null")
    (held,) = re.findall(r"export TRANCHE_ALLOCATION=(\w+)", said)
    assert f"To end this share: tranche release {held}\n" in said


def test_the_holder_is_small_and_keeps_nothing_of_the_caller_open(session: Session, machine: TestMachine) -> None:
    session.do("exec 9>" + shlex.quote(str(machine.folder / "given")))
    given = {os.readlink(f"/proc/{session.shell.pid}/fd/{each}") for each in (0, 1, 9)}
    held = session.hold()
    status = Path(f"/proc/{held['pid']}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 16 << 10
    launcher = process_at(held["pid"])
    assert launcher is not None
    for pid in (held["pid"], launcher.parent):
        files = {os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")}
        assert not files & given
        assert os.getsid(pid) == launcher.parent != session.shell.pid


def test_another_share_is_refused_in_the_session(session: Session, machine: TestMachine) -> None:
    session.hold()
    for line in (f"run {HALF} -- true", f"hold {HALF}"):
        session.begin(f"{session.tranche} {line}")
        assert session.finish()[0] == UsageError.exit_code
    assert len(shares(machine)) == 1


def test_a_plain_release_is_enough_from_inside_and_outside(opened: OpenSession) -> None:
    session = opened()
    session.hold()
    said = session.do(f"{session.tranche} release $TRANCHE_ALLOCATION 2>&1")
    assert "unset CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES" in said
    assert ended(session.machine)
    held = opened().hold()
    assert "unset" not in opened().do(f"{session.tranche} release {held['id']} 2>&1")
    assert ended(session.machine)


def test_a_program_that_uses_the_share_keeps_it(session: Session, machine: TestMachine) -> None:
    held = session.hold()
    program = session.program()
    session.begin(f"{session.tranche} release {held['id']} 2>&1")
    code, said = session.finish()
    assert (code, f"in use by pid {program}" in said) == (GpuBusy.exit_code, True), said
    assert shares(machine) == [held]
    session.end()
    wait_until(lambda: process_at(held["pid"]) is None)
    wait_until(lambda: [each["pid"] for each in shares(machine)] == [program])
    assert machine.tranche("release", held["id"], code=GpuBusy.exit_code).stderr.count(str(program)) == 1
    os.kill(program, signal.SIGKILL)
    wait_until(lambda: ended(machine))


def test_a_release_with_terminate_ends_the_programs(session: Session, machine: TestMachine) -> None:
    held = session.hold()
    program = session.program()
    session.do(f"{session.tranche} release {held['id']} --terminate 2>&1")
    assert ended(machine)
    assert process_at(program) is None


@pytest.mark.parametrize("opened", ["root"], indirect=True)
def test_a_shell_in_the_share_cannot_end_itself(session: Session, machine: TestMachine) -> None:
    held = session.hold()
    for line in (f"release {held['id']}", f"release {held['id']} --terminate"):
        session.begin(f"bash -c {shlex.quote(f'{session.tranche} {line} 2>&1; true')}")
        assert "this process is running inside share" in (said := session.finish()[1]) or "is in use by pid" in said
    assert shares(machine) == [held]


def test_the_time_limit_ends_the_holder_and_the_programs(session: Session, machine: TestMachine) -> None:
    session.hold(f"{HALF} --time 2s")
    program = session.program()
    wait_until(lambda: ended(machine))
    assert process_at(program) is None
    assert session.do("echo on") == "on\n"


def test_a_shell_that_goes_on_after_the_time_keeps_no_share_and_its_later_programs(
    session: Session, machine: TestMachine
) -> None:
    session.hold(f"{HALF} --time 2s")
    session.begin("failed=0; for i in $(seq 80); do /bin/sleep 0.1 || failed=$((failed + 1)); done; echo $failed")
    wait_until(lambda: ended(machine))
    session.begin("/bin/sleep 0.2 && echo later")
    code, said = session.finish()
    assert (code, int(said) <= 2) == (0, True), said
    assert session.finish() == (0, "later\n")


@pytest.mark.parametrize("opened", ["root"], indirect=True)
def test_what_eval_gets_from_a_hold_that_fails_fails_too(session: Session) -> None:
    session.begin(f'eval "$({session.tranche} hold --gpus 9 2>/dev/null)"')
    assert session.finish()[0] == TooManyGpus.exit_code
    session.begin(f'eval "$({session.tranche} hold -o yaml 2>/dev/null)"; x=$({session.tranche} hold --gpus 9 2>&1)')
    assert session.finish()[0] == TooManyGpus.exit_code


def test_a_hold_waits_and_says_why(opened: OpenSession) -> None:
    first, second = opened(), opened()
    held = first.hold("--gpus 1")
    second.begin(f"{second.tranche} hold {HALF} 2>&1 >/dev/null")
    wait_until(lambda: len(waiters(first.machine)) == 1)
    assert waiters(first.machine)[0]["command"] == "(tranche hold)"
    first.end()
    code, said = second.finish()
    assert (code, "waiting, next in the queue: GPU 0: held whole by (tranche hold)" in said) == (0, True), said
    assert [each["id"] for each in shares(first.machine)] != [held["id"]]


@pytest.mark.parametrize("number", some_of([signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], 2))
def test_a_hold_that_is_told_to_end_while_it_waits_leaves_the_queue(
    opened: OpenSession, number: signal.Signals
) -> None:
    opened().hold("--gpus 1")
    session = opened()
    session.begin(f"{session.tranche} hold -q {HALF}")
    wait_until(lambda: len(waiters(session.machine)) == 1)
    os.kill(session.caller(), number)
    code, printed = session.finish()
    told = "" if number == signal.SIGKILL else f"(exit {128 + number})\n"  # for an eval
    assert (code, printed) == (128 + number, told)
    wait_until(lambda: waiters(session.machine) == [])
    assert len(shares(session.machine)) == 1


def test_a_hold_whose_session_is_killed_while_it_waits_leaves_the_queue(opened: OpenSession) -> None:
    opened().hold("--gpus 1")
    session = opened()
    session.begin(f"{session.tranche} hold -q {HALF}")
    wait_until(lambda: len(waiters(session.machine)) == 1)
    caller = session.caller()
    session.shell.kill()  # no terminal sends SIGHUP
    wait_until(lambda: waiters(session.machine) == [] and process_at(caller) is None)
    assert len(shares(session.machine)) == 1


def test_a_cancelled_hold_ends(opened: OpenSession) -> None:
    opened().hold("--gpus 1")
    session = opened()
    session.begin(f"{session.tranche} hold -q {HALF} 2>&1")
    wait_until(lambda: len(waiters(session.machine)) == 1)
    session.machine.tranche("release", waiters(session.machine)[0]["id"])
    code, _ = session.finish()
    assert code == 128 + signal.SIGTERM


class Halfway:
    """A hold that has its share, and whose caller is stopped before it can have the variables printed."""

    def __init__(self, opened: OpenSession) -> None:
        first = opened()
        first.hold("--gpus 1")
        self.session = opened()
        self.machine = first.machine
        self.session.begin(f"{self.session.tranche} hold -q {HALF}")
        wait_until(lambda: len(waiters(self.machine)) == 1)
        self.caller = self.session.caller()
        os.kill(self.caller, signal.SIGSTOP)
        self.launcher = waiters(self.machine)[0]["pid"]
        first.end()
        wait_until(lambda: self.holders() != [])
        (self.holder,) = self.holders()

    def holders(self) -> list[int]:
        """The pid of the holder once it is the launcher's child. Until then another session's hold may be seen, or none."""
        found = (process_at(each["pid"]) for each in self.machine.running())
        return [each.pid for each in found if each is not None and each.parent == self.launcher]

    def go_on(self) -> tuple[int, str]:
        """Continue the caller; the exit code of the hold, and what it printed."""
        with suppress(ProcessLookupError):
            os.kill(self.caller, signal.SIGCONT)
        return self.session.finish()


def test_without_the_caller_nothing_is_held(opened: OpenSession) -> None:
    halfway = Halfway(opened)
    os.kill(halfway.caller, signal.SIGKILL)
    assert halfway.go_on() == (128 + signal.SIGKILL, "")
    wait_until(lambda: ended(halfway.machine))


def test_without_the_holder_nothing_is_printed(opened: OpenSession) -> None:
    halfway = Halfway(opened)
    os.kill(halfway.holder, signal.SIGKILL)
    assert halfway.go_on() == (128 + signal.SIGKILL, "(exit 137)\n")
    assert ended(halfway.machine)


def test_without_the_launcher_what_is_printed_is_held(opened: OpenSession) -> None:
    halfway = Halfway(opened)
    os.kill(halfway.launcher, signal.SIGKILL)
    code, printed = halfway.go_on()
    assert (code, f"export TRANCHE_ALLOCATION={shares(halfway.machine)[0]['id']}\n" in printed) == (0, True)
    assert [each["pid"] for each in shares(halfway.machine)] == [halfway.holder]
    halfway.session.end()
    wait_until(lambda: ended(halfway.machine))


def test_the_launcher_is_killed_while_it_waits(opened: OpenSession) -> None:
    opened().hold("--gpus 1")
    session = opened()
    session.begin(f"{session.tranche} hold -q {HALF}")
    wait_until(lambda: len(waiters(session.machine)) == 1)
    os.kill(waiters(session.machine)[0]["pid"], signal.SIGKILL)
    assert session.finish() == (128 + signal.SIGKILL, "(exit 137)\n")
    wait_until(lambda: waiters(session.machine) == [])


def test_a_hold_outlives_its_launcher_and_ends_with_its_holder(session: Session, machine: TestMachine) -> None:
    held = session.hold()
    holder = process_at(held["pid"])
    assert holder is not None
    os.kill(holder.parent, signal.SIGKILL)
    assert [each["id"] for each in shares(machine)] == [held["id"]]
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: ended(machine))


@needs_root
@pytest.mark.parametrize("opened", ["user"], indirect=True)
def test_a_hold_outlives_the_service(opened: OpenSession) -> None:
    session, shared = opened(), opened.shared  # type: ignore[attr-defined]
    held = session.hold()
    workers = [each.pid for each in children_of(shared.service.pid)]
    for each in (shared.service.pid, *workers):
        os.kill(each, signal.SIGKILL)
    shared.service.wait()
    shared.serve()
    assert [each["id"] for each in shares(session.machine)] == [held["id"]]
    assert shared.run("release", held["id"], uid=NOBODY + 1)[0] != 0
    session.do(f"{session.tranche} release {held['id']} 2>/dev/null")
    assert ended(session.machine)


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        (">/dev/full", OutputUnwritable.exit_code),
        (">&-", OutputUnwritable.exit_code),
        ("| exec true; (exit ${PIPESTATUS[0]})", 128 + signal.SIGPIPE),
        ("-- true", UsageError.exit_code),
    ],
)
def test_what_cannot_be_printed_is_not_held(session: Session, machine: TestMachine, rest: str, code: int) -> None:
    session.begin(f"{session.tranche} hold {HALF} {rest}")
    assert session.finish() == (code, "")
    assert ended(machine)


def test_programs_read_json(session: Session, machine: TestMachine) -> None:
    document: dict[str, Any] = json.loads(session.do(f"{session.tranche} hold {HALF} -o json"))
    (held,) = shares(machine)
    assert (document["apiVersion"], document["kind"]) == ("tranche.dev/v1", "Hold")
    assert set(document) == {"apiVersion", "kind", *described_objects()["Hold"]}
    assert document["allocationId"] == document["environment"]["TRANCHE_ALLOCATION"] == held["id"]
    assert document["environment"]["CUDA_VISIBLE_DEVICES"].startswith("MIG-")


def test_the_only_command_of_a_session_cannot_hold(machine: TestMachine) -> None:
    done = subprocess.run(
        [*TRANCHE, "hold", *HALF.split()],
        env=machine.environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (UsageError.exit_code, f"(exit {UsageError.exit_code})\n")
    assert "the only one in its session" in done.stderr
    assert ended(machine)


def test_under_nohup_the_script_holds_and_not_the_session(session: Session, machine: TestMachine) -> None:
    go_on = machine.folder / "go-on"
    os.mkfifo(go_on)
    script = f'eval "$({session.tranche} hold -q {HALF})"; read -r < {go_on}'
    pid = int(session.do(f"nohup bash -c {shlex.quote(script)} >/dev/null 2>&1 & echo $!"))
    wait_until(lambda: [bool(each["pid"]) for each in shares(machine)] == [True])
    (held,) = shares(machine)
    session.end()
    assert process_at(pid) is not None
    assert process_at(held["pid"]) is not None
    go_on.write_text("on\n")
    wait_until(lambda: ended(machine))


def test_a_script_whose_session_has_lost_its_leader_holds(session: Session, machine: TestMachine) -> None:
    start, go_on = machine.folder / "start", machine.folder / "go-on"
    for each in (start, go_on):
        os.mkfifo(each)
    script = f'read -r < {start}; eval "$({session.tranche} hold -q {HALF})"; read -r < {go_on}'
    session.do(f"bash -c {shlex.quote(script)} >/dev/null 2>&1 &")
    session.end()
    start.write_text("on\n")
    wait_until(lambda: [bool(each["pid"]) for each in shares(machine)] == [True])
    go_on.write_text("on\n")
    wait_until(lambda: ended(machine))


def test_a_session_that_sudo_opens_is_that_of_the_caller(session: Session, machine: TestMachine) -> None:
    """sudo may give a command a terminal, and so a session, of its own. This one is only called so."""
    sudo = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, b"sudo")  # PR_SET_NAME
pid = os.fork()
if pid == 0:
    os.setsid()
    pid = os.fork()
    if pid == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    held = session.hold(tranche=f"{shlex.join([sys.executable, '-c', sudo])} {session.tranche}")
    assert process_at(held["pid"]) is not None
    if not session.of_user:
        session.do(f"{shlex.join([sys.executable, '-c', sudo])} {session.tranche} release {held['id']} 2>/dev/null")
    else:
        session.end()
    wait_until(lambda: ended(machine))


def test_a_value_with_quotes_and_spaces_survives_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "a" $folder'
    folder.mkdir()
    with machine_in(folder, "A100-40GB") as machine, opening(machine, [*TRANCHE]) as open_session:
        session = open_session()
        session.hold()
        assert session.do('printf "%s" "$TRANCHE_REGISTER"; echo') == f"{machine.state_dir}\n"
        session.end()


def test_a_part_of_a_gpu_comes_with_its_daemon(tmp_path: Path) -> None:
    with readable_folder() as folder, machine_in(folder, machine_type="g4dn.xlarge") as machine:
        with opening(machine, [*TRANCHE]) as open_session:
            session = open_session()
            session.hold("--gpu-memory 3G")
            assert session.do("test -x $CUDA_MPS_PIPE_DIRECTORY; echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") != "\n"
            session.end()
            wait_until(lambda: ended(machine))
        end_daemons(machine)


def test_a_terminal_is_told_of_the_time_limit_and_its_loss_ends_the_hold(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine:
        hold = f'eval "$({shlex.join(TRANCHE)} hold -q {HALF}'
        with leader_of_a_terminal(["bash", "--norc"], machine) as (_, terminal):
            os.write(terminal, f'{hold} --time 2s)"\n'.encode())
            said = b""
            while b"the time limit of 2s has passed" not in said:
                assert select.select([terminal], [], [], 60.0)[0], said.decode(errors="replace")
                said += os.read(terminal, 4096)
            wait_until(lambda: ended(machine))
            os.write(terminal, f'unset NVIDIA_VISIBLE_DEVICES; {hold})"\n'.encode())
            wait_until(lambda: not ended(machine))
            machine.running()
            os.close(terminal)
            wait_until(lambda: ended(machine))


@pytest.mark.parametrize("opened", ["root"], indirect=True)
def test_a_program_on_the_device_belongs_to_the_share(session: Session, machine: TestMachine) -> None:
    held = session.hold()
    program = f"{PREAMBLE}\ncontext(); tell(os.getpid()); wait()"
    session.do(f"coproc {shlex.join([sys.executable, '-c', program])}")
    pid = int(session.do("read -r pid <&${COPROC[0]}; echo $pid"))
    (gpu,) = machine.json("gpus")["gpus"]
    (used,) = [each for each in gpu["slices"] if each["processes"]]
    assert (used["state"], used["allocationId"], used["processes"][0]["pid"]) == ("held", held["id"], pid)
    session.end()
    wait_until(lambda: process_at(pid) is None)
    wait_until(lambda: ended(machine))


@isolated
def test_a_share_that_is_lost_before_the_holder_runs_is_an_error_with_words() -> None:
    """As when the service is killed at that moment: the launcher has parted from the caller's stderr by then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def run(line: Sequence[str], launch: Launch) -> int:
        launch.starting({"CUDA_VISIBLE_DEVICES": "MIG-1"})
        os._exit(ServiceUnavailable.exit_code)

    with pytest.raises(ServiceUnavailable, match="lost before this session received it"):
        hold(run, str, 1)
