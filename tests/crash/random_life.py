"""A process that does one random thing after the other to a machine, until it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import traceback
from pathlib import Path
from typing import NoReturn

from tests.crash.scenario import Keep, Scenario, random_plan, random_request
from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.local.queue import Queue
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche_simulator.machine import SimulatedMachine


def live(scenario: Scenario, seed: str, leash: int) -> NoReturn:
    """Change layouts, take shares with work in them, give them back, without end.

    Work outlives this process, as it would outlive a killed `tranche run`, for as long as the pipe `leash` is open.
    """
    rng = random.Random(seed)
    with scenario.node.host() as host:
        life = _Life(scenario, host, rng, leash)
        while True:
            # What is refused is refused; whether anything was harmed is looked at after the end.
            with contextlib.suppress(TrancheError):
                rng.choice([life.change, life.take, life.take, life.give_back])()


def work_failures(scenario: Scenario) -> Path:
    """Where work says that it did not get the device that it was given."""
    return scenario.node.folder / "work-failed"


class _Life:
    def __init__(self, scenario: Scenario, host: Host, rng: random.Random, leash: int) -> None:
        self._scenario = scenario
        self._host = host
        self._rng = rng
        self._leash = leash
        self._queue = Queue(host)
        self._running: list[tuple[HeldAllocation, int]] = []

    def change(self) -> None:
        """Carry out a random plan, which now and then asks for what must be refused."""
        self._host.change(lambda view: random_plan(view, self._known(view), self._rng, spiteful=0.2))

    def _known(self, view: NodeView) -> Keep:
        """What this process thinks must be kept: most of the time it respects the allocations of others."""
        keep = self._scenario.keep
        if self._rng.random() < 0.2:
            return keep
        known = {name for name, _, _ in keep.allocations}
        others = tuple((a.id, g.gpu_uuid, g.slot) for a in view.allocations if a.id not in known for g in a.grants)
        return Keep((*keep.allocations, *others), keep.clients)

    def take(self) -> None:
        """Take a share and put a process in it."""
        request = random_request(self._host.view(), self._rng)
        held = self._queue.acquire(request, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
        grant = held.allocation.grants[0]
        gpu = self._host.driver.observe_gpu(grant.gpu_uuid)
        device = gpu.uuid
        if grant.slot is not None:
            instance = gpu.instance_at(grant.slot.placement)
            assert instance is not None, f"{grant} is not there"
            assert instance.whole_slice is not None, f"{grant} has no slice"
            device = instance.whole_slice.uuid
        pid = os.fork()
        if pid == 0:
            self._work(held, device)
        held.lock.release()  # the work has it now
        self._host.set_holder(held, pid)
        self._running.append((held, pid))

    def give_back(self) -> None:
        """End a process of this one's and give its share back."""
        if self._running:
            held, pid = self._running.pop(self._rng.randrange(len(self._running)))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._queue.release(held.allocation.id, why="ended")

    def _work(self, held: HeldAllocation, device: str) -> NoReturn:
        """Hold what a started command inherits, the lock, and nothing else; use the device."""
        try:
            kept = {0, 1, 2, held.lock.descriptor, self._leash}
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):  # one of them is that of the listing
                    if int(name) not in kept:
                        os.close(int(name))
            SimulatedMachine(self._scenario.node.machine.directory).attach(device)
            os.read(self._leash, 1)
        except BaseException:
            work_failures(self._scenario).write_text(f"{held.allocation} {device}\n{traceback.format_exc()}")
        finally:
            os._exit(0)
