"""Random lives and deaths on a shared T4: nobody has more than his share unless it is said, and nothing is left at the end.

`TRANCHE_FAULT_CASES` says how many faults there are, 16 by default; a shared GPU has about eight in one life.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.local.test_fractions import Tenant, end_daemons, holders, later, nothing_left, tenant
from tests.machines import TestMachine, machine_in, wait_until
from tranche.node.mps_daemons import MpsDaemons
from tranche.node.mps_records import DaemonRecord, DaemonRecords
from tranche.node.session import Places

FAULTS = int(os.environ.get("TRANCHE_FAULT_CASES", "16"))
IN_ONE_LIFE = 8
SEVERAL = 3
# It takes what it can get, works, asks the driver once more at each word, and goes on whatever it hears.
BUSY = """
result, made = cu.cuInit(0)[0], 0
if not int(result):
    answer = cu.cuCtxCreate(None, 0, check(cu.cuDeviceGet(0)))
    result = answer[0]
if not int(result):
    work = kernel()
    while not code(cu.cuMemAlloc(128 << 20)): made += 128
    launch(work, 20 * 10**6)
tell([int(result), made])
while wait().strip() == "more": cu.cuMemAlloc(64 << 20)
"""


class Life:
    """One shared GPU, its tenants, and who kills them."""

    def __init__(self, machine: TestMachine, seed: int) -> None:
        self.machine = machine
        self.random = random.Random(seed)
        self.tenants: list[Tenant] = []
        self.said: list[str] = []

    @property
    def records(self) -> tuple[DaemonRecord, ...]:
        return DaemonRecords(Places(self.machine.state_dir).mps).all()

    def come(self) -> None:
        """Somebody asks for a part, and gets it or is refused."""
        each = tenant(self.machine, "--no-wait", "--gpu-memory", self.random.choice(["2G", "3G", "4G"]), code=BUSY)
        if each.told() is None:
            code, said = each.ended()
            assert code in (26, 28, 32), said
        else:
            self.tenants.append(each)

    def fault(self) -> None:
        """One of the things that can go wrong."""
        faults: list[Callable[[], None]] = [
            self.kill_tenant,
            self.kill_run,
            self.kill_server,
            self.kill_daemon,
            self.take_back,
            self.break_limits,
        ]
        act = self.random.choice(faults)
        self.said.append(act.__name__)
        act()

    def kill_tenant(self) -> None:
        if self.random.random() < 0.5:
            self.machine.machine.inject_error("mpsClientKilled", 999)
        for holder in self.random.sample(there := holders(self.machine), min(1, len(there))):
            with suppress(ProcessLookupError):
                os.kill(holder["pid"], signal.SIGKILL)

    def kill_run(self) -> None:
        for each in self.random.sample(self.tenants, min(1, len(self.tenants))):
            each.process.kill()

    def kill_server(self) -> None:
        for record in self.records:
            for server in MpsDaemons(Places(self.machine.state_dir)).process(record.device_uuid).servers():
                os.kill(server.pid, signal.SIGKILL)

    def kill_daemon(self) -> None:
        for record in self.records:
            if record.pid:
                with suppress(ProcessLookupError):
                    os.kill(record.pid, signal.SIGKILL)

    def take_back(self) -> None:
        for holder in self.random.sample(there := holders(self.machine), min(1, len(there))):
            self.machine.tranche("release", holder["id"], "--terminate", "--grace", "1s", code=None)

    def break_limits(self) -> None:
        """The driver does not do what it is told about the next limit."""
        self.machine.machine.inject_error("mpsSetLimit", 999)

    def check(self) -> None:
        """Whoever has more than his share is said to."""
        used = {client.pid: client.memory for client in self.machine.machine.clients()}
        for holder in holders(self.machine):
            (grant,) = holder["grants"]
            if grant["isolation"] == "soft":
                assert used.get(holder["pid"], 0) <= grant["memoryBytes"], self.said

    def end(self) -> None:
        """All go, and nothing is left."""
        for holder in holders(self.machine):
            with suppress(ProcessLookupError):
                os.kill(holder["pid"], signal.SIGKILL)
        self.machine.end()
        wait_until(lambda: holders(self.machine) == [])
        later(self.machine)
        self.machine.tranche("gpus")
        nothing_left(self.machine)
        self.machine.machine.clear_injections()
        last = tenant(self.machine, "--no-wait", "--gpu-memory", "4G", code=BUSY)
        result, made = last.told()
        assert result == 0, self.said
        assert 4 * 10**9 - (128 << 20) < made << 20 < 4 * 10**9 + (400 << 20)


@pytest.mark.parametrize("seed", range(max(1, FAULTS // IN_ONE_LIFE)))
def test_whatever_dies_nobody_has_more_than_it_is_said_and_nothing_is_left(seed: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name,
        machine_in(Path(name), machine_type="g4dn.xlarge") as machine,
    ):
        machine.machine.set_time_scale(1.0)
        life = Life(machine, seed)
        try:
            for _ in range(IN_ONE_LIFE):
                for _ in range(life.random.randint(1, SEVERAL)):
                    life.come()
                    life.check()
                life.fault()
                life.check()
            life.end()
        finally:
            machine.end()
            end_daemons(machine)
