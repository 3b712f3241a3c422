"""What is known of a node, from its lease, its object and the clock. Pure."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tranche.core.errors import UsageError
from tranche.core.printable import shortened
from tranche.dashboard.cluster.snapshot import KubeNodeState, SeenNode
from tranche.documents.blocks import Document
from tranche.documents.overview import overview_data
from tranche.kubernetes.api.leases import Lease
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.mig_manager.state import LAYOUT_LABEL, REASON_LABEL, STATE_LABEL
from tranche.kubernetes.telling.told_view import SILENT_SECONDS, ViewReport, told_from_lease, told_node

_SHOWN_LABELS = ("tranche.dev/mode", LAYOUT_LABEL, STATE_LABEL, REASON_LABEL, "nvidia.com/gpu.product")
_HAS_GPUS = (
    "tranche.dev/gpu",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "nvidia.com/gpu.product",
)
_NEVER = "its agent has told nothing: does it run, and with --tell-view?"
_UNREADABLE = "what its agent tells cannot be read: is it of another version?"
_SILENT = "its agent has not renewed what it tells"
_LONGEST_REASON = 300
_NO_NODE = "the cluster has no such node any more"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class HeardNode:
    """What a node's agent has reported; `told` and `overview` are None if the report is unreadable.

    `renewed` is the agent's text of the last renewal. `seen` is when the server heard it, in seconds since the epoch, and `lasts`
    is how many seconds it stays valid. `unreadable` says why the report is unreadable, for the log alone; "" if it is readable.
    """

    node: str
    renewed: str
    seen: float
    lasts: float = SILENT_SECONDS
    told: ViewReport | None = None
    overview: Document | None = None
    unreadable: str = ""


def heard(lease: Lease, before: HeardNode | None, now: float) -> HeardNode:
    """What the lease says. Its renewal time, by the agent's clock, counts only for a lease heard for the first time, which may be
    old.
    """
    first = min(now, _moment(lease.renewed, now))
    seen = first if before is None else before.seen if before.renewed == lease.renewed else now
    bare = HeardNode(told_node(lease), lease.renewed, seen, float(lease.seconds or SILENT_SECONDS))
    try:
        told = told_from_lease(lease)
        return replace(bare, told=told, overview=overview_data(told.view, (), ()))
    except Exception as error:
        # Catch everything: one node's report must not hide the others. No page shows its contents, because who may see them is
        # unknown.
        said = error.message if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        why = shortened(said, _LONGEST_REASON)
        if before is None or before.unreadable != why:
            _log.warning("what a node tells cannot be read", extra={"node": bare.node, "error": why})
        return replace(bare, unreadable=why)


def seen_node(name: str, told: HeardNode | None, node: FleetNode | None, now: float) -> SeenNode:
    """The node as a page shows it."""
    standing = standing_of(node)
    if told is None:
        return SeenNode(name, standing, trouble=_NEVER)
    if told.overview is None:
        return SeenNode(name, standing, trouble=_UNREADABLE)
    trouble = _NO_NODE if node is None else _SILENT if now - told.seen > told.lasts else ""
    return SeenNode(name, standing, told.overview, told.seen, trouble)


def has_gpus(node: FleetNode) -> bool:
    """Whether a node without a report should have one."""
    return bool(node.resources) or any(node.labels.get(each) not in (None, "", "false") for each in _HAS_GPUS)


def standing_of(node: FleetNode | None) -> KubeNodeState:
    """What Kubernetes says of the node."""
    if node is None:
        return KubeNodeState()
    shown: Mapping[str, str] = {key: node.labels[key] for key in _SHOWN_LABELS if key in node.labels}
    return KubeNodeState(node.ready, node.unschedulable, str(node.mode or ""), shown)


def _moment(rfc3339: str, otherwise: float) -> float:
    try:
        return datetime.datetime.fromisoformat(rfc3339).timestamp()
    except (ValueError, OverflowError):
        return otherwise
