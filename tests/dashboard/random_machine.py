"""A machine to which random things happen: shares come and go, layouts are applied, processes are killed at any point."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.machines import TestMachine
from tests.node.machines import Node, start_share
from tests.node.processes import Child
from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.core.grid import Placement
from tranche.core.request import Request, parse_request
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.planning.decide.allocate import decide
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import plan_layout
from tranche.planning.steps.plan import Plan

_REQUESTS = (
    {"gpu_memory": "4Gi"},
    {"gpu_memory": "12Gi"},
    {"gpu_memory": "30Gi"},
    {"mig_profile": "1g.5gb"},
    {"mig_profile": "2g.10gb"},
    {"mig_profile": "3g.40gb"},
    {"gpus": "1"},
    {"gpus": "2"},
)
_MOST_BOUNDARIES = 14


@dataclass(slots=True)
class RandomMachine:
    """What happens is a matter of the seed alone, but for what runs at the same time."""

    machine: TestMachine
    random: random.Random
    _holders: list[Child[None]] = field(default_factory=list)

    def step(self) -> str:
        """Let something happen, and say what."""
        actions = [self._come, self._come, self._come, self._go, self._go, self._lay_out, self._cut_by_hand]
        return self.random.choice(actions)()

    def end(self) -> None:
        """End everybody."""
        for each in self._holders:
            each.end()

    def _come(self) -> str:
        asked = self.random.choice(_REQUESTS)
        request = parse_request(**asked, isolation="hard")
        self._start(lambda host: _hold(host, request))
        return f"somebody asks for {request}"

    def _go(self) -> str:
        if not self._holders:
            return "nobody can go"
        self._holders.pop(self.random.randrange(len(self._holders))).end()
        return "somebody is killed"

    def _lay_out(self) -> str:
        number = self.random.randrange(100)

        def work(host: Host) -> None:
            def decided(view: NodeView) -> Plan:
                layouts = generate_layouts(view.node).layouts
                decision = plan_layout(view, layouts[number % len(layouts)])
                decision.refuse_if_blocked()
                return decision.plan

            host.change(decided, seconds=60.0)

        self._start(work)
        self._holders.pop().end()
        return "somebody applies a layout"

    def _cut_by_hand(self) -> str:
        number = self.random.randrange(100)

        def work(host: Host) -> None:
            cut = [gpu for gpu in host.observe() if gpu.mig_enabled and gpu.profiles]
            if cut:
                gpu = cut[number % len(cut)]
                profile = gpu.profiles[number % len(gpu.profiles)]
                host.driver.create_gpu_instance(gpu.uuid, profile.name, Placement(profile.starts[0], profile.size))

        self._start(work)
        self._holders.pop().end()
        return "another tool cuts"

    def _start(self, work: Callable[[Host], object]) -> None:
        """In a process that is killed at a random boundary of its journal, or lives on when it has worked; wait for either."""
        boundary = self.random.randrange(2 * _MOST_BOUNDARIES)
        reading, writing = os.pipe()

        def run() -> None:
            os.close(reading)
            count = 0

            def at_boundary() -> None:
                nonlocal count
                if count == boundary:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1

            with Node(self.machine.machine, self.machine.folder).driver() as driver:
                host = Host(driver, self.machine.state_dir, boundary=at_boundary)
                with suppress(TrancheError):
                    work(host)
                os.write(writing, b"!")
                time.sleep(3600)

        self._holders.append(Child(run))
        os.close(writing)
        os.read(reading, 1)  # nothing comes of one that was killed
        os.close(reading)


def _hold(host: Host, request: Request) -> None:
    """Get the share, or wait for it for ever."""
    ticket = host.enqueue(request, command=f"train.py {request}", pid=os.getpid())
    try:
        held = start_share(host, ticket, lambda view: decide(view, request), seconds=60.0)
    except TrancheError:
        host.leave(ticket)
        return
    _kept.append(held if isinstance(held, HeldAllocation) else ticket)


_kept: list[object] = []
"""Locks end with the objects that have them."""
