"""A holder is told once of a reservation that begins before the share must have ended, and nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.machines import machine_in, short_folder
from tests.node.machines import node_of
from tranche.core.allocation import HELD
from tranche.core.request import Request, WholeGpus
from tranche.core.reservation import Reservation
from tranche.local.queue import Queue
from tranche.local.watches import ReservationWatch
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.store import records, register

ONE = Request(WholeGpus(1))
AN_HOUR = Request(WholeGpus(1), time_limit=3600)
QUICK = """
import tranche.local.watches
tranche.local.watches._LONGEST_SECONDS = 0.2
from tranche.local import idle
idle.LOOK_SECONDS = 0.2
from tranche.cli.main import main
main()
"""
"""The command with a look every fifth of a second."""
ME, OTHER = str(os.getuid()), "4711"


def told(
    folder: Path,
    request: Request,
    *,
    begins: float,
    users: tuple[str, ...] = (),
    same_gpu: bool = True,
    command: str = "train",
) -> list[str]:
    """What the holder of a share hears in two looks after a reservation that begins so many seconds after the grant."""
    said: list[str] = []
    with node_of(folder, "A100-40GB", "A100-40GB").host() as host:
        held = Queue(host).acquire(request, command=command, pid=os.getpid(), patience=WaitLimit(wait=False))
        watch = ReservationWatch(host, held.allocation, said.append)
        watch.look()
        assert said == []
        reserve(host, held.allocation.grants[0].gpu_uuid, same_gpu, held.allocation.created + begins, users)
        watch.look()
        watch.look()
    return said


def reserve(host: Host, uuid: str, same: bool, begins: float, users: tuple[str, ...]) -> None:
    other = next(gpu.uuid for gpu in host.observe() if gpu.uuid != uuid)
    new = Reservation("r1", (uuid if same else other,), begins, begins + 60, users, "bob" if users else "", "root")
    with host.ledger.write() as db:
        records.add_reservation(db, new)


def test_a_holder_is_told_once_of_maintenance(tmp_path: Path) -> None:
    (said,) = told(tmp_path, ONE, begins=7200)
    assert said.startswith("GPU ")
    assert " is reserved for maintenance from " in said
    assert said.endswith("; end this command before then if you can")


def test_a_hold_is_told_of_others_users(tmp_path: Path) -> None:
    (said,) = told(tmp_path, ONE, begins=7200, users=(OTHER,), command=HELD)
    assert " is reserved for bob from " in said
    assert said.endswith("; end this hold before then if you can")


@pytest.mark.parametrize(("begins", "count"), [(3000, 1), (7200, 0)])
def test_a_share_that_ends_in_time_is_not_told(tmp_path: Path, begins: float, count: int) -> None:
    assert len(told(tmp_path, AN_HOUR, begins=begins)) == count


def test_nobody_is_told_of_their_own_reservation_or_of_another_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(tmp_path / "a", ONE, begins=60, users=(ME,)) == []
    assert told(tmp_path / "b", ONE, begins=60, same_gpu=False) == []
    groups: Callable[[int], tuple[str, ...]] = lambda uid: ("@lab",)  # noqa: E731
    monkeypatch.setattr(register, "groups_of", groups)
    assert told(tmp_path / "c", ONE, begins=60, users=("@lab",)) == []


def test_a_running_command_prints_it() -> None:
    with short_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        line = [sys.executable, "-c", QUICK, "run", "-q", "--gpus", "1", "--", "sleep", "600"]
        with subprocess.Popen(line, env=machine.environment, stderr=subprocess.PIPE, text=True) as command:
            try:
                machine.one_running()
                begins = datetime.fromtimestamp(time.time() + 7200, tz=UTC).isoformat(sep=" ")
                machine.tranche("reserve", "add", "--gpu", "0", "--from", begins, "--for", "1h")
                assert command.stderr is not None
                printed = command.stderr.readline()
            finally:
                command.terminate()
        assert printed.startswith("warning: GPU 0 is reserved for maintenance from "), printed
