"""Processes that may have come of a command, and that only root can look into: they keep its share, and it is said who."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.machines import needs_root
from tests.node.processes import Child, in_child
from tranche.core.allocation import Allocation, NodeView, Phase, WholeGpu
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, WholeGpus
from tranche.core.state import NodeState
from tranche.node import chronicle, register
from tranche.node.checkup import check_leftovers
from tranche.node.ledger import Ledger
from tranche.node.leftovers import anything_left
from tranche.node.processes import Process, process_at
from tranche.node.recovery import Recovery
from tranche.node.session import Places, pid_namespace

NOBODY = 65534


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.fixture
def places() -> Iterator[Places]:
    """A state folder of nobody's."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, NOBODY, NOBODY)
        yield Places(Path(name))


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


def settle(places: Places, times: int = 1) -> tuple[Allocation, ...]:
    """Settle the share `abcd1234`, whose command has ended, so many times; the allocations left."""
    ledger = Ledger(places.ledger)
    recovery = Recovery(ledger, places, cast(Any, None), lambda: 2.0)
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
def test_a_suspect_keeps_the_share_until_root_looks(places: Places, hidden: Process) -> None:
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
    assert f"pid {hidden.pid}, which may have come of it" in event.message

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
