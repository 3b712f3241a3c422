"""A Plan: an ordered list of small idempotent steps, computed by a pure function from an observed state.

Plans are data. `--dry-run` prints one, and the executor carries it out and journals each step. A saved plan is refused when a GPU
that it touches no longer has the fingerprint it was computed from.

Applied to a view, a plan does not touch allocations: holders are not its concern. It predicts mode, slots, compute slices,
processes and what Tranche made. It does not predict the driver's numbers (ids of instances, UUIDs of new slices, free memory),
nor for which request an instance was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Slice, WholeGpu, overlap, parts_by
from tranche.core.errors import GpuBusy, PlanInvalid
from tranche.core.sharing import Sharing
from tranche.core.state import PROHIBITED, GpuState, InstanceKey, MpsDaemon, unavailable
from tranche.planning.steps import (
    CreateInstance,
    DestroyInstance,
    PriorSlotState,
    PriorState,
    SetTimeslice,
    StartMps,
    Step,
    StopMps,
    TakesGpu,
    TakesInstance,
    step_from_dict,
)

FORMAT_VERSION = "tranche.dev/v1"


class Plan(NamedTuple):
    """Steps in order; those of different GPUs are independent.

    `fingerprints` maps each touched GPU's UUID to the fingerprint of the state that the plan was computed from.
    """

    purpose: str
    steps: tuple[Step, ...] = ()
    fingerprints: Mapping[str, str] = MappingProxyType({})

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that the plan touches, in order of first step."""
        return tuple(dict.fromkeys(step.gpu_uuid for step in self.steps))

    @property
    def apart(self) -> tuple[Plan, ...]:
        """One plan per GPU, with the same purpose: steps of different GPUs are independent."""
        return tuple(
            Plan(
                self.purpose,
                self.steps_on(gpu_uuid),
                {uuid: mark for uuid, mark in self.fingerprints.items() if uuid == gpu_uuid},
            )
            for gpu_uuid in self.gpu_uuids
        )

    def steps_on(self, gpu_uuid: str) -> tuple[Step, ...]:
        """The steps of one GPU, in order."""
        return tuple(step for step in self.steps if step.gpu_uuid == gpu_uuid)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, as `-o json` prints it and `apply --plan` reads it."""
    return {
        "apiVersion": FORMAT_VERSION,
        "kind": "Plan",
        "purpose": plan.purpose,
        "fingerprints": dict(plan.fingerprints),
        "steps": [step.to_dict() for step in plan.steps],
    }


def plan_from_dict(data: object) -> Plan:
    """The plan that plan_to_dict wrote; raises PlanInvalid for other data or an unknown kind of step."""
    if not isinstance(data, dict) or data.get("kind") != "Plan" or data.get("apiVersion") != FORMAT_VERSION:
        raise PlanInvalid(f"this is not a {FORMAT_VERSION} Plan", hint="write one with: tranche layout plan -o json")
    try:
        fingerprints = {str(gpu): str(mark) for gpu, mark in data["fingerprints"].items()}
        steps = tuple(step_from_dict(step) for step in data["steps"])
        return Plan(str(data["purpose"]), steps, fingerprints)
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanInvalid("the plan lacks its purpose, fingerprints or steps") from error


def with_daemons(plan: Plan, grants: Sequence[Grant], view: NodeView) -> Plan:
    """The plan with the daemon steps that its steps and grants need; does not repeat a step."""
    gpus = {uuid: view.node.gpu(uuid) for uuid in {*plan.gpu_uuids, *(grant.gpu_uuid for grant in grants)}}
    first = tuple(step for gpu in gpus.values() for step in _ending(gpu, plan, grants) if step not in plan.steps)
    last = tuple(step for step in (*_starting(gpus, grants), *_turns(gpus, grants)) if step not in plan.steps)
    if not first and not last:
        return plan
    steps = (*first, *plan.steps, *last)
    touched = {step.gpu_uuid for step in (*first, *last)}
    marks = {uuid: gpu.fingerprint for uuid, gpu in gpus.items() if uuid in touched}
    return plan._replace(steps=steps, fingerprints={**marks, **plan.fingerprints})


def refuse_unavailable(view: NodeView, grants: Sequence[Grant]) -> None:
    """Raise GpuBusy if a grant needs a daemon that admits no more clients, or a GPU in compute mode PROHIBITED."""
    for grant in grants:
        gpu = view.node.gpu(grant.gpu_uuid)
        if grant.slot is None and gpu.prohibited:
            raise GpuBusy(f"{gpu.label}: {PROHIBITED}")
        if (
            isinstance(grant, FractionalShare)
            and grant.sharing is Sharing.MPS
            and (why := unavailable(gpu, grant.slot))
        ):
            raise GpuBusy(f"{gpu.label} accepts no new shares: {why}")
        if isinstance(grant, FractionalShare) and (ids := unlimited_on(grant.device, view.allocations)):
            raise GpuBusy(f"{gpu.label} accepts no new shares: nothing limits the memory of {', '.join(ids)}")


def unlimited_on(device: WholeGpu | Slice, allocations: Iterable[Allocation]) -> tuple[str, ...]:
    """The ids of sharers of the device with lost limits: memory promised to others may be missing."""
    return tuple(
        each.id
        for each in allocations
        if any(isinstance(part, FractionalShare) and part.unlimited and part.device == device for part in each.grants)
    )


def refuse_recut(view: NodeView, grants: Sequence[Grant]) -> None:
    """Raise GpuBusy if a device chosen from an older view is gone.

    A GPU in MIG mode is still a device for holders that have it whole or by turns, but not for MPS, which serves only its slices.
    """
    for grant in grants:
        gpu, slot = view.node.gpu(grant.gpu_uuid), grant.slot
        if slot is not None and gpu.instance_in(slot.place) is None:
            raise GpuBusy(f"{gpu.label}: {slot.profile} at {slot.placement} no longer exists")
        by_mps = isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS
        if slot is None and by_mps and (gpu.mig_enabled or gpu.mode_pending):
            raise GpuBusy(f"{gpu.label} is not shared by MPS: its MIG mode {_mode(gpu)}")


def _mode(gpu: GpuState) -> str:
    return f"will be {gpu.pending_mode} after a reset" if gpu.mode_pending else f"is now {gpu.mode}"


def _ending(gpu: GpuState, plan: Plan, grants: Sequence[Grant]) -> Iterator[Step]:
    steps = plan.steps_on(gpu.uuid)
    for daemon in gpu.daemons:
        device = _device(gpu.uuid, daemon)
        if _taken_by_steps(daemon, steps) or any(_displaces(grant, device) for grant in grants):
            yield StopMps(gpu.uuid, daemon.slot and daemon.slot.place)


def _starting(gpus: dict[str, GpuState], grants: Sequence[Grant]) -> Iterator[Step]:
    for part in parts_by(Sharing.MPS, grants):
        step = StartMps(part.gpu_uuid, part.slot and part.slot.place, part.limit or part.memory)
        if not step.in_effect(gpus[part.gpu_uuid]):
            yield step


def _turns(gpus: dict[str, GpuState], grants: Sequence[Grant]) -> Iterator[Step]:
    """The administrator's timeslices, for grants that take turns."""
    for grant in grants:
        gpu = gpus[grant.gpu_uuid]
        wanted = gpu.timeslice_wanted
        if isinstance(grant, FractionalShare) and grant.in_turns and wanted is not None and gpu.timeslice is not wanted:
            yield SetTimeslice(gpu.uuid, wanted)


def _taken_by_steps(daemon: MpsDaemon, steps: Sequence[Step]) -> bool:
    takings = [taking for step in steps for taking in step.takes]
    occupant = daemon.slot and daemon.slot.place
    return any(isinstance(each, TakesGpu) for each in takings) or any(
        isinstance(each, TakesInstance) and each.occupant == occupant for each in takings
    )


def _displaces(grant: Grant, device: WholeGpu | Slice) -> bool:
    """Whether the grant ends the device's daemon: it is the device, or a part of it by another mechanism."""
    if isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS and grant.device == device:
        return False
    return overlap(grant, device)


def _device(gpu_uuid: str, daemon: MpsDaemon) -> WholeGpu | Slice:
    return WholeGpu(gpu_uuid) if daemon.slot is None else Slice(*daemon.slot)


def apply(plan: Plan, view: NodeView) -> NodeView:
    """The view after the plan; raises GpuNotFound if the plan names a GPU that the view does not have."""
    gpus = {gpu.uuid: gpu for gpu in view.node}
    owned = set(view.owned)
    for step in plan.steps:
        gpu = gpus.get(step.gpu_uuid) or view.node.gpu(step.gpu_uuid)
        if step.in_effect(gpu):
            continue
        for key, ours in step.ownership(step.observe(gpu, frozenset(owned))).items():
            (owned.add if ours else owned.discard)(key)
        gpus[gpu.uuid] = step.apply(gpu)
    node = replace(view.node, gpus=tuple(gpus.values()))
    return replace(view, node=node, owned=frozenset(owned), requested=view.requested & owned)


class StepStatus(StrEnum):
    """PENDING: not begun. INTENDED: may have acted. DONE: acted. NEEDLESS: its effect was there already."""

    PENDING = "pending"
    INTENDED = "intended"
    DONE = "done"
    NEEDLESS = "needless"


class StepRecord(NamedTuple):
    """A step as the journal has it."""

    step: Step
    status: StepStatus
    before: PriorState | None = None

    @property
    def may_have_acted(self) -> bool:
        """Whether the step can have changed the GPU."""
        return self.status in (StepStatus.INTENDED, StepStatus.DONE)


_UndoStep = tuple[Step, Mapping[InstanceKey, bool]]
"""A step that restores something, and the owners of instances after it: True Tranche, False no longer."""


def undo_steps(records: Sequence[StepRecord], now: GpuState) -> tuple[_UndoStep, ...]:
    """The steps that restore one GPU to its state before these steps of a plan, last change first.

    They follow from the present state, so they can be found and carried out again after another crash. They touch only slots that
    the plan itself changed.
    """
    undo: list[_UndoStep] = []
    for record in reversed(records):
        if record.step.gpu_uuid == now.uuid and record.before is not None and record.may_have_acted:
            undo += (_undo_step(inverse) for inverse in record.step.inverse(record.before, now))
    return tuple(undo)


def _undo_step(inverse: Step | PriorSlotState) -> _UndoStep:
    if not isinstance(inverse, PriorSlotState):
        return inverse, {}
    key, slices = inverse.key, inverse.slices
    gone = DestroyInstance(*key) if slices is None else CreateInstance(*key, slices)
    return gone, {key: inverse.owned}
