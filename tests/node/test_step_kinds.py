"""Every kind of step has its act, nobody asks of which kind a step is, and a kind of another version is refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import tranche
from tests.node.machines import Node, change, create, enable
from tests.node.processes import isolated
from tranche.core.errors import PlanInvalid
from tranche.core.state import GpuState
from tranche.node.execution.executor import ACTS
from tranche.node.host import Host
from tranche.node.store import journal
from tranche.planning.steps import KINDS
from tranche.planning.steps.plan import Plan, plan_from_dict, plan_to_dict

SOURCE = Path(tranche.__file__).parent
STEP_CLASSES = {*KINDS, "SlotStep", "DeviceStep"}


def test_every_kind_has_its_act() -> None:
    assert list(ACTS) == list(KINDS.values())


def asked_kinds(path: Path) -> set[str]:
    """The classes of steps that a module asks for, by isinstance, by a case, or by the name of a kind."""
    asked: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked |= {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            asked.add(node.cls.id)
        elif isinstance(node, ast.Compare):
            asked |= {str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)}
    return asked & STEP_CLASSES


def test_nobody_else_asks_what_kind_a_step_is() -> None:
    homes = (SOURCE / "planning" / "steps", SOURCE / "node" / "acts")
    others = [path for path in SOURCE.rglob("*.py") if not any(path.is_relative_to(home) for home in homes)]
    assert len(others) > 100
    assert {str(path.relative_to(SOURCE)): asked for path in others if (asked := asked_kinds(path))} == {}


def only_gpu(host: Host) -> GpuState:
    return host.driver.observe().gpus[0]


@isolated
def test_what_another_version_left_behind_is_refused_and_not_touched(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(only_gpu(host)))
        step = create(only_gpu(host), "1g.5gb", 0)
        unknown = {**step.to_dict(), "action": "MoveInstance"}
        with host.ledger.write() as db:
            journal.open_plan(db, "p", Plan("left", (step,)), session="gone", created=1.0)
            db.execute("UPDATE steps SET step = ?", (json.dumps(unknown),))
    calls = a100.machine.total_change_calls()
    with a100.host() as host:
        for act in (host.view, lambda: change(host, create(only_gpu(host), "1g.5gb", 2))):
            with pytest.raises(PlanInvalid, match="unknown action 'MoveInstance'") as caught:
                act()
            assert caught.value.hint
    assert a100.machine.total_change_calls() == calls


@isolated
def test_a_saved_plan_of_another_version_is_refused(a100: Node) -> None:
    with a100.host() as host:
        saved = plan_to_dict(Plan("saved", (create(only_gpu(host), "1g.5gb", 0),)))
    saved["steps"][0]["action"] = "MoveInstance"
    with pytest.raises(PlanInvalid, match="unknown action 'MoveInstance'"):
        plan_from_dict(saved)
