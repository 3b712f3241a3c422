"""The MPS daemons of Tranche's beside what the driver says: seen by their records and by the kernel's word on their processes.

No daemon is asked, and none of NVIDIA's programs is started, so that whoever only looks is not slowed down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tranche.core.devices import shareable_devices
from tranche.core.errors import LedgerUnavailable
from tranche.core.state import DaemonState, GpuInstance, GpuProcess, GpuState, NodeState
from tranche.node.mps.mps_records import DaemonRecordList, DaemonRecordStore, name_of

SERVER_PROGRAM = "nvidia-cuda-mps-server"


def node_with_daemons(node: NodeState, known: DaemonRecordStore) -> NodeState:
    """The node with its daemons."""
    try:
        found = known.look()
    except LedgerUnavailable:
        # Whoever only looks gets an answer; whoever decides asks the records too, and is refused.
        found = DaemonRecordList(damaged=frozenset(name_of(uuid) for gpu in node for uuid in shareable_devices(gpu)))
    if not found:
        return node
    return replace(node, gpus=tuple(with_daemons_of(gpu, found) for gpu in node.gpus))


def with_daemons_of(gpu: GpuState, found: DaemonRecordList) -> GpuState:
    """The GPU with those of the daemons that are on it; their servers do not count among the processes that use it."""
    ours = found.on(gpu)
    if not ours:
        return gpu
    pids = {record.pid for record in ours if record.state in (DaemonState.READY, DaemonState.FAULT)}
    orphaned = any(record.state in (DaemonState.LOST, DaemonState.DAMAGED) for record in ours)

    def users(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
        return tuple(each for each in processes if not _is_server(each, pids, orphaned))

    return replace(
        gpu,
        daemons=tuple(record.seen for record in ours),
        processes=users(gpu.processes),
        instances=tuple(_used_by(instance, users) for instance in gpu.instances),
    )


def _used_by(instance: GpuInstance, users: Callable[[tuple[GpuProcess, ...]], tuple[GpuProcess, ...]]) -> GpuInstance:
    if not instance.has_processes:
        return instance
    inside = tuple(replace(each, processes=users(each.processes)) for each in instance.compute_instances)
    return replace(instance, compute_instances=inside, stray_processes=users(instance.stray_processes))


def _is_server(process: GpuProcess, daemons: set[int], orphaned: bool) -> bool:
    """Whether one of the daemons has started the process; the server of one that has died has another parent now."""
    if orphaned and process.name == SERVER_PROGRAM:
        return True
    from tranche.node.processes.processes import process_at  # slow to import, and seldom needed

    found = process_at(process.pid)
    return found is not None and found.parent in daemons
