"""The MPS daemons of Tranche's beside what the driver says: seen by their records and by the kernel's word on their processes.

No daemon is asked, and none of NVIDIA's programs is started, so that whoever only looks is not slowed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tranche.core.state import GpuInstance, GpuProcess, GpuState, NodeState
from tranche.node.mps_records import DaemonRecord, DaemonRecords
from tranche.node.processes import process_at


def node_with_daemons(node: NodeState, known: DaemonRecords) -> NodeState:
    """The node with its daemons."""
    records = known.all()
    if not records:
        return node
    return replace(node, gpus=tuple(with_daemons_of(gpu, records) for gpu in node.gpus))


def with_daemons_of(gpu: GpuState, records: Sequence[DaemonRecord]) -> GpuState:
    """The GPU with those of the daemons that are on it; their servers do not count among the processes that use it."""
    ours = [record for record in records if record.gpu_uuid == gpu.uuid]
    if not ours:
        return gpu
    pids = {record.pid for record in ours if record.ready}
    return replace(
        gpu,
        daemons=tuple(record.seen for record in ours),
        processes=_without(gpu.processes, pids),
        instances=tuple(_instance_without(instance, pids) for instance in gpu.instances),
    )


def _instance_without(instance: GpuInstance, daemons: set[int]) -> GpuInstance:
    if not instance.has_processes:
        return instance
    inside = tuple(replace(each, processes=_without(each.processes, daemons)) for each in instance.compute_instances)
    return replace(instance, compute_instances=inside, stray_processes=_without(instance.stray_processes, daemons))


def _without(processes: tuple[GpuProcess, ...], daemons: set[int]) -> tuple[GpuProcess, ...]:
    """Those that no daemon has started: a server is its daemon's child."""

    def is_server(pid: int) -> bool:
        found = process_at(pid)
        return found is not None and found.parent in daemons

    return tuple(each for each in processes if not is_server(each.pid))
