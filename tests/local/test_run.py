"""`tranche run` as a process: environment, exit codes, signals, patience, and a share that lives as long as its user."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.machines import TRANCHE, TestMachine, Workload, machine_in, wait_until
from tranche.core.request import parse_request
from tranche.core.wire import request_from_dict

SLICE = ("--mig-profile", "3g.20gb")
FITS_TWICE = 2


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    """One A100 40 GB: room for two slices of 3g.20gb."""
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


def run(
    machine: TestMachine, *command: str, under: Sequence[str] = (), **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a command in a slice, to its end; all of it `under` another command."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*under, *TRANCHE, "run", "-q", *SLICE, "--", *command],
        env=machine.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def hold_trap(machine: TestMachine, action: str, signal_name: str) -> Workload:
    """A command in a slice that does something on a signal; it is armed when this returns."""
    armed = machine.folder / "armed"
    script = f"trap '{action}' {signal_name}; touch {armed}; while :; do sleep 0.05; done"
    work = machine.hold(*SLICE, script=script)
    wait_until(armed.exists, work.process)
    return work


def allocations(machine: TestMachine) -> list[dict[str, object]]:
    found: list[dict[str, object]] = machine.json("ps")["allocations"]
    return found


def phases(machine: TestMachine) -> list[str]:
    """As the ledger has them: on a busy machine a command that asks takes longer than some last."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{machine.ledger}?mode=ro", uri=True)) as db:
        return [phase for (phase,) in db.execute("SELECT phase FROM allocations")]
    return []


def test_the_command_gets_its_slice_in_its_environment_and_the_rest_as_it_was(a100: TestMachine) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    environment = {**a100.environment, "CUDA_VISIBLE_DEVICES": "7", "MINE": "kept"}
    done = subprocess.run(
        [*TRANCHE, "run", "-q", *SLICE, "--", sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    device = found.pop("CUDA_VISIBLE_DEVICES")
    assert device in a100.smi("-L")
    assert device.startswith("MIG-")
    assert found.pop("NVIDIA_VISIBLE_DEVICES") == device
    events = a100.json("events")["events"]
    assert found.pop("TRANCHE_ALLOCATION") in {event["allocationId"] for event in events}
    assert re.fullmatch("[0-9a-f]{32}", found.pop("TRANCHE_KEY"))
    assert found.pop("TRANCHE_REGISTER") == str(a100.state_dir.resolve())
    assert request_from_dict(json.loads(found.pop("TRANCHE_REQUEST"))) == parse_request(mig_profile=SLICE[1])
    expected = {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"}
    found.pop("LC_CTYPE", None)  # Python itself sets it where no locale is chosen
    assert found == expected


def test_whole_gpus_are_given_by_their_uuids(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB", "A100-40GB") as machine:
        script = 'echo "$CUDA_VISIBLE_DEVICES"'
        done = machine.tranche("run", "-q", "--gpus", "2", "--", "sh", "-c", script)
        assert sorted(done.stdout.strip().split(",")) == sorted(gpu.uuid for gpu in machine.machine.gpus())


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_the_command_s(a100: TestMachine, code: int) -> None:
    assert run(a100, "sh", "-c", f"exit {code}").returncode == code
    assert allocations(a100) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_command_that_a_signal_ended_gives_128_and_the_signal(a100: TestMachine, number: signal.Signals) -> None:
    assert run(a100, "sh", "-c", f"kill -{number.value} $$").returncode == 128 + number
    assert allocations(a100) == []


@pytest.mark.parametrize("command", ["no-such-command", "/no/such/file"])
def test_a_command_that_does_not_exist_gives_127_and_changes_nothing(a100: TestMachine, command: str) -> None:
    before = a100.changes()
    done = run(a100, command)
    assert done.returncode == 127
    assert command in done.stderr
    assert a100.changes() == before


def test_a_file_that_cannot_be_executed_gives_127_and_the_share_back(a100: TestMachine, tmp_path: Path) -> None:
    script = tmp_path / "no-interpreter"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    done = run(a100, str(script))
    assert done.returncode == 127
    assert "cannot be executed" in done.stderr
    assert "Traceback" not in done.stderr
    assert allocations(a100) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on_and_the_command_decides(a100: TestMachine, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    work = hold_trap(a100, "exit 7", name)
    work.process.send_signal(number)
    work.process.communicate(timeout=60)
    assert work.process.returncode == 7
    assert allocations(a100) == []


def test_a_command_that_ignores_a_signal_goes_on(a100: TestMachine) -> None:
    told = a100.folder / "told"
    work = hold_trap(a100, f"touch {told}", "TERM")
    work.process.terminate()
    wait_until(told.exists, work.process)
    assert len(allocations(a100)) == 1
    os.kill(work.pid, signal.SIGKILL)
    work.process.communicate(timeout=60)
    assert work.process.returncode == 128 + signal.SIGKILL


def test_what_the_caller_ignores_stays_ignored_for_the_command(a100: TestMachine) -> None:
    """As under nohup: neither tranche nor the command ends of a hang-up."""
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    done = run(a100, "sh", "-c", "kill -HUP $PPID; kill -HUP $$; exit 3", under=ignoring)
    assert done.returncode == 3


def test_the_command_ends_of_a_broken_pipe_as_it_does_elsewhere(a100: TestMachine) -> None:
    status = run(a100, "grep", "SigIgn", "/proc/self/status").stdout.split()[1]
    ignored = int(status, 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_without_patience_there_is_no_waiting(a100: TestMachine) -> None:
    for _ in range(FITS_TWICE):
        a100.hold(*SLICE)
    before = a100.changes()
    done = a100.tranche("run", "--no-wait", *SLICE, "--", "true", code=32)
    assert "nothing is free" in done.stderr
    assert a100.changes() == before
    assert a100.json("ps")["waiters"] == []


def test_patience_ends(a100: TestMachine) -> None:
    for _ in range(FITS_TWICE):
        a100.hold(*SLICE)
    done = a100.tranche("run", "--timeout", "0.3", *SLICE, "--", "true", code=70)
    assert "0.3 s" in done.stderr
    assert a100.json("ps")["waiters"] == []


def test_a_waiter_that_is_told_to_end_leaves_the_queue(a100: TestMachine) -> None:
    for _ in range(FITS_TWICE):
        a100.hold(*SLICE)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)):
        waiter = a100.wait_in_queue(*SLICE)
        waiter.send_signal(number)
        _, err = waiter.communicate(timeout=60)
        assert waiter.returncode == code, err
        assert "Traceback" not in err
        assert a100.json("ps")["waiters"] == []
    assert list((a100.state_dir / "locks" / "waiters").iterdir()) == []


def test_a_killed_waiter_leaves_the_queue_and_its_successor_moves_up(a100: TestMachine) -> None:
    works = [a100.hold(*SLICE) for _ in range(FITS_TWICE)]
    first, second = a100.wait_in_queue(*SLICE), a100.wait_in_queue(*SLICE)
    first.kill()
    first.wait()
    os.kill(works[0].pid, signal.SIGTERM)
    works[0].process.wait(timeout=60)
    wait_until(lambda: len(allocations(a100)) == FITS_TWICE and not a100.json("ps")["waiters"], second)


def test_a_share_outlives_a_killed_tranche_for_as_long_as_its_command(a100: TestMachine) -> None:
    works = [a100.hold(*SLICE) for _ in range(FITS_TWICE)]
    works[0].process.kill()
    works[0].process.wait()
    assert len(allocations(a100)) == FITS_TWICE
    a100.tranche("run", "--no-wait", *SLICE, "--", "true", code=32)
    os.kill(works[0].pid, signal.SIGKILL)
    wait_until(lambda: len(allocations(a100)) == 1)
    a100.tranche("run", "--no-wait", *SLICE, "--", "true")


def test_a_share_is_kept_when_the_command_closes_what_it_inherited(a100: TestMachine) -> None:
    closing = (
        f'exec "{sys.executable}" -c "import os, time; os.closerange(3, 4096); print(flush=True); time.sleep(600)"'
    )
    work = a100.hold(*SLICE, script=closing)
    lock = next((a100.state_dir / "locks" / "allocations").iterdir())
    wait_until(lambda: str(lock) not in _files_of(work.pid), work.process)
    work.process.kill()
    work.process.wait()
    assert len(allocations(a100)) == 1
    os.kill(work.pid, signal.SIGKILL)
    wait_until(lambda: allocations(a100) == [])


def test_a_share_is_kept_by_what_the_command_left_behind_when_tranche_was_killed(a100: TestMachine) -> None:
    """The command's own children inherit the lock as well, so a slice is not given away under them."""
    left = a100.folder / "left"
    script = f"sleep 600 & echo $! > {left}.tmp; mv {left}.tmp {left}; exec sleep 601"
    work = a100.hold(*SLICE, script=script)
    wait_until(left.exists, work.process)
    work.process.kill()
    work.process.wait()
    os.kill(work.pid, signal.SIGKILL)
    assert len(allocations(a100)) == 1
    os.kill(int(left.read_text()), signal.SIGKILL)
    wait_until(lambda: allocations(a100) == [])


def _files_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    found = set()
    for entry in folder.iterdir():
        try:
            found.add(os.readlink(entry))
        except OSError:
            continue
    return found


def test_the_command_s_exit_code_is_returned_when_the_share_was_taken_back(a100: TestMachine) -> None:
    work = hold_trap(a100, "exit 9", "TERM")
    name = str(allocations(a100)[0]["id"])
    a100.tranche("release", name, "--terminate")
    work.process.communicate(timeout=60)
    assert work.process.returncode == 9


def test_a_share_whose_processes_are_gone_needs_no_release(a100: TestMachine) -> None:
    work = a100.hold(*SLICE)
    name = str(allocations(a100)[0]["id"])
    work.process.kill()
    work.process.wait()
    os.kill(work.pid, signal.SIGKILL)
    wait_until(lambda: allocations(a100) == [])
    done = a100.tranche("release", name, code=34)
    assert name in done.stderr


def test_requests_for_the_same_gpu_are_served_in_order_whatever_their_size(a100: TestMachine) -> None:
    """A small request does not overtake a large one that waits for the same GPU."""
    works = [a100.hold(*SLICE) for _ in range(FITS_TWICE)]
    large = a100.wait_in_queue("--mig-profile", "7g.40gb")
    small = a100.wait_in_queue("--mig-profile", "1g.5gb")
    os.kill(works[0].pid, signal.SIGTERM)
    works[0].process.wait(timeout=60)
    listing = a100.json("ps")
    assert len(listing["waiters"]) == 2
    assert len(listing["allocations"]) == 1
    os.kill(works[1].pid, signal.SIGTERM)
    wait_until(lambda: [each["request"]["migProfile"] for each in allocations(a100)] == ["7g.40gb"], large)  # type: ignore[index]
    large.terminate()
    large.communicate(timeout=60)
    wait_until(lambda: [each["request"]["migProfile"] for each in allocations(a100)] == ["1g.5gb"], small)  # type: ignore[index]


def test_a_command_that_is_told_twice_to_end_while_its_slice_is_made_cleans_up(a100: TestMachine) -> None:
    before = a100.machine.gpus()
    a100.machine.set_time_scale(1.0)
    runs = a100.start("run", "-q", *SLICE, "--", "sleep", "600")
    wait_until(lambda: phases(a100) == ["preparing"], runs)
    for _ in range(3):
        runs.send_signal(signal.SIGTERM)
    _, err = runs.communicate(timeout=60)
    assert runs.returncode == 143, err
    assert "Traceback" not in err
    assert allocations(a100) == []
    assert a100.machine.gpus() == before


def test_a_share_that_came_back_unannounced_reaches_whoever_can_use_it(tmp_path: Path) -> None:
    """The head of the queue waits for another GPU; the command that held the share was killed, and `ps` cleared it."""
    with machine_in(tmp_path, "A100-40GB", "A30-24GB") as machine:
        machine.hold("--mig-profile", "7g.40gb")
        work = machine.hold("--mig-profile", "4g.24gb")
        machine.wait_in_queue("--mig-profile", "7g.40gb")
        second = machine.wait_in_queue("--mig-profile", "4g.24gb")
        work.process.kill()
        work.process.wait()
        os.kill(work.pid, signal.SIGKILL)
        wait_until(lambda: len(allocations(machine)) == 1 or len(machine.json("ps")["waiters"]) == 1, second)
        wait_until(lambda: [waiter["request"]["migProfile"] for waiter in machine.json("ps")["waiters"]] == ["7g.40gb"])
