"""Kill the process at every journal boundary of random plans, on every family of boards."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.aftermath import (
    KILLED,
    Cuts,
    check_kept,
    check_serves,
    check_settled,
    crash,
    look,
    one_further_command,
)
from tests.crash.scenario import FAMILIES, Keeper, Scenario, prepare, random_plan, random_request
from tests.node.machines import start_share
from tests.support import length
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.planning.decide.allocate import decide

CASES = length.cases(360, "TRANCHE_CRASH_CASES")
"""How many crashes, about, over all families and both kinds of work; TRANCHE_CRASH_CASES asks for more."""

CHANGE, REQUEST = "change", "request"

Work = Callable[[Host], None]


def change_work(scenario: Scenario, seed: int) -> Work:
    """A declared change; two GPUs in five are asked for what must be refused, where anything is held."""
    return lambda host: _change(host, scenario, seed)


def _change(host: Host, scenario: Scenario, seed: int) -> None:
    host.change(lambda view: random_plan(view, scenario.keep, random.Random(f"plan {seed}"), spiteful=0.4))


def request_work(scenario: Scenario, seed: int) -> Work:
    """A request that is served and, half of the time, given back."""

    def work(host: Host) -> None:
        rng = random.Random(f"request {seed}")
        request = random_request(host.view(), rng)
        destroy = rng.random() < 0.5
        ticket = host.enqueue(request, command="victim", pid=os.getpid())
        held = start_share(host, ticket, lambda view: decide(view, request, adopt_foreign_destroy=destroy))
        if isinstance(held, HeldAllocation) and rng.random() < 0.5:
            host.release(held.allocation.id, why="ended")

    return work


WORK = {CHANGE: change_work, REQUEST: request_work}


@pytest.mark.parametrize("kind", [CHANGE, REQUEST])
@pytest.mark.parametrize("family", length.some_of(FAMILIES, 2))
def test_a_crash_at_any_boundary_is_cleared_by_the_next_command(
    tmp_path: Path, family: str, kind: str, record_property: Callable[[str, object], None]
) -> None:
    wanted = CASES // (len(FAMILIES) * 2)
    cases = plans = 0
    while cases < wanted:
        cases += every_boundary(tmp_path, family, kind, seed=plans)
        plans += 1
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
    record_property("crashes", cases)
    record_property("plans", plans)


def every_boundary(folder: Path, family: str, kind: str, seed: int) -> int:
    """Prepare a machine, and crash copies of it at each boundary of one piece of work; how many crashes that were."""
    template = prepare(folder / f"template-{seed}", FAMILIES[family], seed)
    before = look(template)
    after = before
    # The run that nobody kills comes first: it tells what the work leads to when it gets to its end.
    for at in range(1_000):
        where = f"{family}, {kind}, seed {seed}, boundary {at}"
        scenario = template.copy_to(folder / f"copy-{seed}-{at}")
        keeper = Keeper(scenario)
        try:
            ending = crash(scenario, WORK[kind](scenario, seed), at)
            if at == 0:
                after = look(scenario)
                assert not ending or after == before, f"refused ({ending}), but not undone"
            elif ending != KILLED:
                return at - 1
            rng = random.Random(f"{seed} {at}")
            check_after(scenario, before, after, rng)
        except BaseException as error:
            error.add_note(where)
            raise
        finally:
            keeper.end()
        shutil.rmtree(scenario.node.folder)
    raise AssertionError("the work never ends")


def check_after(scenario: Scenario, before: Cuts, after: Cuts, rng: random.Random) -> None:
    while rng.random() < 0.4 and crash(scenario, _recover, rng.randint(1, 4)) == KILLED:
        pass  # the recovery is killed as well, now and then more than once
    found = one_further_command(scenario, rng)
    assert found.cuts in (before, after), "the machine is in a state that nobody declared"
    check_kept(scenario, found, scenario.keep.held)
    assert len(scenario.node.machine.clients()) == len(scenario.keep.clients)
    check_settled(scenario)
    if rng.random() < 0.3:
        check_serves(scenario, rng)


def _recover(host: Host) -> None:
    host.view()
