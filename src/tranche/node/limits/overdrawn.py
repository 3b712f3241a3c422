"""Shares that use more of a device's memory than they were given, by the driver's list of processes.

MPS limits each process separately, so the processes of a command or pod can use more together. And a driver may show a limit
without enforcing it. A pod's processes do not show their container here, so the containers are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase
from tranche.core.keeper import ClaimKeeper, Keeper, PlacedPodKeeper, PodKeeper, ProcessKeeper
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState, NodeState
from tranche.hardware.process_stat import PROC, process_environment, process_group, process_groups


def with_overdrawn(allocations: tuple[Allocation, ...], node: NodeState, proc: Path = PROC) -> tuple[Allocation, ...]:
    """The allocations, with overdrawn parts marked unlimited."""
    if not any(_watched(grant) for allocation in allocations for grant in allocation.grants):
        return allocations
    gpus = {gpu.uuid: gpu for gpu in node}
    active = tuple(each for each in allocations if each.phase is Phase.ACTIVE)
    return tuple(_as_used(each, active, gpus, proc) if each.phase is Phase.ACTIVE else each for each in allocations)


def excess(
    allocation: Allocation, part: FractionalShare, gpu: GpuState, proc: Path = PROC, active: Sequence[Allocation] = ()
) -> int:
    """The bytes that the allocation's processes use on that part's device, if more than the part; otherwise 0.

    Adds up the `active` allocations of a pod's containers. Tolerates the size of one context, because the driver's list and its
    limits need not count alike.
    """
    if gpu.lost:
        return 0
    pod = _uid(allocation.keeper)
    of_holder = [each for each in active if pod and _uid(each.keeper) == pod] or [allocation]
    parts = [
        grant
        for each in of_holder
        for grant in each.grants
        if isinstance(grant, FractionalShare) and grant.device == part.device
    ]
    if not _watched(part) or not all(map(_may_be_watched, parts)):
        return 0
    allowed = sum(each.memory for each in parts) + gpu.context_memory
    listed = _listed(part, gpu)
    if sum(each.memory or 0 for each in listed) <= allowed:
        return 0
    used = sum(each.memory or 0 for each in listed if _came_of(each.pid, allocation, proc, active))
    return used if used > allowed else 0


def _uid(keeper: Keeper) -> str:
    """The uid of a known pod; "" for all other keepers."""
    return keeper.uid if isinstance(keeper, PodKeeper | PlacedPodKeeper) else ""


def _watched(grant: Grant) -> bool:
    return _may_be_watched(grant) and grant.kept


def _may_be_watched(grant: Grant) -> TypeGuard[FractionalShare]:
    """Whether the grant is a part that has a limit or has lost it."""
    return (
        isinstance(grant, FractionalShare)
        and grant.sharing is not Sharing.TIME_SLICING
        and (grant.kept or grant.unlimited)
    )


def _as_used(
    allocation: Allocation, active: Sequence[Allocation], gpus: Mapping[str, GpuState], proc: Path
) -> Allocation:
    grants = tuple(
        grant._replace(unlimited=True)
        if isinstance(grant, FractionalShare)
        and (gpu := gpus.get(grant.gpu_uuid)) is not None
        and excess(allocation, grant, gpu, proc, active)
        else grant
        for grant in allocation.grants
    )
    return allocation if grants == allocation.grants else allocation._replace(grants=grants)


def _listed(part: FractionalShare, gpu: GpuState) -> tuple[GpuProcess, ...]:
    if part.slot is None:
        return gpu.processes
    return next((each.processes for each in gpu.instances if gpu.key(each) == part.slot), ())


def _came_of(pid: int, allocation: Allocation, proc: Path, active: Sequence[Allocation]) -> bool:
    """Whether the process belongs to the share's keeper, by its control group or a name in its environment."""
    keeper = allocation.keeper
    try:
        match keeper:
            case PodKeeper(uid=uid) | PlacedPodKeeper(uid=uid):
                from tranche.node.processes.pod_processes import pod_of  # every listing loads this module

                return bool(uid) and pod_of(process_groups(pid, proc)) == uid
            case ClaimKeeper():
                return _came_of_claim(pid, proc, keeper, [each.keeper for each in active])
            case ProcessKeeper():
                return _came_of_command(pid, proc, allocation.id, keeper)
    except OSError:
        return False


def _came_of_claim(pid: int, proc: Path, keeper: ClaimKeeper, others: Sequence[Keeper]) -> bool:
    """Whether the process belongs to a pod of the claim and, if the pod has several claims, does not name another.

    A process controls its own environment. So that only tells a pod's claims apart: it neither removes a process from all of
    them nor adds one of another pod.
    """
    from tranche.node.processes.pod_processes import claim_mark, pod_of

    environment = process_environment(pid, proc)

    def named(uid: str) -> bool:
        return any(pair.startswith(f"{claim_mark(uid)}=".encode()) for pair in environment)

    pod = pod_of(process_groups(pid, proc))
    if not keeper.pods or pod not in keeper.pods:
        return not keeper.pods and named(keeper.uid)
    claims = (each for each in others if isinstance(each, ClaimKeeper) and each != keeper and pod in each.pods)
    return named(keeper.uid) or not any(named(each.uid) for each in claims)


def _came_of_command(pid: int, proc: Path, allocation_id: str, keeper: ProcessKeeper) -> bool:
    """Whether the process has the share's name and key, or is in the share's control group."""
    from tranche.node.processes.processes import MARK, knows_key  # rarely needed, and every listing loads this module

    environment = process_environment(pid, proc)
    if f"{MARK}={allocation_id}".encode() in environment and knows_key(environment, keeper.key_digest):
        return True
    return f"tranche-{allocation_id}" in process_group(pid, proc).split("/")
