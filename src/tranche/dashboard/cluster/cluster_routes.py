"""The addresses of a cluster as some viewers see it. Requests are authenticated before they come here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tranche.core.errors import TrancheError, UsageError
from tranche.core.request import Request as GpuRequest
from tranche.dashboard.cluster.acting_page import (
    foreseen_plan,
    node_acts,
    plan_page,
    refused_page,
    share_act,
    with_outlook,
)
from tranche.dashboard.cluster.cluster_action import ClusterAction, ClusterPlan
from tranche.dashboard.cluster.cluster_actions import ClusterActionHandler
from tranche.dashboard.cluster.cluster_history import ClusterHistory
from tranche.dashboard.cluster.cluster_history_view import past_view
from tranche.dashboard.cluster.entering_page import you_page
from tranche.dashboard.cluster.fleet_reader import FleetReader
from tranche.dashboard.cluster.kube_event import event_data
from tranche.dashboard.cluster.kube_viewer import KubeUser
from tranche.dashboard.cluster.node_layouts import NodeLayoutView
from tranche.dashboard.cluster.node_layouts_page import node_layouts_page
from tranche.dashboard.cluster.node_page import node_gpu_page, node_page, node_share_page, several_page
from tranche.dashboard.cluster.node_row import RowCache
from tranche.dashboard.cluster.nodes_page import NodeFilter, change_of, nodes_page, rows_message
from tranche.dashboard.cluster.pending import WaitingPod, explain_pending, explain_request, in_order
from tranche.dashboard.cluster.snapshot import SeenNode, apart, unshown
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.cluster.waiting_page import answered, cluster_events_page, cluster_queue_page
from tranche.dashboard.cluster.waste_history import WasteHistory
from tranche.dashboard.cluster.waste_view import cluster_waste_page, waste_data
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.history_view import hours_asked
from tranche.dashboard.live import seen_message
from tranche.dashboard.queue_page import ask_page
from tranche.dashboard.table_order import TableOrder
from tranche.dashboard.web import StreamTracker, Unavailable, form_of, nothing, page_answer
from tranche.documents.blocks import Document
from tranche.documents.describe import timestamp
from tranche.documents.envelope import document
from tranche.documents.markup import Child
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.telling.use_report import NO_USE

_VIEWS = (
    ("/", "Fleet"),
    ("/queue", "Queue"),
    ("/ask", "Ask"),
    ("/events", "Events"),
    ("/waste", "Waste"),
    ("/you", "You"),
)
MOST_EXPLAINED = 50
"""Pods of the queue with an explanation: explaining later ones would take as long again."""
_EXPLAIN_SECONDS = 3.0
"""The longest time to explain one more pod: on many nodes each takes a while."""
_UNSEEN = "this page sees nothing newer of the cluster"
_NOTHING = "There is nothing at this address, not any more, or not for you."
_NO_ANSWER = "Kubernetes does not answer"
_LONGEST_FORM = 16 * 1024
_CHANGED = "the cluster has changed since you saw the plan"


@dataclass(frozen=True, slots=True)
class ClusterPages:
    """What the pages are made of: the cluster's name, what is seen of it, how to read claims, and how to act, if at all.

    `waste` has added up what all namespaces hold, and `past` has seen each GPU's history; a page shows only what its viewer may
    know.
    """

    name: str
    user_view: UserView
    fleets: FleetReader
    waste: WasteHistory
    past: ClusterHistory
    acts: ClusterActionHandler | None = None
    row_cache: RowCache = field(default_factory=RowCache)
    streams: StreamTracker = field(default_factory=StreamTracker)

    async def _fleet(self, request: Request) -> Response:
        seen, sight = self.user_view.snapshot, self.user_view.rights.sight
        choice = NodeFilter.asked(request.query_params)
        return await self._shown(request, lambda: nodes_page(self.row_cache.rows(seen), seen.notes, choice, sight))

    async def _news(self, request: Request) -> Response:
        return self.streams.answer(request, self._lines(request))

    async def _node(self, request: Request) -> Response:
        found = self.user_view.snapshot.nodes.get(request.path_params["name"])
        return await self._shown(request, lambda: self._node_page(found, _order(request)))

    async def _layouts(self, request: Request) -> Response:
        found = self.user_view.layouts(request.path_params["name"])
        chosen = request.query_params.get("layout", "")
        return await self._shown(request, lambda: None if found is None else self._layouts_page(found, chosen))

    async def _gpu(self, request: Request) -> Response:
        uuid, hours = request.path_params["uuid"], hours_asked(request.query_params.get("hours", ""))
        return await self._shown(request, lambda: self._gpu_page(uuid, hours, _order(request)))

    async def _share(self, request: Request) -> Response:
        act = None if self.acts is None else share_act
        nodes, taken = self._asked_for(request.query_params), self.user_view.snapshot.taken
        return await self._shown(request, lambda: node_share_page(nodes, request.path_params["id"], taken, act))

    async def _queue(self, request: Request) -> Response:
        fleet, backend = await self._read("What claims have cannot be read ({}), so nobody can say why pods wait.")
        return await self._shown(request, lambda: self._queue_page(fleet, backend))

    async def _ask(self, request: Request) -> Response:
        fleet, backend = await self._read("Which way it gives shares cannot be read ({}), so nobody can say.")
        return await self._shown(request, lambda: self._ask_page(request.query_params, fleet, backend))

    async def _show_waste(self, request: Request) -> Response:
        found, seen, sight = self._waste(), self.user_view.snapshot, self.user_view.rights.sight
        return await self._shown(request, lambda: cluster_waste_page(found, seen, sight, _order(request)))

    async def _api_waste(self, request: Request) -> Response:
        found = self._waste()
        if found is None:
            raise Unavailable("", "The cluster was not seen yet.")
        return JSONResponse(document("ClusterWaste", **found))

    async def _events(self, request: Request) -> Response:
        view = self.user_view
        everywhere, notes = view.rights.sight.everywhere, view.snapshot.notes
        return await self._shown(
            request, lambda: cluster_events_page(view.events, notes, everywhere, request.query_params)
        )

    async def _you(self, request: Request) -> Response:
        viewer, view = request.scope["viewer"], self.user_view
        acting = self._acting(viewer)
        return await self._shown(request, lambda: you_page(viewer, view.rights, view.snapshot.notes, acting))

    async def _api_nodes(self, _: Request) -> Response:
        seen, trouble = self.user_view.snapshot, self.user_view.live.trouble
        taken = timestamp(seen.taken)
        return await _json(
            lambda: document(
                "ClusterNodeList",
                taken=taken,
                trouble=trouble or None,
                nodes=[_node_data(each, trouble) for each in seen.nodes.values()],
            )
        )

    async def _api_node(self, request: Request) -> Response:
        found = self.user_view.snapshot.nodes.get(request.path_params["name"])
        if found is None:
            return nothing(request, _NOTHING)
        return await _json(lambda: document("ClusterNode", **_node_data(found, self.user_view.live.trouble)))

    async def _api_events(self, _: Request) -> Response:
        events = self.user_view.events
        return await _json(lambda: document("ClusterEventList", events=[event_data(each) for each in events]))

    async def _nowhere(self, request: Request) -> Response:
        return nothing(request, _NOTHING)

    async def _act(self, request: Request) -> Response:
        """The plan by GET, the action by POST."""
        if self.acts is None:
            return nothing(request, _NOTHING)
        try:
            if request.method != "POST":
                return await self._plan_shown(request, self.acts, await self._plan(request, request.query_params))
            fields = await form_of(request, _LONGEST_FORM)
            if fields is None:
                raise UsageError("that is no form of ours")
            return await self._done(request, self.acts, await self._plan(request, fields), fields)
        except UsageError as error:
            return await self._refused(request, "Nothing is done", f"{error.message}.", HTTPStatus.BAD_REQUEST)
        except TrancheError as error:
            return await self._refused(request, "Kubernetes refuses it", f"{error.message}.", HTTPStatus.FORBIDDEN)

    async def _plan(self, request: Request, fields: Mapping[str, str]) -> ClusterPlan:
        assert self.acts is not None
        action = ClusterAction.asked(fields)
        node = self.user_view.snapshot.nodes.get(action.node)
        if node is None:
            raise UsageError(f"there is no node {action.node}, or not for you")
        plan = await self.acts.plan(request.scope["viewer"], action, node)
        return await run_in_threadpool(foreseen_plan, plan, self.user_view)

    async def _plan_shown(
        self, request: Request, acts: ClusterActionHandler, plan: ClusterPlan, moved: str = ""
    ) -> Response:
        viewer = request.scope["viewer"]
        why_not = await acts.why_not(viewer, plan)
        page = plan_page(plan, "" if why_not else acts.key(viewer, plan), why_not, acts.said(viewer), moved=moved)
        status = HTTPStatus.CONFLICT if moved else HTTPStatus.OK
        return await self._shown(request, lambda: with_outlook(page, plan.action, self.user_view), status)

    async def _done(
        self, request: Request, acts: ClusterActionHandler, plan: ClusterPlan, fields: Mapping[str, str]
    ) -> Response:
        viewer = request.scope["viewer"]
        if plan.digest != fields.get("plan"):
            return await self._plan_shown(request, acts, plan, _CHANGED)
        if why_not := acts.spend(viewer, plan, fields.get("key", "")):
            return await self._plan_shown(request, acts, plan, why_not)
        if why_not := await acts.why_not(viewer, plan):
            return await self._refused(request, plan.action.title, why_not, HTTPStatus.FORBIDDEN)
        await acts.act(viewer, plan)
        return RedirectResponse(f"/nodes/{quote(plan.action.node, safe='')}", HTTPStatus.SEE_OTHER)

    async def _refused(self, request: Request, title: str, said: str, status: HTTPStatus) -> Response:
        return await self._shown(request, lambda: refused_page(title, said), status)

    def _acting(self, viewer: KubeUser) -> str:
        """What the viewer can do here, in words."""
        if self.acts is None:
            return "This page only shows."
        try:
            return f"Pages of nodes and of shares lead to what can be done. {self.acts.said(viewer)}"
        except UsageError as error:
            return f"{error.message[:1].upper()}{error.message[1:]}."

    async def _read(self, why_not: str) -> tuple[Fleet, AllocationBackend]:
        try:
            return await self.fleets.fleet(), await self.fleets.backend()
        except TrancheError as error:
            raise Unavailable(_NO_ANSWER, why_not.format(error.reason)) from error

    def _waste(self) -> dict[str, Any] | None:
        """Viewers who may not list nodes do not learn the totals."""
        report, rights = self.waste.report(), self.user_view.rights
        return None if report is None else waste_data(report, rights.sight, others=rights.all_nodes)

    async def _lines(self, request: Request) -> AsyncGenerator[str, None]:
        known = request.headers.get("last-event-id") or request.query_params.get("since", "")
        choice, rows = NodeFilter.asked(request.query_params), "rows" in request.query_params
        sight = self.user_view.rights.sight
        async with aclosing(self.user_view.live.news(known)) as every:
            async for news in every:
                changed = await run_in_threadpool(rows_message, news, self.row_cache, choice, sight) if rows else ""
                yield changed + seen_message(news, time.time(), anew=change_of(news) is None)

    def _node_page(self, node: SeenNode | None, order: TableOrder) -> DashboardPage | None:
        seen = self.user_view.snapshot
        use = NO_USE if node is None else self.user_view.use(node.name)

        def made(of: SeenNode) -> DashboardPage:
            return node_page(of, seen.notes, seen.taken, None if self.acts is None else node_acts(of), order, use)

        return None if node is None else apart(node.name, lambda: made(node), lambda: made(unshown(node)))

    def _layouts_page(self, layouts: NodeLayoutView, chosen: str) -> DashboardPage:
        acts = self.acts is not None
        try:
            outlook = self.user_view.outlook(layouts, chosen) if chosen and not layouts.unknown else None
        except UsageError as error:
            return node_layouts_page(layouts, chosen, None, f"{error.message}. {error.hint}".strip(), acts=acts)
        return node_layouts_page(layouts, chosen, outlook, "", acts=acts)

    def _gpu_page(self, uuid: str, hours: int, order: TableOrder) -> DashboardPage | None:
        """A GPU's UUID is unique. If several nodes claim the same one, none of them is believed more than another."""
        seen = self.user_view.snapshot
        pairs = (
            (each, apart(each.name, partial(_gpu_of, each, uuid), lambda: None))
            for each in self._asked_for(order.query)
        )
        found = [(node, gpu) for node, gpu in pairs if gpu is not None]
        if len(found) > 1:
            said, address = "Several nodes have a GPU of that name:", f"/gpus/{quote(uuid, safe='')}"
            return several_page(f"GPU {uuid}", said, address, [node for node, _ in found])

        def made(node: SeenNode, gpu: Document) -> DashboardPage | None:
            past = self.past.past(node.name, uuid)
            use = self.user_view.use(node.name)
            shown = past_view(node, gpu, past, self.user_view.rights.sight, seen.taken, hours, use)
            return node_gpu_page(node, uuid, seen.notes, seen.taken, hours, shown, use, order)

        if not found:
            return None
        ((node, gpu),) = found
        return apart(node.name, lambda: made(node, gpu), lambda: node_page(unshown(node), seen.notes, seen.taken))

    def _asked_for(self, query: Mapping[str, str]) -> list[SeenNode]:
        """The node that an address names, or all."""
        nodes = self.user_view.snapshot.nodes.values()
        return [each for each in nodes if query.get("node", each.name) == each.name]

    def _queue_page(self, fleet: Fleet, backend: AllocationBackend) -> DashboardPage:
        user_view = self.user_view
        known, pods = user_view.fleet(fleet), in_order(user_view.pods)
        words = {
            (each.namespace, each.name): each.message for each in user_view.events if each.reason == "WaitsForShare"
        }
        gates = user_view.gates(fleet, backend)
        explained: list[WaitingPod] = []
        asked, end = 0, time.monotonic() + _EXPLAIN_SECONDS
        for each in pods[:MOST_EXPLAINED]:
            if asked and time.monotonic() > end:
                break
            asked += 1
            word = words.get((each.pod.namespace, each.pod.name), "")
            if (found := explain_pending(each, known, replace(gates, last_word=word), backend)) is not None:
                explained.append(found)
        seen = user_view.snapshot
        return cluster_queue_page(explained, user_view.hidden_pods, len(pods) - asked, seen.notes, seen.taken)

    def _ask_page(self, fields: Mapping[str, str], fleet: Fleet, backend: AllocationBackend) -> DashboardPage:
        def answer(request: GpuRequest) -> Iterator[Child]:
            return answered(explain_request(request, self.user_view.gates(fleet, backend), backend))

        return ask_page(fields, answer)

    async def _shown(
        self, request: Request, make: Callable[[], DashboardPage | None], status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        live, seen = self.user_view.live, self.user_view.snapshot
        version = live.version(seen)
        page = await run_in_threadpool(make)
        if page is None:
            return nothing(request, _NOTHING)
        return page_answer(
            request, page, live, seen, version, name=self.name, views=_VIEWS, unseen=_UNSEEN, status=status
        )


def cluster_routes() -> list[Route]:
    """All addresses; the scope of a request has the `pages` for its viewer."""

    def at(path: str, answer: Callable[[ClusterPages, Request], Awaitable[Response]], *methods: str) -> Route:
        async def answered(request: Request) -> Response:
            return await answer(request.scope["pages"], request)

        return Route(path, answered, methods=methods or None)

    return [
        at("/", ClusterPages._fleet),
        at("/live", ClusterPages._news),
        at("/nodes/{name}", ClusterPages._node),
        at("/nodes/{name}/layouts", ClusterPages._layouts),
        at("/gpus/{uuid}", ClusterPages._gpu),
        at("/shares/{id}", ClusterPages._share),
        at("/queue", ClusterPages._queue),
        at("/ask", ClusterPages._ask),
        at("/events", ClusterPages._events),
        at("/waste", ClusterPages._show_waste),
        at("/you", ClusterPages._you),
        at("/act", ClusterPages._act, "GET", "POST"),
        at("/api/nodes", ClusterPages._api_nodes),
        at("/api/nodes/{name}", ClusterPages._api_node),
        at("/api/events", ClusterPages._api_events),
        at("/api/waste", ClusterPages._api_waste),
        at("/{path:path}", ClusterPages._nowhere),
    ]


def node_data(node: SeenNode) -> dict[str, Any]:
    """A node as JSON data: what `tranche top -o json` prints there, its time, and what Kubernetes says of the node."""
    return {
        "name": node.name,
        "seen": None if node.seen is None else timestamp(node.seen),
        "trouble": node.trouble or None,
        "ready": node.standing.ready,
        "unschedulable": node.standing.unschedulable,
        "mode": node.standing.mode or None,
        "overview": None if node.seen is None else document("Overview", **node.overview),
    }


def _node_data(node: SeenNode, trouble: str) -> dict[str, Any]:
    """The same, for a page that gets nothing newer because of that trouble."""
    found = apart(node.name, lambda: node_data(node), lambda: node_data(unshown(node)))
    return {**found, "trouble": found["trouble"] or trouble or None}


def _order(request: Request) -> TableOrder:
    return TableOrder(str(request.scope["path"]), request.query_params)


def _gpu_of(node: SeenNode, uuid: str) -> Document | None:
    return next((gpu for gpu in node.overview["gpus"] if gpu["uuid"] == uuid), None)


async def _json(make: Callable[[], dict[str, Any]]) -> Response:
    return JSONResponse(await run_in_threadpool(make))
