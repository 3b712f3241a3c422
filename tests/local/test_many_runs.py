"""A hundred requests for 1g.5gb on a machine that has room for 56; `make test` has a quarter of both."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.crowd import Crowd
from tests.machines import machine_in
from tests.support.length import LONG

pytestmark = pytest.mark.timeout(1800)
GPUS, REQUESTS = (8, 100) if LONG else (2, 26)
SLICES = 7 * GPUS
NAMES = [f"job-{number:03}" for number in range(REQUESTS)]
REQUEST = ("--mig-profile", "1g.5gb")


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    """Nobody yet, on a machine as it comes: MIG mode off."""
    made = machine_in(tmp_path, machine_type="p4d.24xlarge") if LONG else machine_in(tmp_path, *("A100-40GB",) * GPUS)
    with made as machine:
        folder = tmp_path / "jobs"
        folder.mkdir()
        crowd = Crowd(machine, folder)
        try:
            yield crowd
        finally:
            crowd.close()


def enable_mig(crowd: Crowd) -> None:
    for gpu in crowd.machine.machine.gpus():
        crowd.machine.cut_by_hand(gpu.index)


def fill(crowd: Crowd) -> list[str]:
    """Start everybody; who waits, in order, when every slice is held and the others are in the queue."""
    crowd.start(NAMES, *REQUEST)
    crowd.await_live(SLICES)
    queue = crowd.until(
        lambda: queue if len(queue := crowd.queue()) == len(NAMES) - SLICES else None,
        lambda: f"{len(crowd.queue())} wait",
    )
    assert crowd.look() == []
    devices = {job.device for job in crowd.live.values()}
    assert len(devices) == SLICES
    assert all(device.startswith("MIG-") for device in devices)
    assert sorted([*crowd.live, *queue]) == NAMES
    return queue


def check_all_gone(crowd: Crowd) -> None:
    """Nothing is held, nobody waits, every slice is idle and there to be used again."""
    listing = crowd.machine.json("ps")
    assert (listing["allocations"], listing["waiters"]) == ([], [])
    assert [gpu.gpu_instances for gpu in crowd.machine.machine.gpus()] == [7] * GPUS
    assert [gpu.compute_instances for gpu in crowd.machine.machine.gpus()] == [7] * GPUS


@pytest.mark.long
def test_as_jobs_end_the_others_run_in_the_order_in_which_they_queued(crowd: Crowd) -> None:
    """From a fresh machine, so that the first requests turn MIG mode on, which on these boards takes a reset."""
    queue = fill(crowd)
    rng = random.Random(5)
    for count in (1, 1, 1, 2, 3, 4, 5, 6, 7, 14):
        crowd.tell_to_end(rng.sample(sorted(crowd.live), count))
        crowd.await_live(SLICES)
        expected, queue = queue[:count], queue[count:]
        assert not set(crowd.live) & set(queue), "somebody came too early"
        assert set(expected) <= set(crowd.live), f"{set(expected) - set(crowd.live)} was overtaken"
    assert queue == []
    crowd.tell_to_end(sorted(crowd.live))
    assert crowd.await_exit(NAMES) == [0] * len(NAMES)
    check_all_gone(crowd)


def test_killed_commands_lose_nothing_that_their_jobs_still_use(crowd: Crowd) -> None:
    """With MIG mode on already. kill -9 of the command leaves its job in its slice; a killed waiter leaves the queue."""
    enable_mig(crowd)
    queue = fill(crowd)
    rng = random.Random(6)
    orphans = rng.sample(sorted(crowd.live), SLICES * 3 // 14)
    gone = rng.sample(queue, len(queue) // 4)
    for name in rng.sample([*orphans, *gone], len(orphans) + len(gone)):
        crowd.processes[name].kill()
    assert set(crowd.await_exit([*orphans, *gone])) == {-signal.SIGKILL}
    queue = [name for name in queue if name not in gone]

    listing = crowd.machine.json("ps")
    assert len(listing["allocations"]) == SLICES
    assert [waiter["command"].split("/")[-1] for waiter in listing["waiters"]] == queue
    assert set(crowd.allocated()) == set(crowd.live)
    for name in orphans:
        os.kill(crowd.live[name].pid, 0)

    crowd.tell_to_end(orphans)
    crowd.await_live(SLICES)
    expected, queue = queue[: len(orphans)], queue[len(orphans) :]
    assert set(expected) <= set(crowd.live), f"{set(expected) - set(crowd.live)} was overtaken"

    while queue:
        # From here on commands are killed while others start and end.
        leaving = rng.sample(sorted(crowd.live), GPUS)
        for name in leaving[: max(1, GPUS * 3 // 8)]:
            crowd.processes[name].kill()
        arriving = min(len(leaving), len(queue))
        crowd.tell_to_end(leaving)
        crowd.await_live(SLICES - len(leaving) + arriving)
        expected, queue = queue[:arriving], queue[arriving:]
        assert set(expected) <= set(crowd.live)
    crowd.tell_to_end(sorted(crowd.live))
    crowd.await_exit(NAMES)
    check_all_gone(crowd)
