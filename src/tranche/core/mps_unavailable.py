"""Why nobody more is let in on a device that several share by MPS."""

from __future__ import annotations

from tranche.core.state import DaemonState, GpuState, InstanceKey


def unavailable(gpu: GpuState, slot: InstanceKey | None) -> str:
    """Why nobody more may share that device by MPS while others do, in words; "" when they may."""
    daemon = gpu.daemon_of(slot)
    if daemon is not None and daemon.state is DaemonState.FAULT:
        return f"its MPS daemon lets nobody in: {daemon.fault}"
    if daemon is not None and daemon.state is DaemonState.LOST:
        return "its MPS daemon has died, or nobody finds it any more, and nobody is let in until all who share it have ended"
    if daemon is not None and daemon.state is DaemonState.DAMAGED:
        return "what is known of its MPS daemon cannot be read, and nobody is let in until all who share it have ended"
    return ""
