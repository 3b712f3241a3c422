"""Watches a cluster: agents' reports, nodes, waiting pods, and events. All pages are made from these.

What nodes offer to claims, what claims have, and how the cluster gives shares is read on demand: a watch without viewers would
cost too much. All uses the rights of the dashboard's own account; what each viewer may see is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from tranche.core.errors import ClaimsUnavailable
from tranche.dashboard.cluster.kube_event import COMPONENTS, KubeEvent, decode_kube_event
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, HeardNode, SeenNode, apart, has_gpus, heard, seen_node
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.informer import ObjectSource
from tranche.kubernetes.api.object_client import Lease, LeaseClient
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod, decode_fleet_node, decode_fleet_pod
from tranche.kubernetes.fleet.reading import backend_in_force, read_fleet
from tranche.kubernetes.latest_value import within
from tranche.kubernetes.telling.told_view import TOLD_LABEL, VIEW, ViewReport, told_node

_PACE_SECONDS = 0.25
_TICK_SECONDS = 2.0
_LONGEST_FAULT = 300
_MADE_OUT = "this page cannot read the cluster's data; see its log"

_log = logging.getLogger(__name__)

Item = TypeVar("Item")
_FRESH_SECONDS = 5.0

Read = TypeVar("Read")


@dataclass(frozen=True)
class ClusterObservation:
    """All that is known at one moment. `trouble` says why nothing newer is known; "" if it is current.

    `told` are the agents' reports, by node name; `pods` wait, and `events` are those of our programs.
    """

    snapshot: ClusterSnapshot
    told: Mapping[str, ViewReport] = field(default_factory=dict)
    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    pods: tuple[FleetPod, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    trouble: str = ""

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """Every namespace that appears on a page. Each user_view asks for it."""
        held: set[str] = set()
        for node in self.snapshot.nodes.values():
            spaces: list[str] = apart(node.name, partial(_spaces_of, node), list)
            held.update(spaces)
        waiting = (each.namespace for each in self.pods)
        return frozenset({*held, *waiting, *(each.namespace for each in self.events)} - {""})


def _spaces_of(node: SeenNode) -> list[str]:
    return list(node.namespaces.values())


class ClusterSource:
    """A component. It calls `report` on the event loop with the newest state, and `lose` with a fault that keeps it from reading
    what the API server sends.
    """

    name = "cluster"

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        report: Callable[[ClusterObservation], None],
        lose: Callable[[str], None],
    ) -> None:
        self._report = report
        self._lose = lose
        waiting = {"fieldSelector": "status.phase=Pending"}
        leases = LeaseClient(connection, namespace)
        self._leases = _Followed(leases.source("what agents tell", {"labelSelector": f"{TOLD_LABEL}={VIEW}"}))
        self._nodes = _Followed(ObjectSource(connection, "nodes", "/api/v1/nodes", {}, decode_fleet_node))
        self._pods = _Followed(ObjectSource(connection, "pods that wait", "/api/v1/pods", waiting, decode_fleet_pod))
        self._events = tuple(
            _Followed(
                ObjectSource(
                    connection,
                    f"events of {each}",
                    "/api/v1/events",
                    {"fieldSelector": f"source={each}"},
                    decode_kube_event,
                    bookmarked=False,
                )
            )
            for each in COMPONENTS
        )
        self._changed = asyncio.Event()
        self._heard: dict[str, HeardNode] = {}
        self._read: dict[str, Lease] = {}
        self._seen = ClusterObservation(ClusterSnapshot())
        self._fault = ""

    def ready(self) -> Readiness:
        """Ready once nodes and their reports are read, and while the page can make sense of them."""
        if self._fault:
            return Readiness(False, self._fault)
        missing = self._trouble() if not self._synced() else ""
        return Readiness(self._synced(), missing or ("" if self._synced() else "the cluster has not been read yet"))

    async def run(self) -> None:
        """Watch until cancelled."""
        for each in self._all():
            each.heard = False
        try:
            async with asyncio.TaskGroup() as group:
                for each in self._all():
                    group.create_task(each.follow(self._changed))
                group.create_task(self._keep())
        except ExceptionGroup as errors:
            self._fail(errors.exceptions[0])
            raise

    def _all(self) -> Iterable[_Followed[Any]]:
        return (self._leases, self._nodes, self._pods, *self._events)

    def _synced(self) -> bool:
        return self._leases.items is not None and self._nodes.items is not None

    def _trouble(self) -> str:
        return next((each.trouble for each in self._all() if each.trouble), "")

    async def _keep(self) -> None:
        while True:
            await within(_TICK_SECONDS, self._changed.wait())
            self._changed.clear()
            if self._synced() and (not self._fault or self._settled()):
                try:
                    await self._look()
                    self._report(self._seen)
                    self._fault = ""
                except Exception as error:
                    # Catch everything: pages say that they are not live, and the next change tries again.
                    self._fail(error)
            await asyncio.sleep(_PACE_SECONDS)

    def _settled(self) -> bool:
        """Whether the present state of everything followed is known, or why it is not."""
        return all(each.heard or each.trouble for each in self._all())

    def _fail(self, error: Exception) -> None:
        fault = f"{type(error).__name__}: {error}"[:_LONGEST_FAULT]
        if fault != self._fault:
            _log.error("cannot interpret the cluster's data", exc_info=error)
        self._fault = fault
        self._lose(_MADE_OUT)

    async def _look(self) -> None:
        now, trouble = time.time(), self._trouble()
        leases, nodes = self._leases.items or (), self._nodes.items or ()
        by_node = {told_node(each): each for each in leases}
        fresh = [each for name, each in by_node.items() if self._read.get(name) is not each]
        if fresh:
            made = await asyncio.to_thread(
                lambda: [heard(each, self._heard.get(told_node(each)), now) for each in fresh]
            )
            self._heard.update((each.node, each) for each in made)
            self._read.update((told_node(each), each) for each in fresh)
        for name in [name for name in self._read if name not in by_node]:
            del self._read[name], self._heard[name]
        objects = {each.name: each for each in nodes}
        names = {*self._heard, *(name for name, each in objects.items() if has_gpus(each))}
        before = self._seen
        # While nothing is heard, a node must not look as if its agent were silent: this server hears nothing.
        at = before.snapshot.taken if trouble else now
        seen = [seen_node(name, self._heard.get(name), objects.get(name), at) for name in sorted(names)]
        gone = [name for name in before.snapshot.nodes if name not in names]
        written = {each.uid: each for followed in self._events for each in followed.items or ()}
        events = (each.believed(now) for each in written.values())
        self._seen = ClusterObservation(
            before.snapshot.after(seen, at, gone=gone),
            {name: each.told for name, each in self._heard.items() if each.told is not None},
            objects,
            tuple(each for each in self._pods.items or () if each.asks),
            tuple(each for each in events if each is not None),
            trouble,
        )


class _Followed(Generic[Item]):
    """A collection as last heard. `trouble` says why it could not be listed last; `heard`: since `run` last began."""

    def __init__(self, source: ObjectSource[Item]) -> None:
        self._source = source
        self.items: tuple[Item, ...] | None = None
        self.heard = False
        self.trouble = ""

    async def follow(self, changed: asyncio.Event) -> None:
        """Keep up until cancelled."""
        async with aclosing(self._source.snapshots(self._note)) as snapshots:
            async for items in snapshots:
                self.items, self.heard = items, True
                changed.set()

    def _note(self, why: str) -> None:
        self.trouble = why


class FleetReader:
    """Reads with the dashboard's own account, which may read leases in its namespace alone. `clock` is monotonic, in seconds.

    `fleet` is empty in a cluster without claims; `backend` is how the cluster gives shares. Both are as of now or five
    seconds ago. KubernetesUnavailable without an answer.
    """

    def __init__(self, connection: ApiConnection, namespace: str, *, clock: Callable[[], float]) -> None:
        self.fleet = _Fresh(partial(_fleet, connection, namespace), clock).get
        self.backend = _Fresh(partial(backend_in_force, connection, namespace), clock).get


async def _fleet(connection: ApiConnection, namespace: str) -> Fleet:
    try:
        return await read_fleet(connection, namespace)
    except ClaimsUnavailable:
        return Fleet()


class _Fresh(Generic[Read]):
    """A reading, until it is too old. One caller at a time reads it again."""

    def __init__(self, read: Callable[[], Awaitable[Read]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._found: tuple[float, Read] | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> Read:
        """As of now, or five seconds ago."""
        async with self._reading:
            if self._found is None or self._clock() - self._found[0] >= _FRESH_SECONDS:
                found = await self._read()
                self._found = self._clock(), found
            return self._found[1]
