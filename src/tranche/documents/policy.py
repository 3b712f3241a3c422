"""The administrator's sharing policy as JSON data."""

from __future__ import annotations

from typing import Any

from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import NodeState


def policy_documents(policy: SharingPolicy, node: NodeState) -> list[dict[str, Any]]:
    """Each GPU with the policy in force, and where it was set."""
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "sharing": str(policy.use_of(gpu.uuid)),
            "saidFor": source_of(policy, gpu.uuid),
            "timeslice": None if gpu.timeslice_wanted is None else str(gpu.timeslice_wanted),
        }
        for gpu in node
    ]


def source_of(policy: SharingPolicy, gpu_uuid: str) -> str:
    """Where a GPU's policy was set: `gpu`, `all`, or `nothing`."""
    if gpu_uuid in policy.gpus:
        return "gpu"
    return "nothing" if policy.every is None else "all"
