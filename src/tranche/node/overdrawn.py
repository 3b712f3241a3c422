"""Shares that have more of a device's memory than they were given, as the driver lists their processes.

MPS limits each process singly, so that a command of several can have more together. And a driver may show a limit and not keep
it. Looked at are the shares of commands; of a pod's processes nobody knows here which container they are of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tranche.core.allocation import Allocation, Grant, Part, Phase
from tranche.core.keeper import ProcessKeeper
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState, NodeState

_PROC = Path("/proc")


def with_overdrawn(allocations: tuple[Allocation, ...], node: NodeState, proc: Path = _PROC) -> tuple[Allocation, ...]:
    """The allocations, where parts of which more is used than was given are unlimited."""
    if not any(_watched(grant) for allocation in allocations for grant in allocation.grants):
        return allocations
    gpus = {gpu.uuid: gpu for gpu in node}
    return tuple(_as_used(each, gpus, proc) if each.phase is Phase.ACTIVE else each for each in allocations)


def excess(allocation: Allocation, part: Part, gpu: GpuState, proc: Path = _PROC) -> int:
    """The bytes that the allocation's processes have of that part's device, where that is more than the part; 0 otherwise.

    What one context takes is passed over, because the driver's list and its limits need not count alike.
    """
    from tranche.planning.share_costs import CONTEXT_MEMORY

    keeper = allocation.keeper
    if not _watched(part) or not isinstance(keeper, ProcessKeeper) or gpu.lost:
        return 0
    allowed = part.memory + CONTEXT_MEMORY[part.sharing]
    listed = _listed(part, gpu)
    if sum(each.memory or 0 for each in listed) <= allowed:
        return 0
    used = sum(each.memory or 0 for each in listed if _came_of(each.pid, allocation.id, keeper, proc))
    return used if used > allowed else 0


def _watched(grant: Grant) -> bool:
    return isinstance(grant, Part) and grant.sharing is not Sharing.TIME_SLICING and grant.kept


def _as_used(allocation: Allocation, gpus: Mapping[str, GpuState], proc: Path) -> Allocation:
    grants = tuple(
        replace(grant, unlimited=True)
        if isinstance(grant, Part)
        and (gpu := gpus.get(grant.gpu_uuid)) is not None
        and excess(allocation, grant, gpu, proc)
        else grant
        for grant in allocation.grants
    )
    return allocation if grants == allocation.grants else replace(allocation, grants=grants)


def _listed(part: Part, gpu: GpuState) -> tuple[GpuProcess, ...]:
    if part.slot is None:
        return gpu.processes
    return next((each.processes for each in gpu.instances if gpu.key(each) == part.slot), ())


def _came_of(pid: int, allocation_id: str, keeper: ProcessKeeper, proc: Path) -> bool:
    """Whether the process has the share's name and key, or is in the control group that limits the share."""
    from tranche.node.processes import MARK  # seldom needed, and every listing loads this module

    try:
        environment = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        if f"{MARK}={allocation_id}".encode() in environment and _knows(environment, keeper.key_digest):
            return True
        groups = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("0::") and f"tranche-{allocation_id}" in line.split("/") for line in groups)


def _knows(environment: list[bytes], key_digest: str) -> bool:
    from tranche.node.processes import KEY, digest_of

    keys = (os.fsdecode(each.removeprefix(f"{KEY}=".encode())) for each in environment if each.startswith(KEY.encode()))
    return not key_digest or any(digest_of(key) == key_digest for key in keys)
