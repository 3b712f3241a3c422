"""The last check before a GPU changes: what a step would take must be neither held by an allocation nor in use.

Each step declares what it takes (`tranche.planning.steps.step`). Unknown kinds of steps are refused.

Only this module enforces four invariants: never destroy an instance with an allocation or a process; never create an instance in
room that is promised to another; never reset or switch a GPU in use; never end an MPS daemon that shares use.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import assert_never

from tranche.core.allocation import NodeView, Phase, Slice, WholeGpu, overlap, parts_by
from tranche.core.errors import GpuBusy
from tranche.core.grid import PlacedInstance
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState, InstanceKey, unavailable
from tranche.node.store import register
from tranche.node.store.ledger import Ledger
from tranche.planning.steps import Step, TakesGpu, TakesInstance, TakesRoom, TakesSharing
from tranche.planning.steps.plan import Plan


def check(ledger: Ledger, step: Step, gpu: GpuState, allocation_id: str) -> None:
    """Raises GpuBusy when the step would take something of the GPU, as just observed, from anyone but its own allocation."""
    for taking in step.takes:
        match taking:
            case TakesInstance(occupant):
                _refuse_instance_in_use(occupant, gpu)
            case TakesGpu():
                _refuse_gpu_in_use(step, gpu)
            case TakesSharing():
                pass  # the ledger knows the holders of parts, and their server ends with the daemon
            case TakesRoom():
                pass  # the step and the driver see existing instances
            case _:
                assert_never(taking)
    with ledger.read() as db:
        refuse_held(db, step, gpu.label, allocation_id)
        if (device := step.lets_in) is not None:
            _refuse_unavailable(db, device, gpu, allocation_id)


def _refuse_instance_in_use(slot: PlacedInstance, gpu: GpuState) -> None:
    instance = gpu.instance_in(slot)
    if instance is not None and instance.processes:
        raise GpuBusy(
            f"{gpu.label}: {slot.profile} at {slot.placement} is in use by {_named(instance.processes)}",
            hint="wait for it to end, or stop it",
        )


def _refuse_gpu_in_use(step: Step, gpu: GpuState) -> None:
    if gpu.all_processes:
        raise GpuBusy(
            f"{gpu.label}: cannot {step} while it is in use by {_named(gpu.all_processes)}",
            hint="wait for it to end, or stop it",
        )
    if gpu.instances:
        slots = ", ".join(f"{instance.profile} at {instance.placement}" for instance in gpu.instances)
        raise GpuBusy(f"{gpu.label}: cannot {step} while it has instances: {slots}")


def _refuse_unavailable(db: sqlite3.Connection, device: WholeGpu | Slice, gpu: GpuState, allocation_id: str) -> None:
    """Raises GpuBusy when restarting a failed daemon would affect shares that are not clients of the new one."""
    if not (why := unavailable(gpu, device.slot)):
        return
    others = (each for each in register.allocations(db) if each.id != allocation_id and each.phase is Phase.ACTIVE)
    for each in others:
        if any(overlap(grant, device) for grant in each.grants):
            raise GpuBusy(
                f"{gpu.label} accepts no new shares while allocation {each.id} holds a part of it: {why}",
                hint="see it with: tranche ps",
            )


def refuse_changing(view: NodeView, plan: Plan) -> None:
    """Raises GpuBusy when another change works on one of the plan's GPUs."""
    for gpu_uuid in plan.gpu_uuids:
        if gpu_uuid in view.changing:
            raise GpuBusy(
                f"{view.node.gpu(gpu_uuid).label} is being changed by another command",
                hint="run this command again once that change is complete; see: tranche events",
            )


def refuse_held_by_any(db: sqlite3.Connection, view: NodeView, plan: Plan, allocation_id: str) -> None:
    """Raises GpuBusy when the plan takes what another allocation got since the decision. Call it in the plan's transaction."""
    for step in plan.steps:
        refuse_held(db, step, view.node.gpu(step.gpu_uuid).label, allocation_id)


def refuse_held(db: sqlite3.Connection, step: Step, label: str, allocation_id: str) -> None:
    """Raises GpuBusy when the step takes what another allocation holds; `label` names the step's GPU."""
    for taking in step.takes:
        match taking:
            case TakesInstance(occupant):
                if holder := _holder_of_room(db, step, occupant, allocation_id):
                    raise GpuBusy(
                        f"{label}: {occupant.profile} at {occupant.placement} is held by allocation {holder}",
                        hint=f"see it with: tranche ps; take it back with: tranche release {holder}",
                    )
            case TakesRoom(occupant):
                if holder := _holder_of_room(db, step, occupant, allocation_id):
                    raise GpuBusy(f"{label}: placement {occupant.placement} is held by allocation {holder}")
            case TakesGpu():
                if holder := register.holder_on_gpu(db, step.gpu_uuid, but=allocation_id):
                    raise GpuBusy(f"{label}: cannot {step} while allocation {holder} holds a part of it")
            case TakesSharing(occupant):
                if holder := _sharer_by_mps(db, step.gpu_uuid, occupant, allocation_id):
                    raise GpuBusy(f"{label}: cannot {step} while allocation {holder} holds a part of it")
            case _:
                assert_never(taking)


def _sharer_by_mps(db: sqlite3.Connection, gpu_uuid: str, occupant: PlacedInstance | None, allocation_id: str) -> str:
    """The id of another allocation with a part of the device by MPS; "" when there is none. Other parts need no daemon."""
    slot = None if occupant is None else InstanceKey(gpu_uuid, occupant.profile, occupant.placement)
    for allocation in register.allocations(db):
        for part in parts_by(Sharing.MPS, allocation.grants):
            if (part.gpu_uuid, part.slot) == (gpu_uuid, slot) and allocation.id != allocation_id:
                return allocation.id
    return ""


def _holder_of_room(db: sqlite3.Connection, step: Step, room: PlacedInstance, allocation_id: str) -> str:
    slot = InstanceKey(step.gpu_uuid, room.profile, room.placement)
    return register.holder_of_room(db, slot, but=allocation_id)


def _named(processes: Sequence[GpuProcess]) -> str:
    return ", ".join(map(str, processes))
