"""What the MIG manager reads from a node and writes on it: labels, annotations, and one condition. Pure.

`nvidia.com/mig.config` names the wanted layout, `nvidia.com/mig.config.state` says how far it is: the two labels, and the four
values of the second, are those of NVIDIA's MIG manager. Why it is not further is said by a label of ours in one word, and by
the node's condition in a sentence. The machine itself may have done something to its GPUs when it booted: a cut of ours that
failed, or partitions that its system made.
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
    """Reason words of reports that no error of the product stands for; of the others the error's own word is shown."""

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
    """What the node is to say about its layout. `reason` is one CamelCase word, `message` a sentence for people."""

    state: MigState
    reason: str
    message: str

    @property
    def labels(self) -> dict[str, str | None]:
        """The labels that say it; success needs no reason."""
        return {STATE_LABEL: self.state, REASON_LABEL: None if self.state is MigState.SUCCESS else self.reason}

    @property
    def condition(self) -> NodeCondition:
        """The condition that says it."""
        return NodeCondition(CONDITION_TYPE, _STATUS[self.state], self.reason, shortened(self.message))

    @property
    def severity(self) -> KubeEventType:
        """How the event about it is marked."""
        return KubeEventType.WARNING if self.state is MigState.FAILED else KubeEventType.NORMAL


NOTHING_ASKED: Mapping[str, str | None] = {STATE_LABEL: None, REASON_LABEL: None}
"""The labels of a node without a wanted layout."""

NO_LAYOUT = NodeCondition(
    CONDITION_TYPE, ConditionStatus.UNKNOWN, ReportReason.NO_LAYOUT, f"the node has no label {LAYOUT_LABEL}"
)


def wanted_layout(node: KubeNode) -> str:
    """The name in the layout label; "" when nothing is asked."""
    return node.labels.get(LAYOUT_LABEL, "")


def asking(node: KubeNode, default: str, machine: NodeState, *, heeds_mode: bool = False) -> KubeNode:
    """The node as if its label named the default layout, where it names none and the machine has a GPU to cut.

    With `heeds_mode` it is as if its label named none where the node's mode is another than static: no layout cuts it then.
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
    """What to say of a cut at boot that failed; None of one that succeeded, or when none was asked for."""
    if ended is None or not isinstance(ended.data, BootEnded) or not ended.data.reason:
        return None
    return Report(MigState.FAILED, ended.data.reason, ended.message)


def partitioned_by_system(node: KubeNode, view: NodeView) -> str | None:
    """Who partitions the node's GPUs at each boot beside Tranche, as a phrase; None when nobody is known to.

    Bottlerocket does, where its settings say so. A node shows its system, but not the system's settings; so GPU instances on such
    a node that Tranche did not make are taken for Bottlerocket's.
    """
    if not node.os_image.startswith(_BOTTLEROCKET):
        return None
    if all(gpu.key(instance) in view.owned for gpu in view.node for instance in gpu.instances):
        return None
    return f"{node.os_image}, which made the GPU instances by settings.kubelet-device-plugins.nvidia"
