"""A kind of step that only this file knows works end to end; without its act the type checker and every part refuse it.

The kind moves an idle instance to another place on its GPU, which no kind of Tranche's own does in one step.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

import tranche
from tests.node.machines import Node, change, create, cut_of, cuts_of, enable
from tests.node.processes import in_child, isolated, killed_at_boundary
from tests.node.test_steps import give
from tranche.core.allocation import Slice
from tranche.core.errors import GpuBusy, PlanInvalid, TrancheError, VerificationFailed
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.node import journal
from tranche.node.acts import BUILT_IN
from tranche.node.guards import Guards
from tranche.node.host import Host
from tranche.node.repertoire import Repertoire, Tools
from tranche.planning.effect import apply
from tranche.planning.plan import Plan, plan_from_dict, plan_to_dict
from tranche.planning.steps import (
    Before,
    BuiltInStep,
    CreateInstance,
    Deed,
    SlotBefore,
    Step,
    TakesInstance,
    TakesRoom,
    Taking,
)
from tranche.planning.undo import StepRecord, StepStatus, undo_steps

PROFILE = parse_profile("1g.5gb")


@dataclass(frozen=True, slots=True)
class MoveInstance(Step):
    """Move an idle instance that one compute instance spans."""

    profile: ProfileName
    old: Placement
    new: Placement

    def __str__(self) -> str:
        return f"move {self.profile} from {self.old} to {self.new}"

    @property
    def deed(self) -> Deed:
        return Deed("moved", "instance")

    def fields(self) -> dict[str, Any]:
        return {"profile": str(self.profile), "size": self.old.size, "from": self.old.start, "to": self.new.start}

    @classmethod
    def from_fields(cls, gpu_uuid: str, data: Mapping[str, Any]) -> Self:
        old, new = (Placement(data[end], data["size"]) for end in ("from", "to"))
        return cls(gpu_uuid, parse_profile(data["profile"]), old, new)

    def in_effect(self, gpu: GpuState) -> bool:
        return self._there(gpu, self.old) is None and self._there(gpu, self.new) is not None

    def apply(self, gpu: GpuState) -> GpuState:
        moved = tuple(
            replace(each, placement=self.new) if each.placement == self.old else each for each in gpu.instances
        )
        return replace(gpu, instances=moved)

    @property
    def takes(self) -> tuple[Taking, ...]:
        creation = CreateInstance(self.gpu_uuid, self.profile, self.new, (self.profile,))
        return (TakesInstance(replace(creation.occupant, placement=self.old)), TakesRoom(creation.occupant))

    def observe(self, gpu: GpuState, owned: frozenset[InstanceKey]) -> Before:
        return Before(gpu.mode, (self.profile,), self._key(self.old) in owned)

    def inverse(self, before: Before, now: GpuState) -> tuple[SlotBefore, ...]:
        return (
            SlotBefore(self._key(self.new), None, owned=False),
            SlotBefore(self._key(self.old), before.slices, before.owned),
        )

    def ownership(self, before: Before) -> Mapping[InstanceKey, bool]:
        return {self._key(self.old): False, self._key(self.new): True}

    def _there(self, gpu: GpuState, placement: Placement) -> GpuInstance | None:
        instance = gpu.instance_at(placement)
        return instance if instance is not None and instance.profile == self.profile else None

    def _key(self, placement: Placement) -> InstanceKey:
        return InstanceKey(self.gpu_uuid, self.profile, placement)


def move_instance(step: MoveInstance, gpu: GpuState, tools: Tools) -> None:
    """Its act."""
    old = gpu.instance_at(step.old)
    assert old is not None
    for compute in old.compute_instances:
        tools.driver.destroy_compute_instance(gpu.uuid, old.id, compute.id)
    tools.driver.destroy_gpu_instance(gpu.uuid, old.id)
    made = tools.driver.create_gpu_instance(gpu.uuid, step.profile, step.new)
    tools.driver.create_compute_instance(gpu.uuid, made, step.profile)


REPERTOIRE: Repertoire[BuiltInStep | MoveInstance] = BUILT_IN.knowing(MoveInstance, move_instance)


def one(host: Host) -> GpuState:
    return host.view().node.gpus[0]


def move(gpu: GpuState, old: int, new: int) -> MoveInstance:
    return MoveInstance(gpu.uuid, PROFILE, Placement(old, 1), Placement(new, 1))


@pytest.fixture
def cut(a100: Node) -> Node:
    """One A100 with Tranche's own 1g.5gb at 0 and at 1."""

    def prepare() -> None:
        with a100.host() as host:
            change(host, *enable(one(host)))
            change(host, create(one(host), "1g.5gb", 0), create(one(host), "1g.5gb", 1))

    in_child(prepare)
    return a100


# It works end to end


@isolated
def test_it_is_planned_encoded_carried_out_and_told(cut: Node) -> None:
    with cut.host(repertoire=REPERTOIRE) as host:
        gpu = one(host)
        plan = Plan("tidy up", (move(gpu, 1, 4), create(gpu, "1g.5gb", 1)), {gpu.uuid: gpu.fingerprint})
        assert plan_from_dict(json.loads(json.dumps(plan_to_dict(plan))), REPERTOIRE.kinds) == plan
        foreseen = apply(plan, host.view())
        host.change_as_saved(plan)
        assert cuts_of(host.view().node) == cuts_of(foreseen.node)
        assert host.view().owned == foreseen.owned
        assert sorted(instance.placement.start for instance in one(host).instances) == [0, 1, 4]
        (told,) = [event for event in host.events() if event.name == "MoveInstance"]
        assert told.message == "GPU 0: move 1g.5gb from 1:1 to 4:1"


@isolated
def test_it_is_guarded_by_what_it_takes(cut: Node) -> None:
    with cut.host(repertoire=REPERTOIRE) as host:
        gpu = one(host)
        before = cut_of(gpu)
        cut.machine.inject_busy(gpu.instances[1].compute_instances[0].uuid, pid=5004711, name="train")
        with pytest.raises(GpuBusy, match=r"in use by train"):
            change(host, move(gpu, 1, 4))
        cut.machine.clear_injections()
        name = give(host, Slice(gpu.uuid, parse_profile("2g.10gb"), Placement(4, 2)))
        with pytest.raises(GpuBusy, match=f"room at 4:1 is held by allocation {name}"):
            change(host, move(gpu, 1, 4))
        assert cut_of(one(host)) == before
        change(host, move(gpu, 1, 3))


@isolated
def test_it_is_undone_when_a_later_step_fails(cut: Node) -> None:
    with cut.host(repertoire=REPERTOIRE) as host:
        gpu, before = one(host), host.view()

        def disturb(observed: GpuState, step: Step) -> None:
            if step == last:
                cut.machine.inject_error("nvmlGpuInstanceCreateComputeInstance", 999, calls=1)

        last = create(gpu, "1g.5gb", 5)
        with pytest.raises(TrancheError):
            host.change(lambda view: Plan("fails", (move(gpu, 1, 4), last)), progress=disturb)
        assert cuts_of(host.view().node) == cuts_of(before.node)
        assert host.view().owned == before.owned


@isolated
def test_it_is_undone_when_nothing_shows(cut: Node) -> None:
    def idle(step: MoveInstance, gpu: GpuState, tools: Tools) -> None:
        pass

    with cut.host(repertoire=BUILT_IN.knowing(MoveInstance, idle)) as host:
        before = host.view()
        with pytest.raises(VerificationFailed, match=r"move 1g\.5gb from 1:1 to 4:1"):
            change(host, move(one(host), 1, 4))
        assert cuts_of(host.view().node) == cuts_of(before.node)
        assert host.view().owned == before.owned


def killed_at(node: Node, boundary: int, act: Callable[[MoveInstance, GpuState, Tools], None]) -> bool:
    """Kill a process that moves and creates, at that boundary of its journal; whether it came so far."""
    return killed_at_boundary(
        node,
        boundary,
        lambda host: change(host, move(one(host), 1, 4), create(one(host), "1g.5gb", 5)),
        repertoire=BUILT_IN.knowing(MoveInstance, act),
    )


def killed_halfway(step: MoveInstance, gpu: GpuState, tools: Tools) -> None:
    """The process dies between the two halves of the act."""
    old = gpu.instance_at(step.old)
    assert old is not None
    tools.driver.destroy_compute_instance(gpu.uuid, old.id, old.compute_instances[0].id)
    tools.driver.destroy_gpu_instance(gpu.uuid, old.id)
    os.kill(os.getpid(), signal.SIGKILL)


def look(node: Node) -> tuple[object, ...]:
    """What the next command finds, or makes of what it finds."""

    def find() -> tuple[object, ...]:
        with node.host(repertoire=REPERTOIRE) as host:
            view = host.view()
            return cuts_of(view.node), view.owned, view.changing

    return in_child(find)


@pytest.mark.parametrize("boundary", [0, 1, 2, 3])
def test_it_is_undone_when_its_process_is_killed(cut: Node, boundary: int) -> None:
    before = look(cut)
    assert killed_at(cut, boundary, move_instance)
    assert look(cut) == before
    assert look(cut) == before


def test_it_is_undone_when_its_process_is_killed_in_the_middle_of_the_act(cut: Node) -> None:
    before = look(cut)
    assert killed_at(cut, 1_000, killed_halfway)
    assert look(cut) == before


# Without its act it is refused


@isolated
def test_a_plan_with_it_is_refused_before_anything_is_written(cut: Node) -> None:
    with cut.host() as host:
        gpu = one(host)
        calls = cut.machine.total_change_calls()
        with pytest.raises(PlanInvalid, match="unknown action 'MoveInstance'"):
            change(host, create(gpu, "1g.5gb", 2), move(gpu, 1, 4))
        with host.ledger.read() as db:
            assert journal.running_plans(db) == ()
        assert cut.machine.total_change_calls() == calls


@isolated
def test_what_another_version_left_behind_is_refused_and_not_touched(cut: Node) -> None:
    assert killed_at(cut, 2, move_instance)
    calls = cut.machine.total_change_calls()
    with cut.host() as host:
        for act in (host.view, lambda: change(host, create(gpu_of(host), "1g.5gb", 2))):
            with pytest.raises(PlanInvalid, match="unknown action 'MoveInstance'") as caught:
                act()
            assert caught.value.hint
    assert cut.machine.total_change_calls() == calls


def gpu_of(host: Host) -> GpuState:
    return host.driver.observe().gpus[0]


@isolated
def test_saved_plans_journal_undo_guards_and_repertoire_refuse_it(cut: Node) -> None:
    with cut.host() as host:
        gpu = one(host)
        step = move(gpu, 1, 4)
        record = StepRecord(step, StepStatus.DONE, step.observe(gpu, frozenset()))
        with host.ledger.write() as db:
            journal.open_plan(db, "p", Plan("left", (step,)), session="s", created=1.0, allocation_id="a")
        refusals: list[Callable[[], object]] = [
            lambda: plan_from_dict(plan_to_dict(Plan("saved", (step,)))),
            lambda: undo_steps([record], gpu),
            lambda: Guards(host.ledger, BUILT_IN.kinds).check(step, gpu, ""),
            lambda: BUILT_IN.carry_out(
                step, gpu, Tools(host.driver, host.daemons, host.timeslices, lambda seconds: None)
            ),
        ]
        with host.ledger.read() as db:
            refusals.append(lambda: journal.step_records(db, "p"))
            for act in refusals:
                with pytest.raises(PlanInvalid, match="unknown action 'MoveInstance'"):
                    act()


def test_a_kind_of_the_same_name_is_another_kind(cut: Node) -> None:
    impostor = type("CreateInstance", (MoveInstance,), {})
    with pytest.raises(PlanInvalid):
        BUILT_IN.check([impostor("GPU-0", PROFILE, Placement(0, 1), Placement(1, 1))])


# Without its act the type checker refuses it

SOURCE = Path(tranche.__file__).parent
STEP_CLASSES = {
    "SetMigMode",
    "ResetGpu",
    "DestroyInstance",
    "CreateInstance",
    "StartMps",
    "StopMps",
    "SetTimeslice",
    "SlotStep",
    "DeviceStep",
}


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


PREAMBLE = """
from abc import ABC, abstractmethod
from tests.node.test_new_step_kind import MoveInstance, move_instance
from tranche.node.acts import BUILT_IN
from tranche.node.acts.create_instance import create_instance
from tranche.node.repertoire import Repertoire
from tranche.planning.steps import BuiltInStep, Taking
"""
ACTS = Path(tranche.__file__).parent / "node" / "acts" / "__init__.py"
CARELESS = """
class Careless(MoveInstance, ABC):
    @property
    @abstractmethod
    def takes(self) -> tuple[Taking, ...]: ...
BUILT_IN.knowing(Careless, move_instance)
"""
SNIPPETS = {
    "with its act": PREAMBLE
    + "a: Repertoire[BuiltInStep | MoveInstance] = BUILT_IN.knowing(MoveInstance, move_instance)\n",
    "no act at all": PREAMBLE + "a: Repertoire[BuiltInStep | MoveInstance] = BUILT_IN\n",
    "registered without its act": PREAMBLE + "BUILT_IN.knowing(MoveInstance)\n",
    "registered with the act of another kind": PREAMBLE + "BUILT_IN.knowing(MoveInstance, create_instance)\n",
    "registered without saying what it takes": PREAMBLE + CARELESS,
    "a built-in kind without its act": ACTS.read_text().replace(
        "    .knowing(DestroyInstance, destroy_instance)\n", ""
    ),
}
EXPECTED = {
    "no act at all": 'variable has type "Repertoire[',
    "registered without its act": 'Missing positional argument "act"',
    "registered with the act of another kind": 'Argument 2 to "knowing" of "Repertoire" has incompatible type',
    "registered without saying what it takes": "Only concrete class can be given",
    "a built-in kind without its act": 'variable has type "Repertoire[',
}


def test_the_type_checker_names_every_kind_that_lacks_its_act(tmp_path: Path) -> None:
    root = Path(tranche.__file__).parents[2]
    files = {name: tmp_path / f"{name.replace(' ', '_').replace('-', '_')}.py" for name in SNIPPETS}
    for name, path in files.items():
        path.write_text(SNIPPETS[name])
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), *map(str, files.values())]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout
    for name, path in files.items():
        lines = "\n".join(line for line in said.splitlines() if path.name in line)
        assert EXPECTED[name] in lines if name in EXPECTED else not lines, f"{name}: {said}"
