"""What the MIG manager reads from a node and writes on it: labels, annotations, and one condition. Pure.

`nvidia.com/mig.config` names the wanted layout, `nvidia.com/mig.config.state` reports its progress: the two labels, and the four
values of the second, are those of NVIDIA's MIG manager. One of our labels says in one word why it is not further, and the node's
condition says so in a sentence. The machine may also have done something to its GPUs when it booted: a cut of ours that failed,
or partitions that its system made.

A failed attempt is an annotation, so that a restarted manager waits as long as the one before. It names moments by seconds of the
machine's monotonic clock, and by which boot they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from tranche.core.allocation import NodeView
from tranche.core.events import BootEnded, Event
from tranche.core.json_text import read_json
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
    return f"{node.os_image}, which created the GPU instances through settings.kubelet-device-plugins.nvidia"


@dataclass(frozen=True, slots=True)
class Moment:
    """`seconds` are of a clock that only goes forward, but starts over at each boot of the machine; `boot` names the boot."""

    boot: str
    seconds: float

    def until(self, now: Moment) -> float | None:
        """How many seconds ago it was; None if unknown, because the machine was restarted since."""
        passed = now.seconds - self.seconds
        return passed if self.boot == now.boot and passed >= 0 else None

    def __str__(self) -> str:
        return f"{self.seconds:.3f}@{self.boot}"


def parse_moment(text: str) -> Moment:
    """The moment that `str` wrote; for any other text an unknown moment."""
    seconds, _, boot = text.partition("@")
    try:
        return Moment(boot, float(seconds))
    except ValueError:
        return Moment(boot, float("inf"))


FIRST_DELAY_SECONDS = 5.0
LONGEST_DELAY_SECONDS = 300.0

ATTEMPT_ANNOTATION = "tranche.dev/mig.config.attempt"
REBOOT_SPENT = "spent"


@dataclass(frozen=True, slots=True)
class RetryState:
    """The last of `failures` failed attempts in a row at one layout.

    `digest` identifies the layout's content, so that an edited layout is tried at once. `at` is when it failed. `reboot` is ""
    without a request for a restart of the machine, the boot id under which it was requested, or REBOOT_SPENT when the restart has
    not helped. `restart_failed` says that the restart itself failed.
    """

    digest: str
    failures: int
    at: Moment
    reason: str
    message: str
    reboot: str = ""
    restart_failed: bool = False

    def wait(self, now: Moment) -> float:
        """In how many seconds to try again, 0 for at once.

        5 seconds after the first failure, then twice as long each time, at most five minutes; at once when the machine was
        restarted since.
        """
        passed = self.at.until(now)
        if passed is None:
            return 0.0
        return max(min(FIRST_DELAY_SECONDS * 2.0 ** min(self.failures - 1, 16), LONGEST_DELAY_SECONDS) - passed, 0.0)

    def asked_reboot(self, boot_id: str) -> bool:
        """Whether a restart was requested that has not happened yet."""
        return self.reboot == boot_id != ""

    def rebooted(self, boot_id: str) -> bool:
        """Whether the machine was restarted for this attempt and nothing was tried since."""
        return self.reboot not in ("", REBOOT_SPENT, boot_id)


def attempt_text(attempt: RetryState) -> str:
    """The annotation's value."""
    return json.dumps(asdict(attempt), separators=(",", ":"))


def parse_attempt(text: str | None) -> RetryState | None:
    """The attempt that attempt_text wrote; None for any other text, which means no record and a try at once."""
    if text is None:
        return None
    try:
        data = read_json(text)
        return RetryState(
            digest=str(data["digest"]),
            failures=max(int(data["failures"]), 1),
            at=Moment(str(data["at"]["boot"]), float(data["at"]["seconds"])),
            reason=str(data["reason"]),
            message=str(data["message"]),
            reboot=str(data["reboot"]),
            restart_failed=bool(data.get("restart_failed")),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
