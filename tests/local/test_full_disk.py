"""While the disk of the state folder is full, requests keep their places, and preempted commands wait for room."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.local.test_preemption import HUMBLE, WHOLE, events, started, until_third
from tests.machines import TestMachine, machine_in, needs_root, wait_until
from tranche.core.errors import LedgerUnavailable, WaitTimeout

FULL = "waiting: the ledger"


@contextmanager
def small_disk(machine: TestMachine) -> Iterator[Path]:
    """The machine's state folder is on a small disk of its own; the path of a file that may fill it."""
    machine.state_dir.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(machine.state_dir)], check=True)
    try:
        yield machine.state_dir / "fill"
    finally:
        machine.end()
        subprocess.run(["umount", "-l", str(machine.state_dir)], check=True)


def said(process: subprocess.Popen[str], what: str) -> bool:
    """Read what the process says until it says that; False if it ends first."""
    assert process.stderr is not None
    return any(what in line for line in process.stderr)


@needs_root
def test_requests_and_preempted_commands_wait_for_room(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine, small_disk(machine) as fill:
        machine.tranche("policy", "preemption", "--on")
        save = f"trap 'until [ -e {tmp_path}/go-on ]; do sleep 0.1; done; exit 0' TERM; while :; do sleep 0.1; done"
        run = machine.start("run", *HUMBLE, "--", *until_third(tmp_path, first=save))
        wait_until(partial(started, tmp_path, 1), run)
        other = machine.start("run", *WHOLE, "--", "true")
        wait_until(lambda: "Preempted" in events(machine), other)
        with fill.open("wb", buffering=0) as file:
            while _has_room(file.write):
                pass
        (tmp_path / "go-on").touch()
        assert said(run, FULL)
        assert said(other, FULL)
        fill.unlink()
        assert other.wait(60) == 0
        wait_until(partial(started, tmp_path, 2), run)


@needs_root
def test_a_request_that_gives_up_while_the_disk_is_full_says_so(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine, small_disk(machine) as fill:
        holder = machine.hold("--gpus", "1")
        late = machine.start("run", "--gpus", "1", "--timeout", "5s", "--", "true")
        stopped = machine.start("run", "--gpus", "1", "--", "true")
        wait_until(lambda: len(machine.json("ps")["waiters"]) == 2)
        with fill.open("wb", buffering=0) as file:
            while _has_room(file.write):
                pass
        stopped.terminate()
        assert (late.wait(60), stopped.wait(60)) == (WaitTimeout.exit_code, 128 + signal.SIGTERM)
        fill.unlink()
        wait_until(lambda: machine.json("ps")["waiters"] == [])
        holder.process.terminate()


@needs_root
def test_a_request_whose_slice_is_being_made_when_the_disk_fills_says_why_it_ends(tmp_path: Path) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine, small_disk(machine) as fill:
        machine.tranche("run", "--mig-profile", "2g.10gb", "--", "true")
        machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 3.0)
        run = machine.start("run", "--mig-profile", "3g.20gb", "--", "true")
        wait_until(lambda: [each["phase"] for each in machine.json("ps")["allocations"]] == ["preparing"], run)
        with fill.open("wb", buffering=0) as file:
            while _has_room(file.write):
                pass
        _, told = run.communicate(timeout=60)
        assert (run.returncode, "disk is full" in told) == (LedgerUnavailable.exit_code, True), told
        fill.unlink()
        machine.tranche("run", "--mig-profile", "7g.40gb", "--timeout", "30s", "--", "true")


def _has_room(write: Callable[[bytes], int | None]) -> bool:
    try:
        return bool(write(bytes(4096)))
    except OSError:
        return False
