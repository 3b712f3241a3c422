"""Random lives and deaths on a shared T4 or slice: nobody has more than his share unless it is said, and nothing is left at last.

`TRANCHE_FAULT_CASES` says how many faults there are, by default 16, and four in `make test`; a shared GPU has up to eight in one
life. `TRANCHE_FAULT_SEED` is that of the first life, 0 by default; each life that fails says its seed and what was done to it.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from tests.local.test_fractions import ILLEGAL_ADDRESS, Tenant, end_daemons, holders, later, nothing_stays, tenant
from tests.machines import TestMachine, machine_in, remove_under_writers, wait_until
from tests.simulator.control_groups import hierarchy
from tests.support.length import rounds
from tranche.core.errors import GpuBusy, HardwareError, MpsFailed, NoRoom, SharingUnavailable, VerificationFailed
from tranche.hardware.mps_process import DaemonProcess
from tranche.node.limits.share_groups import ShareGroupManager
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.state.session import StateFolder

FAULTS = rounds(16, 4, "TRANCHE_FAULT_CASES")
FIRST_SEED = int(os.environ.get("TRANCHE_FAULT_SEED", "0"))
IN_ONE_LIFE = min(8, FAULTS)
LIVES = max(1, FAULTS // IN_ONE_LIFE)
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


REFUSED = {
    each.exit_code for each in (NoRoom, GpuBusy, MpsFailed, VerificationFailed, HardwareError, SharingUnavailable)
}


class Shared(StrEnum):
    """What is shared, and by what."""

    GPU = "a GPU, by MPS"
    SLICE = "a slice, by MPS"
    LIMITS = "a GPU, by the driver's memory limits"


class Life:
    """One shared device, its tenants, and who kills them."""

    def __init__(self, machine: TestMachine, seed: int, shared: Shared) -> None:
        self.machine = machine
        self.shared = shared
        self.random = random.Random(seed)
        self.tenants: list[Tenant] = []
        self.said: list[str] = []

    @property
    def records(self) -> tuple[DaemonRecord, ...]:
        return DaemonRecordStore(StateFolder(self.machine.state_dir).mps).all()

    @property
    def servers(self) -> tuple[DaemonProcess, ...]:
        daemons = MpsDaemonManager(StateFolder(self.machine.state_dir), self.machine.environment)
        return tuple(server for record in self.records for server in daemons.process(record.device_uuid).servers())

    def come(self) -> None:
        """Somebody asks for a part, and gets it or is refused; he is not let in to hang."""
        each = self.ask()
        if each.told_or_ended() is None:
            code, said = each.ended()
            assert code in REFUSED, (code, said, self.said)
        else:
            self.tenants.append(each)

    def ask(self) -> Tenant:
        return self.tenant(self.random.choice(["2G", "3G", "4G"]))

    def tenant(self, memory: str) -> Tenant:
        # By a ceiling, which no slice of its own has, a part of a slice is asked for.
        ceiling = ("--compute", "25") if self.shared is Shared.SLICE else ()
        return tenant(self.machine, "--no-wait", "--gpu-memory", memory, *ceiling, code=BUSY)

    def fault(self) -> None:
        """One of the things that can go wrong."""
        any_time = [self.kill_tenant, self.kill_run, self.kill_command, self.take_back, self.lose_folder]
        by_mps: list[Callable[[], None]] = [
            self.kill_server,
            self.kill_daemon,
            self.stop_one,
            self.go_on,
            self.wedge,
            self.fail_start,
            self.illegal_address,
            self.break_limits,
            self.change_quotas,
        ]
        act = self.random.choice([*any_time, *([self.refuse_limits] if self.shared is Shared.LIMITS else by_mps)])
        self.said.append(act.__name__)
        act()

    def kill_tenant(self) -> None:
        if self.random.random() < 0.5:
            self.machine.machine.inject_error("mpsClientKilled", 999)
        for holder in self.random.sample(there := self.named(), min(1, len(there))):
            with suppress(ProcessLookupError):
                os.kill(holder["pid"], signal.SIGKILL)

    def named(self) -> list[dict[str, Any]]:
        """The shares whose process is written down; a `tranche run` that was killed before it could has none."""
        return [each for each in holders(self.machine) if each["pid"]]

    def kill_run(self) -> None:
        for each in self.random.sample(self.tenants, min(1, len(self.tenants))):
            each.process.kill()

    def kill_command(self) -> None:
        """At any moment, from its first line on."""
        each = self.ask()
        time.sleep(self.random.random())
        each.process.kill()
        each.process.communicate()

    def kill_server(self) -> None:
        for server in self.servers:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)

    def kill_daemon(self) -> None:
        for record in self.records:
            if record.pid:
                with suppress(ProcessLookupError):
                    os.kill(record.pid, signal.SIGKILL)

    def stop_one(self) -> None:
        """Somebody stops the daemon or its server, and may forget it."""
        pids = [server.pid for server in self.servers] + [record.pid for record in self.records if record.pid]
        for pid in self.random.sample(pids, min(1, len(pids))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in [server.pid for server in self.servers] + [record.pid for record in self.records if record.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def wedge(self) -> None:
        """The server says that it is well, and answers no client from the next one on."""
        self.machine.machine.inject_error("mpsServerHangs", 999)

    def fail_start(self) -> None:
        self.machine.machine.inject_error("mpsServerStart", 999)

    def illegal_address(self) -> None:
        self.machine.machine.inject_error("cuMemAlloc", ILLEGAL_ADDRESS)
        for each in self.random.sample(self.tenants, min(1, len(self.tenants))):
            assert each.process.stdin is not None
            with suppress(BrokenPipeError):
                each.process.stdin.write("more\n")
                each.process.stdin.flush()

    def lose_folder(self) -> None:
        """Somebody deletes the state folder, the sockets of daemons and the notes of groups with it."""
        remove_under_writers(self.machine.state_dir)
        self.machine.tranche("ps")

    def refuse_limits(self) -> None:
        self.machine.machine.inject_error("nvmlDeviceSetMemoryLimits", 999)

    def take_back(self) -> None:
        for holder in self.random.sample(there := holders(self.machine), min(1, len(there))):
            self.machine.tranche("release", holder["id"], "--terminate", "--grace", "1s", code=None)

    def break_limits(self) -> None:
        """The driver does not do what it is told about the next limit."""
        self.machine.machine.inject_error("mpsSetLimit", 999)

    def change_quotas(self) -> None:
        """A tenant comes to the daemon's socket, and tells it other limits."""
        daemons = MpsDaemonManager(StateFolder(self.machine.state_dir), self.machine.environment)
        for record in self.records:
            with suppress(MpsFailed):
                daemons.process(record.device_uuid).control.ask("set_default_device_pinned_mem_limit 0 15G", seconds=1)

    def check(self) -> None:
        """Whoever has more than his share is said to."""
        used = {client.pid: client.memory for client in self.machine.machine.clients()}
        for holder in holders(self.machine):
            (grant,) = holder["grants"]
            if grant["isolation"] == "soft":
                assert used.get(holder["pid"], 0) <= grant["memoryBytes"], self.said

    def end(self) -> None:
        """All go, and nothing is left."""
        for holder in self.named():
            with suppress(ProcessLookupError):
                os.kill(holder["pid"], signal.SIGKILL)
        self.machine.end()
        wait_until(lambda: holders(self.machine) == [])
        later(self.machine)
        nothing_stays(self.machine)
        places = StateFolder(self.machine.state_dir)
        assert [*ShareGroupManager(places).left(()), *ShareGroupManager(places).strays()] == []
        self.machine.machine.clear_injections()
        result, made = self.tenant("4G").told()
        assert result == 0, self.said
        assert 4 * 10**9 - (128 << 20) < made << 20 < 4 * 10**9 + (400 << 20)


def live(seed: int, folder: Path, shared: Shared) -> None:
    """A life, its faults, and its end."""
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="r", dir="/tmp"))
        if shared is Shared.LIMITS:
            stack.enter_context(hierarchy(folder))
        machine = stack.enter_context(machine_in(Path(name), "A100-40GB" if shared is Shared.SLICE else "T4"))
        if shared is Shared.LIMITS:
            machine.machine.set_driver("615.71.09")
        elif shared is Shared.SLICE:
            machine.cut_by_hand(0, "3g.20gb")
        machine.machine.set_time_scale(1.0)
        life = Life(machine, seed, shared)
        try:
            for _ in range(IN_ONE_LIFE):
                for _ in range(life.random.randint(1, SEVERAL)):
                    life.come()
                    life.check()
                life.fault()
                life.check()
            life.end()
        except BaseException as error:
            error.add_note(f"seed {seed}: {' '.join(life.said)}")
            raise
        finally:
            machine.end()
            end_daemons(machine)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + LIVES))
def test_whatever_dies_nobody_has_more_than_it_is_said_and_nothing_is_left(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, (Shared.GPU, Shared.LIMITS, Shared.GPU, Shared.SLICE)[seed % 4])
