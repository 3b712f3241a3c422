"""Whatever happens while a daemon is started, used and ended: the compute mode is afterwards what it was before.

An event strikes at each moment in turn: before and after everything that touches the record, the driver or the daemon.
TRANCHE_COMPUTE_MODE_CASES asks for more cases, up to every pair of events.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

from tests.mps_leftovers import end_daemons_below
from tests.node.machines import Node, change, node_of, start_share
from tests.node.processes import Child, ChildFailed, in_child
from tests.node.test_mps_daemons import GIB, only, processes_of, start
from tranche.core.errors import HardwareError, TrancheError
from tranche.core.request import Request, WholeGpus
from tranche.core.state import ComputeMode
from tranche.hardware.mps_control import MpsControlClient
from tranche.hardware.mps_process import MpsProcess
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.mps import mps_daemons
from tranche.node.mps.mps_records import IDLE_SECONDS, DaemonRecordStore
from tranche.node.state import session
from tranche.planning.decide.allocate import decide
from tranche.planning.steps import StopMps

CASES = int(os.environ.get("TRANCHE_COMPUTE_MODE_CASES", "4"))

Schedule = Mapping[int, str]
FAIL, KILL, RELOAD, DEATH, REBOOT = "the call fails", "kill -9", "the driver is reloaded", "the daemon dies", "a reboot"
"""A reload resets the driver's settings beneath processes that live on; a reboot ends them all, and starts another boot."""


class Moments:
    """Counts the moments of a piece of work, and has what is on the schedule happen at its moment."""

    def __init__(self, node: Node, schedule: Schedule) -> None:
        self.node = node
        self.schedule = schedule
        self.passed = 0

    def watch(self, home: Any, name: str) -> None:
        """Make a moment of the time before a function is called, and of the time after it."""
        real: Callable[..., Any] = getattr(home, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.come(name)
            result = real(*args, **kwargs)
            self.come(name)
            return result

        setattr(home, name, watched)

    def come(self, name: str) -> None:
        event = self.schedule.get(self.passed)
        self.passed += 1
        if event is not None:
            with (self.node.folder / "struck").open("a") as struck:
                struck.write(f"{event}\n")
        if event == FAIL:
            raise HardwareError(f"{name} fails, for the test")
        if event in (DEATH, REBOOT):
            end_processes(self.node)
        if event in (RELOAD, REBOOT):
            self.node.machine.reboot()
        if event in (KILL, REBOOT):
            os.kill(os.getpid(), signal.SIGKILL)


def end_processes(node: Node) -> None:
    for pid in processes_of(node):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def work(host: Host) -> None:
    """Share the GPU, raise the limit, and end it."""
    change(host, start(only(host)))
    change(host, start(only(host), 4 * GIB))
    change(host, StopMps(only(host).uuid, None))


def struck(node: Node, schedule: Schedule) -> int:
    """Do the work while these events happen; how many moments were passed, as far as it was not killed."""

    def run() -> int:
        moments = Moments(node, schedule)
        with node.host() as host:
            for home, name in (
                (DaemonRecordStore, "write"),
                (DaemonRecordStore, "remove"),
                (type(host.driver), "set_compute_mode"),
                (type(host.driver), "observe_gpu"),
                (MpsProcess, "start"),
                (MpsProcess, "stop"),
                (MpsControlClient, "limit_memory"),
                (MpsControlClient, "said_limits"),
                (mps_daemons, "_refuse_silent"),
            ):
                moments.watch(home, name)
            with suppress(TrancheError):
                work(host)
        return moments.passed

    child: Child[int] = Child(run)
    return 0 if child.wait() == -signal.SIGKILL else child.result()


def check_recovered(node: Node, before: ComputeMode, schedule: Schedule) -> None:
    events = node.folder / "struck"  # a moment that never came has seen no event
    happened = events.read_text().splitlines() if events.exists() else []
    if {RELOAD, REBOOT}.intersection(happened):
        before = ComputeMode.DEFAULT
    if REBOOT in happened:
        other = node.folder / "boot_id"
        other.write_text("another-boot\n")
        session._BOOT_ID = other
    with node.host(clock=lambda: time.time() + 2 * IDLE_SECONDS) as host:
        host.view()
        request = Request(WholeGpus(1))
        ticket = host.enqueue(request, command="alone", pid=os.getpid())
        held = start_share(host, ticket, lambda view: decide(view, request))
        assert isinstance(held, HeldAllocation), held
        seen = host.observe().gpus[0]
        assert seen.compute_mode is before, f"given away whole in mode {seen.compute_mode} after {dict(schedule)}"
        assert not seen.daemons
        assert processes_of(node) == []
        host.release(held.allocation.id, why="ended")
        assert host.daemons.records.all() == ()


def cases(moments: int) -> Iterator[tuple[ComputeMode, Schedule]]:
    """Every event at every moment, then pairs of them at random."""
    modes = (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE)
    events = (FAIL, KILL, RELOAD, DEATH, REBOOT)
    single = [(mode, {moment: event}) for mode in modes for event in events for moment in range(moments)]
    random.Random("singles").shuffle(single)
    yield from single
    rng = random.Random("pairs")
    for _ in count():
        first, second = sorted(rng.sample(range(moments + moments // 2), 2))
        yield rng.choice(modes), {first: rng.choice((RELOAD, DEATH, FAIL)), second: rng.choice(events)}


def test_the_compute_mode_is_what_it_was_before() -> None:
    moments = in_new_machine(ComputeMode.DEFAULT, {})
    assert moments >= 50
    wrong = []
    for mode, schedule in islice(cases(moments), CASES):
        try:
            in_new_machine(mode, schedule)
        except ChildFailed as failed:
            wrong.append(f"{mode}, {schedule}: {str(failed).splitlines()[-1]}")
    assert not wrong, "\n".join(wrong)


def in_new_machine(mode: ComputeMode, schedule: Schedule) -> int:
    folder = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))  # sockets have short names
    try:
        node = node_of(folder, machine_type="g4dn.xlarge")

        def prepare() -> None:
            with node.host() as host:
                host.driver.set_compute_mode(only(host).uuid, mode)

        in_child(prepare)
        moments = struck(node, schedule)
        in_child(lambda: check_recovered(node, mode, schedule))
        return moments
    finally:
        end_daemons_below(folder)
        shutil.rmtree(folder)
