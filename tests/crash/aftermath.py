"""What must hold after a crash and one further command, whatever was going on."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.crash.scenario import Scenario, random_request
from tests.node.machines import Cut, cuts_of, start_share
from tests.node.processes import Child, in_child
from tranche.core.errors import TrancheError
from tranche.core.state import InstanceKey
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.planning.decide.allocate import decide
from tranche.planning.steps.plan import Plan

Cuts = dict[str, Cut]
Slots = tuple[InstanceKey | None, ...]


class Fuse:
    """Kills the process at the n-th journal boundary, counted over all threads; 0 for never."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self) -> None:
        with self._lock:
            self.count += 1
            if self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


KILLED = "killed"


def crash(scenario: Scenario, work: Callable[[Host], None], at: int) -> str:
    """Do the work in a process that is killed at that boundary: KILLED, or the reason of its refusal, or nothing."""

    def victim() -> str:
        with scenario.node.host(boundary=Fuse(at), sleep=lambda seconds: None) as host:
            try:
                work(host)
            except TrancheError as error:
                return error.reason
        return ""

    child = Child(victim)
    if child.wait() == -signal.SIGKILL:
        child.end()
        return KILLED
    return child.result()


def look(scenario: Scenario) -> Cuts:
    """How the machine is cut, by the driver alone: no ledger, no recovery."""

    def observe() -> Cuts:
        with scenario.node.driver() as driver:
            return cuts_of(driver.observe())

    return in_child(observe)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The machine after a further command."""

    cuts: Cuts
    allocations: dict[str, Slots]
    owned: frozenset[InstanceKey]
    leftovers: tuple[str, ...]


def one_further_command(scenario: Scenario, rng: random.Random) -> Aftermath:
    """Run a command that somebody might run next, and look."""
    empty_change = rng.random() < 0.5

    def command() -> Aftermath:
        with scenario.node.host() as host:
            if empty_change:
                host.change(lambda view: Plan("nothing"))
            view = host.view()
            leftovers = [f"changing {gpu}" for gpu in view.changing]
            leftovers += [f"waiter {waiter.id}" for waiter in host.waiters()]
            with host.ledger.read() as db:
                open_plans = "SELECT purpose, status FROM plans WHERE status NOT IN ('done', 'undone')"
                leftovers += [f"plan {row}" for row in db.execute(open_plans)]
                nobodys = (
                    "SELECT unit FROM units WHERE coalesce(allocation_id, '') NOT IN (SELECT id FROM allocations) "
                    "AND coalesce(device_id, '') NOT IN (SELECT id FROM devices WHERE holders > 0)"
                )
                leftovers += [f"unit {row}" for row in db.execute(nobodys)]
            held = {each.id: tuple(grant.slot for grant in each.grants) for each in view.allocations}
            return Aftermath(cuts_of(view.node), held, view.owned, tuple(leftovers))

    return in_child(command)


def check_kept(scenario: Scenario, after: Aftermath, living: Mapping[str, Slots]) -> None:
    """No slice with an allocation or a process was touched, none is lost, nothing is left over.

    `living` are the allocations that were held before, and still are, with their slots.
    """
    keep = scenario.keep
    assert after.leftovers == ()
    assert after.allocations == living, "living allocations, and only those, stay as they are"
    present = {key for cut in after.cuts.values() for key, _ in cut.slots}
    assert keep.slots <= present
    assert {key for slots in living.values() for key in slots if key is not None} <= present
    assert after.owned <= present, "Tranche knows no instance that is not there"
    for taken in scenario.node.taken():
        if taken.what == "destroy":
            assert taken.key not in keep.slots, f"{taken.key} was about to be destroyed"
        else:
            assert taken.gpu_uuid not in keep.gpus, f"{taken.gpu_uuid} was about to be {taken.what}"


def check_settled(scenario: Scenario) -> None:
    """No recovery is needed, and a second one does nothing: no call that changes a GPU, not one record.

    What only looks at the machine need not have written down that a daemon died before; the first change does.
    """
    calls = scenario.node.machine.total_change_calls()

    def recover() -> bool:
        with scenario.node.host() as host:
            needed = host.recovery_needed()
            host.change(lambda view: Plan("nothing"))
            return needed

    assert not in_child(recover)
    ledger = dump(scenario)
    assert not in_child(recover)
    assert scenario.node.machine.total_change_calls() == calls
    assert dump(scenario) == ledger


def check_serves(scenario: Scenario, rng: random.Random) -> None:
    """The machine still serves requests, and gives nobody what somebody holds."""
    seed = rng.random()

    def serve() -> tuple[InstanceKey | None, str] | None:
        with scenario.node.host() as host:
            request = random_request(host.view(), random.Random(seed))
            ticket = host.enqueue(request, command="next", pid=os.getpid())
            outcome = start_share(host, ticket, lambda view: decide(view, request))
            if not isinstance(outcome, HeldAllocation):
                host.leave(ticket)
                return None
            grant = outcome.allocation.grants[0]
            host.release(outcome.allocation.id, why="test")
            outcome.lock.release(remove=True)
            return grant.slot, grant.gpu_uuid

    served = in_child(serve)
    if served is None:
        return
    key, gpu = served
    assert key is not None or gpu not in scenario.keep.gpus
    for kept in scenario.keep.slots:
        if key is not None and kept.gpu_uuid == key.gpu_uuid:
            assert not key.placement.overlaps(kept.placement), f"{key} was granted over {kept}"


def dump(scenario: Scenario) -> dict[str, list[tuple[object, ...]]]:
    """Every record of the ledger."""

    db = sqlite3.connect(scenario.node.state_dir / "ledger.db")
    try:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: sorted(db.execute(f"SELECT * FROM {table}").fetchall(), key=str) for table in tables}
    finally:
        db.close()
