"""What the MIG manager reads from a node and writes on it: labels, annotations, and one condition. Pure.

`nvidia.com/mig.config` names the wanted layout, `nvidia.com/mig.config.state` reports its progress: the two labels, and the four
values of the second, are those of NVIDIA's MIG manager. One of our labels says in one word why it is not further, and the node's
condition says so in a sentence. The machine may also have done something to its GPUs when it booted: a cut of ours that failed,
or partitions that its system made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tranche.core.allocation import NodeView
from tranche.core.events import BootEnded, Event
from tranche.core.printable import shortened
from tranche.core.state import NodeState
from tranche.kubernetes.api.objects import ConditionStatus, KubeEventType, KubeNode, NodeCondition
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force

LAYOUT_LABEL = "nvidia.com/mig.config"
STATE_LABEL = "nvidia.com/mig.config.state"
REASON_LABEL = "tranche.dev/mig.config.reason"
CONDITION_TYPE = "MigLayoutApplied"


class MigState(StrEnum):
    """The values of the state label."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    REBOOTING = "rebooting"


_STATUS = {
    MigState.SUCCESS: ConditionStatus.TRUE,
    MigState.FAILED: ConditionStatus.FALSE,
    MigState.PENDING: ConditionStatus.UNKNOWN,
    MigState.REBOOTING: ConditionStatus.UNKNOWN,
}


class ReportReason(StrEnum):
    """Reason words of reports without an error class; other reports show the error's own word."""

    APPLIED = "LayoutApplied"
    APPLYING = "Applying"
    MANAGER_CONFLICT = "ManagerConflict"
    NO_LAYOUT = "NoLayoutRequested"
    OPERANDS = "WaitingForOperands"
    OPERANDS_STILL_RUN = "OperandsStillRunning"
    REBOOT = "RebootForMigMode"
    TURN = "WaitingForTurn"
    IN_USE = "GpuBusy"


@dataclass(frozen=True, slots=True)
class Report:
    """What the node should say about its layout. `reason` is one CamelCase word, `message` a sentence for people."""

    state: MigState
    reason: str
    message: str

    @property
    def labels(self) -> dict[str, str | None]:
        """The report as labels; success needs no reason."""
        return {STATE_LABEL: self.state, REASON_LABEL: None if self.state is MigState.SUCCESS else self.reason}

    @property
    def condition(self) -> NodeCondition:
        """The report as a condition."""
        return NodeCondition(CONDITION_TYPE, _STATUS[self.state], self.reason, shortened(self.message))

    @property
    def severity(self) -> KubeEventType:
        """The severity of its event."""
        return KubeEventType.WARNING if self.state is MigState.FAILED else KubeEventType.NORMAL


NOTHING_ASKED: Mapping[str, str | None] = {STATE_LABEL: None, REASON_LABEL: None}
"""The labels of a node without a wanted layout."""

NO_LAYOUT = NodeCondition(
    CONDITION_TYPE, ConditionStatus.UNKNOWN, ReportReason.NO_LAYOUT, f"the node has no label {LAYOUT_LABEL}"
)


def wanted_layout(node: KubeNode) -> str:
    """The name in the layout label; "" without one."""
    return node.labels.get(LAYOUT_LABEL, "")


def asking(node: KubeNode, default: str, machine: NodeState, *, heeds_mode: bool = False) -> KubeNode:
    """The node as if its label named the default layout, if it names none and the machine has a GPU to cut.

    With `heeds_mode` and a mode other than static, it is the node as if its label named none: then no layout cuts it.
    """
    if heeds_mode and mode_in_force(node.labels) is not NodeMode.STATIC:
        return replace(node, labels={key: value for key, value in node.labels.items() if key != LAYOUT_LABEL})
    if not default or wanted_layout(node) or not any(gpu.mig_capable for gpu in machine):
        return node
    return replace(node, labels={**node.labels, LAYOUT_LABEL: default})


def needed(wanted: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str | None]:
    """The part of a metadata patch that changes something."""
    return {key: value for key, value in wanted.items() if present.get(key) != value}


_BOTTLEROCKET = "Bottlerocket"


def failed_boot(ended: Event | None) -> Report | None:
    """The report of a cut at boot that failed; None if it succeeded, or none was requested."""
    if ended is None or not isinstance(ended.data, BootEnded) or not ended.data.reason:
        return None
    return Report(MigState.FAILED, ended.data.reason, ended.message)


def partitioned_by_system(node: KubeNode, view: NodeView) -> str | None:
    """Who else partitions the node's GPUs at each boot, as a phrase; None if no one is known to.

    Bottlerocket does, where its settings say so. A node shows its system, but not the system's settings. So on such a node, GPU
    instances that Tranche did not make count as Bottlerocket's.
    """
    if not node.os_image.startswith(_BOTTLEROCKET):
        return None
    if all(gpu.key(instance) in view.owned for gpu in view.node for instance in gpu.instances):
        return None
    return f"{node.os_image}, which made the GPU instances through settings.kubelet-device-plugins.nvidia"
