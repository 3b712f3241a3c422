"""The pages of a cluster as a viewer may see it. Requests are authenticated before they come here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
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
from tranche.dashboard.cluster.authentication import KubeUser
from tranche.dashboard.cluster.cluster_action import (
    ClusterAction,
    ClusterActionHandler,
    foreseen_plan,
    layout_act,
    node_acts,
    plan_page,
    refused_page,
    share_act,
    with_outlook,
)
from tranche.dashboard.cluster.cluster_history import ClusterHistory, past_view
from tranche.dashboard.cluster.cluster_waste import WasteHistory, cluster_waste_page, waste_data
from tranche.dashboard.cluster.kube_event import event_data
from tranche.dashboard.cluster.node_layouts import node_layouts_page
from tranche.dashboard.cluster.node_page import node_gpu_page, node_page, node_share_page, several_page
from tranche.dashboard.cluster.nodes_page import NodeFilter, change_of, nodes_page, rows_message
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode, apart, unshown
from tranche.dashboard.cluster.source import FleetReader
from tranche.dashboard.cluster.user_view import UserView, ViewerPermission
from tranche.dashboard.cluster.waiting_page import (
    answered,
    cluster_events_page,
    cluster_queue_page,
    explain_pending,
    explain_request,
    in_order,
)
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.history_view import hours_asked
from tranche.dashboard.live import seen_message
from tranche.dashboard.parts import TableOrder, code, figures, notes
from tranche.dashboard.queue_page import ask_page
from tranche.dashboard.web import GatedRequestHandler, Lifespan, Unavailable, form_of, nothing
from tranche.documents.blocks import Document
from tranche.documents.describe import timestamp
from tranche.documents.envelope import document
from tranche.documents.markup import Child, element
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.fleet.explanation import FleetExplanation
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetPod

MOST_EXPLAINED = 50
"""Pods of the queue with an explanation: explaining later ones would take as long again."""
_EXPLAIN_SECONDS = 3.0
"""The longest time to explain one more pod: on many nodes each takes a while."""
_NOTHING = "There is nothing at this address, or you do not have permission to see it."
_NO_ANSWER = "Kubernetes does not answer"
_LONGEST_FORM = 16 * 1024
_CHANGED = "the cluster has changed since you saw the plan"


class ClusterPages(GatedRequestHandler):
    """All addresses. `admit` puts the `viewer` of a request and their `view` into its scope; a page shows what is in that view.

    `waste` adds up what all namespaces hold, and `past` sees each GPU's history: both have to take each snapshot.
    """

    views = (
        ("/", "Fleet"),
        ("/queue", "Queue"),
        ("/ask", "Ask"),
        ("/events", "Events"),
        ("/waste", "Waste"),
        ("/you", "You"),
    )
    unseen = "this page gets no new data from the cluster"

    def __init__(
        self,
        name: str,
        fleets: FleetReader,
        acts: ClusterActionHandler | None = None,
        routes: Sequence[Route] = (),
        lifespan: Lifespan | None = None,
    ) -> None:
        """`fleets` read claims; without `acts`, pages only show."""

        def page(path: str, make: Callable[[UserView, Request], DashboardPage | None]) -> Route:
            async def answered(request: Request) -> Response:
                return await self._answer(request, partial(make, request.scope["view"], request))

            return Route(path, answered)

        def data(path: str, make: Callable[[UserView, Request], Document | None]) -> Route:
            async def answered(request: Request) -> Response:
                found = await run_in_threadpool(make, request.scope["view"], request)
                return nothing(request, _NOTHING) if found is None else JSONResponse(found)

            return Route(path, answered)

        super().__init__(
            name,
            [
                *routes,
                page("/", self._fleet),
                Route("/live", self._news),
                page("/nodes/{name}", self._node),
                page("/nodes/{name}/layouts", self._layouts),
                page("/gpus/{uuid}", self._gpu),
                page("/shares/{id}", self._share),
                Route("/queue", self._queue),
                Route("/ask", self._ask),
                page("/events", self._events),
                Route("/waste", self._waste_page),
                page("/you", self._you),
                Route("/act", self._act, methods=["GET", "POST"]),
                data("/api/nodes", self._api_nodes),
                data("/api/nodes/{name}", self._api_node),
                data("/api/events", self._api_events),
                Route("/api/waste", self._api_waste),
                Route("/{path:path}", self._nowhere),
            ],
            lifespan,
        )
        self._fleets = fleets
        self._acts = acts
        self.waste = WasteHistory()
        self.past = ClusterHistory()

    def _fleet(self, view: UserView, request: Request) -> DashboardPage:
        seen, choice = view.snapshot, NodeFilter.asked(request.query_params)
        return nodes_page(view.row_cache.rows(seen), seen.notes, choice, view.rights.sight)

    async def _news(self, request: Request) -> Response:
        return self.streamed(request, self._lines(request.scope["view"], request))

    def _node(self, view: UserView, request: Request) -> DashboardPage | None:
        seen = view.snapshot
        node = seen.nodes.get(request.path_params["name"])
        if node is None:
            return None
        use = view.use(node.name)

        def made(of: SeenNode) -> DashboardPage:
            acts = None if self._acts is None else node_acts(of)
            return node_page(of, seen.notes, seen.taken, acts, _order(request), use)

        return apart(node.name, lambda: made(node), lambda: made(unshown(node)))

    def _layouts(self, view: UserView, request: Request) -> DashboardPage | None:
        layouts, chosen = view.layouts(request.path_params["name"]), request.query_params.get("layout", "")
        if layouts is None:
            return None
        outlook, trouble = None, ""
        try:
            outlook = view.outlook(layouts, chosen) if chosen and not layouts.unknown else None
        except UsageError as error:
            trouble = f"{error.message}. {error.hint}".strip()
        return node_layouts_page(layouts, chosen, outlook, trouble, None if self._acts is None else layout_act)

    def _gpu(self, view: UserView, request: Request) -> DashboardPage | None:
        """A GPU's UUID is unique. If several nodes claim the same one, none of them is believed more than another."""
        uuid, hours = request.path_params["uuid"], hours_asked(request.query_params.get("hours", ""))
        seen = view.snapshot
        pairs = (
            (each, apart(each.name, partial(_gpu_of, each, uuid), lambda: None)) for each in _asked_for(seen, request)
        )
        found = [(node, gpu) for node, gpu in pairs if gpu is not None]
        if len(found) > 1:
            said, address = "Several nodes have a GPU with that UUID:", f"/gpus/{quote(uuid, safe='')}"
            return several_page(f"GPU {uuid}", said, address, [node for node, _ in found])

        def made(node: SeenNode, gpu: Document) -> DashboardPage | None:
            past, use = self.past.past(node.name, uuid), view.use(node.name)
            shown = past_view(node, gpu, past, view.rights.sight, seen.taken, hours, use)
            return node_gpu_page(node, uuid, seen.notes, seen.taken, shown, use, _order(request))

        if not found:
            return None
        ((node, gpu),) = found
        return apart(node.name, lambda: made(node, gpu), lambda: node_page(unshown(node), seen.notes, seen.taken))

    def _share(self, view: UserView, request: Request) -> DashboardPage | None:
        act, seen = None if self._acts is None else share_act, view.snapshot
        return node_share_page(_asked_for(seen, request), request.path_params["id"], seen.taken, act)

    async def _queue(self, request: Request) -> Response:
        fleet, backend = await self._read("The page cannot read claims ({}), so it cannot show why pods wait.")
        return await self._answer(request, partial(_queue_page, request.scope["view"], fleet, backend))

    async def _ask(self, request: Request) -> Response:
        fleet, backend = await self._read(
            "The page cannot read how the cluster assigns shares ({}), so the answer is unknown."
        )

        def answer(asked: GpuRequest) -> Iterator[Child]:
            gates = request.scope["view"].gates(fleet, backend)
            return answered(explain_request(asked, gates, backend))

        return await self._answer(request, partial(ask_page, request.query_params, answer))

    async def _waste_page(self, request: Request) -> Response:
        view: UserView = request.scope["view"]
        # Read here, on the loop, where the sums change.
        make = partial(cluster_waste_page, self._waste(view), view.snapshot, view.rights.sight, _order(request))
        return await self._answer(request, make)

    def _events(self, view: UserView, request: Request) -> DashboardPage:
        everywhere = view.rights.sight.everywhere
        return cluster_events_page(view.events, view.snapshot.notes, everywhere, request.query_params)

    def _you(self, view: UserView, request: Request) -> DashboardPage:
        viewer = request.scope["viewer"]
        return _you_page(viewer, view.rights, view.snapshot.notes, self._acting(viewer))

    def _api_nodes(self, view: UserView, _: Request) -> Document:
        seen, trouble = view.snapshot, view.live.trouble
        nodes = [_node_data(each, trouble) for each in seen.nodes.values()]
        return document("ClusterNodeList", taken=timestamp(seen.taken), trouble=trouble or None, nodes=nodes)

    def _api_node(self, view: UserView, request: Request) -> Document | None:
        found = view.snapshot.nodes.get(request.path_params["name"])
        return None if found is None else document("ClusterNode", **_node_data(found, view.live.trouble))

    def _api_events(self, view: UserView, _: Request) -> Document:
        return document("ClusterEventList", events=[event_data(each) for each in view.events])

    async def _api_waste(self, request: Request) -> Response:
        found = self._waste(request.scope["view"])
        if found is None:
            raise Unavailable("", "The server has not read the cluster yet.")
        return JSONResponse(document("ClusterWaste", **found))

    async def _nowhere(self, request: Request) -> Response:
        return nothing(request, _NOTHING)

    async def _act(self, request: Request) -> Response:
        if self._acts is None:
            return nothing(request, _NOTHING)
        try:
            return await self._planned_or_done(request, self._acts)
        except UsageError as error:
            return await self._refused(request, "Nothing was done", f"{error.message}.", HTTPStatus.BAD_REQUEST)
        except TrancheError as error:
            return await self._refused(request, "Kubernetes refused it", f"{error.message}.", HTTPStatus.FORBIDDEN)

    async def _planned_or_done(self, request: Request, acts: ClusterActionHandler) -> Response:
        """The plan by GET, the action by POST: by the plan that the viewer saw, with its key, and with the rights for it."""
        posted, viewer, view = request.method == "POST", request.scope["viewer"], request.scope["view"]
        fields = await form_of(request, _LONGEST_FORM) if posted else request.query_params
        if fields is None:
            raise UsageError("the form cannot be read")
        action = ClusterAction.asked(fields)
        node = view.snapshot.nodes.get(action.node)
        if node is None:
            raise UsageError(f"node {action.node} does not exist, or you do not have permission to see it")
        plan = await run_in_threadpool(foreseen_plan, await acts.plan(viewer, action, node), view)
        moved = ""
        if posted:
            moved = _CHANGED if plan.digest != fields.get("plan") else acts.spend(viewer, plan, fields.get("key", ""))
        account = acts.account(viewer)
        why_not = await account.lacks(plan.rights)
        if posted and not moved:
            if why_not:
                return await self._refused(request, action.title, why_not, HTTPStatus.FORBIDDEN)
            await acts.act(viewer, plan)
            return RedirectResponse(f"/nodes/{quote(action.node, safe='')}", HTTPStatus.SEE_OTHER)
        page = plan_page(plan, "" if why_not else acts.key(viewer, plan), why_not, account.said, moved=moved)
        status = HTTPStatus.CONFLICT if moved else HTTPStatus.OK
        return await self._answer(request, partial(with_outlook, page, action, view), status)

    async def _refused(self, request: Request, title: str, said: str, status: HTTPStatus) -> Response:
        return await self._answer(request, partial(refused_page, title, said), status)

    def _acting(self, viewer: KubeUser) -> str:
        """What the viewer can do here, in words."""
        if self._acts is None:
            return "This page is read-only."
        try:
            return f"The pages of nodes and shares show the available actions. {self._acts.account(viewer).said}"
        except UsageError as error:
            return f"{error.message[:1].upper()}{error.message[1:]}."

    async def _read(self, why_not: str) -> tuple[Fleet, AllocationBackend]:
        try:
            return await self._fleets.fleet(), await self._fleets.backend()
        except TrancheError as error:
            raise Unavailable(_NO_ANSWER, why_not.format(error.reason)) from error

    def _waste(self, view: UserView) -> dict[str, Any] | None:
        """Viewers who may not list nodes do not learn the totals."""
        report = self.waste.report()
        return None if report is None else waste_data(report, view.rights.sight, others=view.rights.all_nodes)

    async def _lines(self, view: UserView, request: Request) -> AsyncGenerator[str, None]:
        known = request.headers.get("last-event-id") or request.query_params.get("since", "")
        choice, rows = NodeFilter.asked(request.query_params), "rows" in request.query_params
        changes = partial(rows_message, cache=view.row_cache, choice=choice, sight=view.rights.sight)
        async with aclosing(view.live.news(known)) as every:
            async for news in every:
                changed = await run_in_threadpool(changes, news) if rows else ""
                yield changed + seen_message(news, time.time(), anew=change_of(news) is None)

    async def _answer(
        self, request: Request, make: Callable[[], DashboardPage | None], status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        view: UserView = request.scope["view"]
        seen = view.snapshot
        version = view.live.version(seen)
        page = await run_in_threadpool(make)
        return (
            nothing(request, _NOTHING) if page is None else self.shown(request, page, view.live, seen, version, status)
        )


def _queue_page(view: UserView, fleet: Fleet, backend: AllocationBackend) -> DashboardPage:
    known, pods = view.fleet(fleet), in_order(view.pods)
    words = {(each.namespace, each.name): each.message for each in view.events if each.reason == "WaitsForShare"}
    gates = view.gates(fleet, backend)
    explained: list[tuple[FleetPod, FleetExplanation]] = []
    asked, end = 0, time.monotonic() + _EXPLAIN_SECONDS
    for each in pods[:MOST_EXPLAINED]:
        if asked and time.monotonic() > end:
            break
        asked += 1
        word = words.get((each.namespace, each.name), "")
        if (found := explain_pending(each, known, replace(gates, last_word=word), backend)) is not None:
            explained.append((each, found))
    seen = view.snapshot
    return cluster_queue_page(explained, view.hidden_pods, len(pods) - asked, seen.notes, seen.taken)


def _asked_for(seen: ClusterSnapshot, request: Request) -> list[SeenNode]:
    """The node that an address names, or all."""
    return [each for each in seen.nodes.values() if request.query_params.get("node", each.name) == each.name]


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


def _you_page(viewer: KubeUser, rights: ViewerPermission, said: Sequence[str], acting: str) -> DashboardPage:
    """Who the viewer is, how they entered, and what they see; `acting` says what they can do."""
    some = "some" if rights.sight.everywhere or rights.sight.namespaces else "none"
    spaces = "all" if rights.sight.everywhere else ", ".join(sorted(rights.sight.namespaces)) or "none"
    leave = element("form", element("button", "Sign out"), action="/leave", method="post")
    live = element(
        "div",
        notes(said),
        figures(
            [
                ("user", code(viewer.user)),
                ("signed in with", "a token" if viewer.token else "a proxy, which names you"),
                ("names of namespaces", spaces),
                ("nodes", "all" if rights.all_nodes else some),
            ]
        ),
        element("h2", "Groups"),
        element("ul", [element("li", code(each)) for each in viewer.groups])
        if viewer.groups
        else element("p", "None."),
        element("h2", "Acting"),
        element("p", acting),
    )
    return DashboardPage("You", live, below=leave if viewer.token else None)
