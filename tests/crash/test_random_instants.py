"""Kill two busy processes at random instants, in the middle of whatever they do, also of a call of the driver."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.crash import random_life
from tests.crash.aftermath import Slots, check_kept, check_serves, check_settled, look, one_further_command
from tests.crash.scenario import FAMILIES, Keeper, Scenario, prepare
from tests.node.processes import Child
from tests.support import length
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import InstanceKey
from tranche.core.wire import grant_from_dict
from tranche.node.locks.locks import is_held
from tranche.node.state.session import StateFolder, process_start_time
from tranche_simulator.machine import Client

CASES = length.cases(90, "TRANCHE_CRASH_CASES")
"""How many crashes over all families; TRANCHE_CRASH_CASES asks for more."""

TIME_SCALE = 0.03
"""Creating an instance then takes about 6 ms, a reset 90 ms: most kills land in a call of the driver."""

_COPIES = 5
_LONGEST_LIFE_SECONDS = 0.4

Parts = frozenset[tuple[InstanceKey, tuple[ProfileName, ...]]]


@pytest.mark.parametrize("family", length.some_of(FAMILIES, 2))
def test_a_crash_at_any_instant_is_cleared_by_the_next_command(
    tmp_path: Path, family: str, record_property: Callable[[str, object], None]
) -> None:
    cases = max(1, CASES // len(FAMILIES))
    for case in range(cases):
        if case % _COPIES == 0:
            template = prepare(tmp_path / f"template-{case}", FAMILIES[family], seed=case)
        where = f"{family}, case {case}"
        scenario = template.copy_to(tmp_path / f"copy-{case}")
        try:
            live_and_die(scenario, where)
        except BaseException as error:
            error.add_note(where)
            raise
        shutil.rmtree(scenario.node.folder)
    record_property("crashes", cases)


def live_and_die(scenario: Scenario, seed: str) -> None:
    rng = random.Random(seed)
    scenario.node.machine.set_time_scale(TIME_SCALE)
    original = parts_of(scenario)
    keeper = Keeper(scenario)
    leash, let_go = os.pipe()
    try:
        victims = [
            Child(lambda number=number: _victim(scenario, f"{seed} {number}", leash, let_go))  # type: ignore[misc]
            for number in range(2)
        ]
        for victim in victims:
            time.sleep(rng.uniform(0.0, _LONGEST_LIFE_SECONDS))
            victim.end()
        check_after(scenario, original, rng)
    finally:
        os.close(let_go)
        os.close(leash)
        keeper.end()


def _victim(scenario: Scenario, seed: str, leash: int, let_go: int) -> None:
    os.close(let_go)
    random_life.live(scenario, seed, leash)


def check_after(scenario: Scenario, original: Parts, rng: random.Random) -> None:
    before, granted = living_allocations(scenario)
    clients = set(map(where_is, scenario.node.machine.clients()))
    found = one_further_command(scenario, rng)
    failures = random_life.work_failures(scenario)
    assert not failures.exists(), failures.read_text()
    living = {name: slots for name, slots in before.items() if name in living_allocations(scenario)[0]}
    dying = {name: slots for name, slots in before.items() if name not in living and name in found.allocations}
    check_kept(scenario, found, {**living, **dying})
    using = {
        place for place in clients if process_start_time(place[0])
    }  # work that was told to end may just have ended
    assert using <= set(map(where_is, scenario.node.machine.clients())), "a process lost its slice"
    for taken in scenario.node.taken():
        for name, slots in living.items():
            assert taken.when < granted[name] or taken.key not in slots or taken.key is None, f"{taken} of {name}"
    declared = original | declared_parts(scenario)
    for cut in found.cuts.values():
        assert cut.mode == cut.pending, "a change of MIG mode is left half-way"
        assert cut.slots <= declared, "there is an instance that nobody declared"
    scenario.node.machine.set_time_scale(0.0)
    check_settled(scenario)
    if rng.random() < 0.3:
        check_serves(scenario, rng)


def where_is(client: Client) -> tuple[int, int, int | None, int | None]:
    return client.pid, client.gpu, client.gpu_instance_id, client.compute_instance_id


def parts_of(scenario: Scenario) -> Parts:
    """Every instance with what is inside."""
    return frozenset(part for cut in look(scenario).values() for part in cut.slots)


def declared_parts(scenario: Scenario) -> Parts:
    """Every instance that some plan in the journal was to create."""
    db = sqlite3.connect(scenario.node.state_dir / "ledger.db")
    try:
        steps = [json.loads(row[0]) for row in db.execute("SELECT step FROM steps")]
    finally:
        db.close()
    return frozenset(
        (
            InstanceKey(step["gpu"], parse_profile(step["profile"]), Placement(step["start"], step["size"])),
            tuple(sorted(map(parse_profile, step["slices"]))),
        )
        for step in steps
        if step["action"] == "CreateInstance"
    )


def living_allocations(scenario: Scenario) -> tuple[Mapping[str, Slots], Mapping[str, float]]:
    """The allocations that a living process holds: their slots, and since when they are granted (seconds since the epoch)."""
    places = StateFolder(scenario.node.state_dir)
    slots: dict[str, Slots] = {}
    granted: dict[str, float] = {}
    db = sqlite3.connect(scenario.node.state_dir / "ledger.db")
    try:
        for (name,) in db.execute("SELECT id FROM allocations").fetchall():
            if not is_held(places.allocation(name)):
                continue
            grants = db.execute("SELECT grant FROM grants WHERE allocation_id = ? ORDER BY ordinal", (name,))
            slots[name] = tuple(grant_from_dict(json.loads(row[0])).slot for row in grants)
            # A pod holds from its first moment on, and no event says so.
            when = (
                "SELECT coalesce((SELECT time FROM events WHERE kind = 'Granted' AND allocation_id = id), created) "
                "FROM allocations WHERE id = ?"
            )
            granted[name] = db.execute(when, (name,)).fetchone()[0]
    finally:
        db.close()
    return slots, granted
