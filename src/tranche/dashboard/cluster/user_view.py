"""A cluster as viewers with the same rights see it. It does not contain what they may not see, whatever pages make of it.

Each set of rights has its own page of nodes, streams and versions, so not even the pace of changes reveals what is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tranche.core.errors import UsageError
from tranche.dashboard.cluster.kube_event import KubeEvent, newest_fairly
from tranche.dashboard.cluster.node_layouts import LayoutPreview, NodeLayoutView
from tranche.dashboard.cluster.nodes_page import RowCache
from tranche.dashboard.cluster.redaction import redacted_overview
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, NameVisibility, SeenNode, apart, unshown
from tranche.dashboard.cluster.source import ClusterObservation
from tranche.dashboard.cluster.waiting_page import gate_fleet, giving, redacted_fleet
from tranche.dashboard.live import Publisher
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod
from tranche.kubernetes.gated.reading import GateFleet
from tranche.kubernetes.telling.told_view import ViewReport
from tranche.kubernetes.telling.use_report import NO_USE, UseReport, use_from_text

MOST_EVENTS = 300
"""Events that a page shows."""
_MOST_OUTLOOKS = 32
_PACE_SECONDS = 0.25

_SEES_NOTHING = (
    "You have no permission to list this cluster's nodes, or the pods of any namespace that has shares here. The chart's role "
    "'researcher' lets you see nodes; permission to list a namespace's pods lets you see its names."
)
_SEES_OWN_NODES = "You have no permission to list nodes, so the page shows only nodes with pods that you can list."


@dataclass(frozen=True, slots=True)
class ViewerPermission:
    """Decides what a viewer sees: whose names, and whether all nodes or only those with something visible to the viewer."""

    sight: NameVisibility
    all_nodes: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What the viewer has to know about the picture."""
        if self.all_nodes:
            return ()
        return (_SEES_NOTHING,) if self.see_nothing else (_SEES_OWN_NODES,)

    @property
    def see_nothing(self) -> bool:
        """Whether the viewer may know no more than that there is a page."""
        return not (self.all_nodes or self.sight.everywhere or self.sight.namespaces)

    def shown(self, node: SeenNode) -> SeenNode | None:
        """The node as the viewer sees it; None if it is hidden."""
        return apart(node.name, lambda: self._shown(node), lambda: unshown(node) if self.all_nodes else None)

    def _shown(self, node: SeenNode) -> SeenNode | None:
        seen = self.all_nodes or any(map(self.sight.sees, node.namespaces.values()))
        if not seen or self.sight.everywhere:
            return node if seen else None
        return replace(node, overview=redacted_overview(node.overview, self.sight))


class UserView:
    """To be used on the event loop. `live` announces changes; `used` is when a viewer last asked.

    `events` are the newest that may be seen, newest first.
    """

    def __init__(self, rights: ViewerPermission) -> None:
        self.rights = rights
        self.used = 0.0
        self.row_cache = RowCache()
        self.live = Publisher[ClusterSnapshot](_PACE_SECONDS)
        self._base: ClusterSnapshot | None = None
        self._seen = ClusterObservation(ClusterSnapshot())
        self._others: tuple[object, ...] = ()
        self.events: tuple[KubeEvent, ...] = ()
        self._events_of: tuple[object, ...] = ()
        self._outlooks: dict[tuple[str, str], tuple[ViewReport | None, LayoutPreview]] = {}

    def lose(self, why: str) -> None:
        """Say why nothing newer is known."""
        self.live.take(None, why)

    def take(self, seen: ClusterObservation) -> None:
        """Take the newest known state."""
        change = None if self._base is None else seen.snapshot.since(self._base.version)
        changed: Iterable[SeenNode] = seen.snapshot.nodes.values() if change is None else change.nodes
        shown = {each.name: self.rights.shown(each) for each in changed}
        gone = [name for name, each in shown.items() if each is None]
        gone += [name for name in self.snapshot.nodes if name not in seen.snapshot.nodes]
        after = self.snapshot.after(
            (each for each in shown.values() if each is not None),
            seen.snapshot.taken,
            gone=gone,
            notes=self.rights.notes,
        )
        self._base, self._seen = seen.snapshot, seen
        if self._events_of != (seen.events, seen.namespaces):
            self._events_of = seen.events, seen.namespaces
            self.events = self._shown_events(seen)
        others = (self.pods, self.hidden_pods, self.events)
        if others != self._others:  # pages that show these have to look again
            after = replace(after, version=after.version + 1)
        self._others = others
        self.live.take(after, seen.trouble)

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The visible nodes, as they are shown."""
        return self.live.newest or ClusterSnapshot()

    @property
    def pods(self) -> tuple[FleetPod, ...]:
        """Waiting pods that may be named."""
        return tuple(each for each in self._seen.pods if self.rights.sight.sees(each.namespace))

    @property
    def hidden_pods(self) -> int:
        """How many others wait, for viewers who may know that."""
        return 0 if self.rights.see_nothing else len(self._seen.pods) - len(self.pods)

    def fleet(self, fleet: Fleet) -> Fleet:
        """What claims have, as the viewer may know it."""
        if not self.rights.all_nodes:
            nodes = tuple(each for each in fleet.nodes if each.name in self.snapshot.nodes)
            pools = {name: each for name, each in fleet.pools.items() if name in self.snapshot.nodes}
            fleet = replace(fleet, nodes=nodes, pools=pools, whole=False)
        return redacted_fleet(fleet, self.rights.sight)

    def gates(self, fleet: Fleet, backend: AllocationBackend) -> GateFleet:
        """What nodes have for shares that are given by demand; `fleet` is what they offer to claims."""
        nodes: Mapping[str, FleetNode] = self._seen.nodes
        told: Mapping[str, ViewReport] = self._seen.told
        shown = {name: each for name, each in nodes.items() if self.rights.all_nodes or name in self.snapshot.nodes}
        known = {
            name: told[name].view for name, each in self.snapshot.nodes.items() if name in told and not each.trouble
        }
        gates = replace(gate_fleet(known, shown, self.rights.sight), whole=self.rights.all_nodes)
        return giving(gates, fleet, backend)

    def use(self, name: str) -> UseReport:
        """How much the GPUs of that node are and were used, for viewers who may list nodes or see all names; empty if it is
        unreadable. Others would learn what went on before they came.
        """
        seen = name in self.snapshot.nodes and (self.rights.all_nodes or self.rights.sight.everywhere)
        told = self._seen.told.get(name) if seen else None
        try:
            return NO_USE if told is None or not told.use else use_from_text(told.use)
        except UsageError:
            return NO_USE

    def layouts(self, name: str) -> NodeLayoutView | None:
        """The layouts of that node, and what they would do; None if the node is hidden."""
        node = self.snapshot.nodes.get(name)
        if node is None:
            return None
        return NodeLayoutView(node, self._seen.told.get(name), self.rights.sight, self._seen.namespaces)

    def outlook(self, layouts: NodeLayoutView, layout: str) -> LayoutPreview:
        """What that layout would do on that node; TrancheError if that is unknown.

        It takes a while, and open pages ask whenever anything in the cluster has changed. So the result is kept until the node's
        agent reports something new.
        """
        place = (layouts.node.name, layout)
        found = self._outlooks.get(place)
        if found is not None and found[0] is layouts.told:
            return found[1]
        made = layouts.outlook(layout)
        if len(self._outlooks) >= _MOST_OUTLOOKS:
            self._outlooks.clear()
        self._outlooks[place] = (layouts.told, made)
        return made

    def _shown_events(self, seen: ClusterObservation) -> tuple[KubeEvent, ...]:
        """An event about a node may name pods of any namespace, so only viewers of all namespaces see it."""
        sight = self.rights.sight
        found = newest_fairly((each for each in seen.events if sight.sees(each.namespace)), MOST_EVENTS)
        return tuple(each.redacted(sight, seen.namespaces) for each in found)
