"""A cluster at one moment: each node, made from its lease, its object and the clock, and when each node changed.

A snapshot is immutable. The next one shares every unchanged node, so fifty changes a second among a thousand nodes cost fifty new
nodes and one dictionary. Here also stands which names a viewer may see. Pure.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tranche.core.errors import UsageError
from tranche.core.printable import shortened
from tranche.documents.blocks import IN_NAMESPACES, Document
from tranche.documents.overview import overview_data
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.mig_manager.state import LAYOUT_LABEL, REASON_LABEL, STATE_LABEL
from tranche.kubernetes.telling.told_view import SILENT_SECONDS, ViewReport, told_from_lease, told_node

HIDDEN = "another namespace"
"""Stands for a name that a viewer may not see."""
_NOTHING: Document = {"gpus": [], "allocations": [], "waiters": []}
_GONE_KEPT = 1_000
UNSHOWN = "its agent's report cannot be shown; see this page's log"

_log = logging.getLogger(__name__)

Made = TypeVar("Made")
_SHOWN_LABELS = ("tranche.dev/mode", LAYOUT_LABEL, STATE_LABEL, REASON_LABEL, "nvidia.com/gpu.product")
_HAS_GPUS = (
    "tranche.dev/gpu",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "nvidia.com/gpu.product",
)
_NEVER = "its agent has sent no report: check that it runs with --tell-view"
_UNREADABLE = "its agent's report cannot be read: the agent may have a different version"
_SILENT = "its agent has not renewed its report"
_LONGEST_REASON = 300
_NO_NODE = "the node is no longer in the cluster"


@dataclass(frozen=True, slots=True)
class NameVisibility:
    """Names in `namespaces` are visible; with `everywhere` all names, also those in no namespace."""

    namespaces: frozenset[str] = frozenset()
    everywhere: bool = False

    def sees(self, namespace: str) -> bool:
        """Whether names in that namespace may be seen; "" means that the namespace is unknown."""
        return self.everywhere or (namespace != "" and namespace in self.namespaces)


def namespace_of(allocation: Document) -> str:
    """The namespace of an allocation's holder; "" if it is neither a pod nor a claim."""
    keeper = allocation.get("keeper", {})
    return str(keeper.get("namespace") or "") if keeper.get("kind") in IN_NAMESPACES else ""


@dataclass(frozen=True, slots=True)
class KubeNodeState:
    """What Kubernetes says of a node. `mode` is the administrator's word for how its GPUs are given away, "" if there is none.

    `ready` and `unschedulable` are None if they could not be read. `labels` are those that a page shows.
    """

    ready: bool | None = None
    unschedulable: bool | None = None
    mode: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class SeenNode:
    """A node as it was seen at `seen`, in seconds since the epoch; None if its agent has never been heard.

    `overview` is the document that `tranche top -o json` prints there: `gpus`, `allocations` and `waiters`. `trouble` says why
    it is out of date, "" if it is current. `changed` is the version of the snapshot in which the node became what it is.
    """

    name: str
    standing: KubeNodeState = KubeNodeState()
    overview: Document = field(default_factory=lambda: _NOTHING)
    seen: float | None = None
    trouble: str = ""
    changed: int = 0

    @property
    def namespaces(self) -> Mapping[str, str]:
        """The namespace of each allocation's holder, by the allocation's id; "" where it has none."""
        return {each["id"]: namespace_of(each) for each in self.overview["allocations"]}

    @property
    def unknown(self) -> str:
        """A sentence that nothing is known of its GPUs, and why; "" if something is known."""
        end = "" if self.trouble.endswith((".", "?", "!")) else "."
        return "" if self.seen is not None else f"Its GPUs are unknown: {self.trouble}{end}"

    def shows_the_same(self, other: SeenNode) -> bool:
        """Whether a page of the other one would look the same, except for its time."""
        mine = (self.name, self.standing, self.trouble, self.overview)
        return mine == (other.name, other.standing, other.trouble, other.overview)


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """The nodes that are new or changed, by name, and the names of those that have gone."""

    nodes: tuple[SeenNode, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All nodes by name, in that order, at `taken`. `version` grows with each change of any of them.

    `gone` are nodes that have gone, with the version in which they went. Nodes that went before `first` are forgotten. `notes`
    say what is unknown about the cluster as a whole.
    """

    nodes: Mapping[str, SeenNode] = field(default_factory=dict)
    version: int = 0
    taken: float = 0.0
    notes: tuple[str, ...] = ()
    gone: Mapping[str, int] = field(default_factory=dict)
    first: int = 0

    def after(
        self,
        seen: Iterable[SeenNode],
        taken: float,
        *,
        gone: Iterable[str] = (),
        notes: tuple[str, ...] | None = None,
    ) -> ClusterSnapshot:
        """The next snapshot, with these nodes seen and those gone. It keeps this one's version if nothing has changed."""
        version = self.version + 1
        nodes, left = dict(self.nodes), dict(self.gone)
        changed = notes is not None and notes != self.notes
        for each in seen:
            before = nodes.get(each.name)
            same = before is not None and each.shows_the_same(before)
            left.pop(each.name, None)
            nodes[each.name] = replace(each, changed=before.changed if before is not None and same else version)
            changed = changed or not same
        for name in gone:
            if nodes.pop(name, None) is not None:
                left[name], changed = version, True
        if len(nodes) != len(self.nodes) or nodes.keys() != self.nodes.keys():
            nodes = dict(sorted(nodes.items()))
        first = self.first
        while len(left) > _GONE_KEPT:
            oldest = min(left, key=left.__getitem__)
            first = max(first, left.pop(oldest))
        return ClusterSnapshot(
            nodes, version if changed else self.version, taken, self.notes if notes is None else notes, left, first
        )

    def since(self, version: int) -> ClusterChange | None:
        """What has changed after that version; None if it is too old, or from another run."""
        if not self.first <= version <= self.version:
            return None
        return ClusterChange(
            tuple(each for each in self.nodes.values() if each.changed > version),
            tuple(name for name, went in self.gone.items() if went > version),
        )


def apart(node: str, make: Callable[[], Made], instead: Callable[[], Made]) -> Made:
    """What `make` returns; what `instead` returns if `make` fails."""
    try:
        return make()
    except Exception:
        # Catch everything: one node must not take down a page of a thousand nodes.
        _log.exception("a node cannot be shown", extra={"node": node})
        return instead()


def unshown(node: SeenNode) -> SeenNode:
    """The node with nothing but what Kubernetes says of it."""
    return SeenNode(node.name, node.standing, trouble=UNSHOWN, changed=node.changed)


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
    renewed = seconds_told(lease.renewed)
    first = now if renewed is None else min(now, renewed)
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
            _log.warning("a node's report cannot be read", extra={"node": bare.node, "error": why})
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


def seconds_told(rfc3339: str) -> float | None:
    """A time that others have written, in seconds since the epoch; None if it is none."""
    try:
        return datetime.datetime.fromisoformat(rfc3339).timestamp()
    except (ValueError, OverflowError):
        return None
