"""Processes that may have come of a command, and that only root can look into: they keep its share, and it is said who."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.machines import needs_root, readable_folder
from tests.node.machines import node_of
from tests.node.processes import Child, in_child
from tests.support.in_process import NOBODY
from tranche.core.allocation import Allocation, NodeView, Phase, WholeGpu
from tranche.core.errors import GpuBusy
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, WholeGpus
from tranche.core.state import NodeState
from tranche.local import termination
from tranche.local.termination import take_back
from tranche.node.execution.host_context import HostContext
from tranche.node.health.checkup import check_leftovers
from tranche.node.processes.processes import Process, process_at
from tranche.node.recovery.recovery import Recovery
from tranche.node.state.session import StateFolder, pid_namespace, process_start_time
from tranche.node.store import chronicle, register
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import anything_left


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.fixture
def places() -> Iterator[StateFolder]:
    """A state folder of nobody's."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, NOBODY, NOBODY)
        yield StateFolder(Path(name))


@pytest.fixture
def hidden() -> Iterator[Process]:
    """A process of nobody's that nobody may not look into: it gave root up and has run no program since."""

    def hide() -> None:
        become_nobody()
        signal.pause()

    child = Child(hide)
    try:
        while (here := process_at(child.pid)) is None or here.uid != NOBODY:
            pass
        yield here
    finally:
        child.end()


def settle(places: StateFolder, times: int = 1) -> tuple[Allocation, ...]:
    """Settle the share `abcd1234`, whose command has ended, so many times; the allocations left."""
    machine = HostContext(cast(Any, None), places.state_dir, clock=lambda: 2.0)
    ledger, recovery = machine.ledger, Recovery(machine, cast(Any, None))
    for _ in range(times):
        recovery.settle_share("abcd1234", why="it ended")
    with ledger.read() as db:
        found = register.allocations(db)
    ledger.close()
    return found


def as_nobody(work: Callable[[], Any]) -> Any:
    def run() -> Any:
        become_nobody()
        return work()

    return in_child(run)


@needs_root
def test_a_suspect_keeps_the_share_until_root_looks(places: StateFolder, hidden: Process) -> None:
    def begin() -> None:
        ledger = Ledger(places.ledger)
        with ledger.write() as db:
            # The command started with the suspect, and has ended.
            keeper = ProcessKeeper(2**22 - 1, hidden.started, pid_namespace())
            grants = (WholeGpu("GPU-0"),)
            register.add_allocation(
                db, Allocation("abcd1234", Request(WholeGpus(1)), grants, Phase.ACTIVE, 1.0, "true", keeper)
            )
        ledger.close()

    as_nobody(begin)
    (allocation,) = as_nobody(lambda: settle(places, times=3))
    assert isinstance(allocation.keeper, ProcessKeeper)
    assert (allocation.keeper.pid, allocation.keeper.suspected) == (hidden.pid, True)

    ledger = Ledger(places.ledger)
    with ledger.read() as db:
        (event,) = chronicle.events(db)
    assert event.name == "Kept"
    assert f"pid {hidden.pid}, which it may have started" in event.message

    def left() -> bool:
        with Ledger(places.ledger).read() as db:
            return anything_left(db, places)

    assert not as_nobody(left), "nobody can find out more"
    assert left(), "root can"
    (finding,) = [
        each for each in check_leftovers(False, NodeView(NodeState(()), (allocation,))) if each.check == "shares"
    ]
    assert f"pid {hidden.pid}" in finding.text
    assert "sudo" in finding.hint
    assert settle(places) == (), "it did not come of the command"


@needs_root
@pytest.mark.parametrize("given_back", [True, False])
def test_who_ends_his_own_command_is_told_of_a_suspect_only_while_the_share_is_kept(
    given_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tranche run` knows what came of its command: what it has given back is free, whoever else runs."""
    monkeypatch.setattr(termination, "_OWNER_SECONDS", 0.5)
    with readable_folder() as folder:
        monkeypatch.setenv("TRANCHE_CACHE_DIR", str(folder / "cache"))
        node = node_of(folder, machine_type="g4dn.xlarge")
        node.state_dir.mkdir()
        os.chown(node.state_dir, NOBODY, NOBODY)

        def work() -> str:
            with node.host() as host:
                command = subprocess.Popen(["sleep", "600"])
                suspect = Child(signal.pause)
                keeper = ProcessKeeper(command.pid, process_start_time(command.pid), pid_namespace())
                grants = (WholeGpu("GPU-0"),)
                share = Allocation("abcd1234", Request(WholeGpus(1)), grants, Phase.ACTIVE, 1.0, "sleep", keeper)
                with host.ledger.write() as db:
                    register.add_allocation(db, share)

                def give_back() -> None:
                    command.wait()
                    if given_back:
                        with host.ledger.write() as db:
                            register.remove_allocation(db, share.id)

                owner = threading.Thread(target=give_back)
                owner.start()
                try:
                    return signal.Signals(take_back(host, share.id, terminate=True, grace=10.0).signal).name
                except GpuBusy as error:
                    return error.message
                finally:
                    suspect.end()
                    command.kill()
                    owner.join()

        said = as_nobody(work)
        assert said == "SIGTERM" if given_back else "may be in use by pid" in said
