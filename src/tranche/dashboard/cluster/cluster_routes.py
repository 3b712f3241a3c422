"""The addresses of a cluster as some viewers see it; beside them are those of its nodes (`routes`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tranche.core.errors import TrancheError, UsageError
from tranche.dashboard.asking import asked_request
from tranche.dashboard.cluster.acting_page import node_acts, share_act
from tranche.dashboard.cluster.acting_routes import acting_routes
from tranche.dashboard.cluster.apart import apart, unshown
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
from tranche.dashboard.cluster.pending import WaitingPod, explain_pending, explain_request, in_order
from tranche.dashboard.cluster.routes import UNSEEN, ClusterContext, node_routes
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.dashboard.cluster.waiting_page import cluster_ask_page, cluster_events_page, cluster_queue_page
from tranche.dashboard.cluster.waste_history import WasteHistory
from tranche.dashboard.cluster.waste_view import cluster_waste_page, waste_data
from tranche.dashboard.error_answer import error_answer
from tranche.dashboard.frame import DashboardPage, live_part, whole_page
from tranche.dashboard.history_view import hours_asked
from tranche.dashboard.queue_page import ASKED
from tranche.dashboard.table_order import TableOrder
from tranche.documents.blocks import Document
from tranche.documents.describe import timestamp
from tranche.documents.envelope import document
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.telling.use_report import NO_USE

VIEWS = (
    ("/", "Fleet"),
    ("/queue", "Queue"),
    ("/ask", "Ask"),
    ("/events", "Events"),
    ("/waste", "Waste"),
    ("/you", "You"),
)
"""The views that every page leads to."""
MOST_EXPLAINED = 50
"""Pods of the queue whose waiting is explained: the rest came later, and would take as long again."""
_EXPLAIN_SECONDS = 3.0
"""Nobody waits longer for words about one pod more: on many nodes each takes a while."""
_HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ClusterPageContext:
    """What the pages are made of: the cluster's name, what is seen of it, how to read claims, and how to act, if at all.

    `waste` has added up what all namespaces hold, `past` has seen what became of each GPU; a page tells of them what its viewer
    may know.
    """

    name: str
    user_view: UserView
    fleets: FleetReader
    waste: WasteHistory
    past: ClusterHistory
    acts: ClusterActionHandler | None = None


def cluster_routes(pages: ClusterPageContext) -> list[Route]:
    """All addresses for viewers with those rights."""
    user_view = pages.user_view

    async def sight_of(_: Request) -> NameVisibility:
        return user_view.rights.sight

    async def node(request: Request) -> Response:
        found = user_view.snapshot.nodes.get(request.path_params["name"])
        return await _shown(pages, request, lambda: _node_page(pages, found, _order(request)))

    async def layouts(request: Request) -> Response:
        found = user_view.layouts(request.path_params["name"])
        chosen = request.query_params.get("layout", "")
        return await _shown(pages, request, lambda: None if found is None else _layouts_page(pages, found, chosen))

    async def gpu(request: Request) -> Response:
        uuid, hours = request.path_params["uuid"], hours_asked(request.query_params.get("hours", ""))
        return await _shown(pages, request, lambda: _gpu_page(pages, uuid, hours, _order(request)))

    async def share(request: Request) -> Response:
        return await _shown(pages, request, lambda: _share_page(pages, request.path_params["id"], request.query_params))

    async def queue(request: Request) -> Response:
        try:
            fleet, backend = await pages.fleets.fleet(), await pages.fleets.backend()
        except TrancheError as error:
            return _unavailable(f"What claims have cannot be read ({error.reason}), so nobody can say why pods wait.")
        return await _shown(pages, request, lambda: _queue_page(pages, fleet, backend))

    async def ask(request: Request) -> Response:
        try:
            fleet, backend = await pages.fleets.fleet(), await pages.fleets.backend()
        except TrancheError as error:
            return _unavailable(f"Which way it gives shares cannot be read ({error.reason}), so nobody can say.")
        return await _shown(pages, request, lambda: _ask_page(pages, dict(request.query_params), fleet, backend))

    async def waste(request: Request) -> Response:
        found, seen, sight = _waste_of(pages), user_view.snapshot, user_view.rights.sight
        return await _shown(pages, request, lambda: cluster_waste_page(found, seen, sight, _order(request)))

    async def api_waste(request: Request) -> Response:
        found = _waste_of(pages)
        if found is None:
            said = "The cluster was not seen yet."
            return error_answer(request.scope["path"], HTTPStatus.SERVICE_UNAVAILABLE, "", said)
        return JSONResponse(document("ClusterWaste", **found))

    async def events(request: Request) -> Response:
        everywhere, notes = user_view.rights.sight.everywhere, user_view.snapshot.notes
        return await _shown(
            pages, request, lambda: cluster_events_page(user_view.events, notes, everywhere, request.query_params)
        )

    async def you(request: Request) -> Response:
        viewer = request.scope["viewer"]
        acting = _acting(pages.acts, viewer)
        return await _shown(
            pages, request, lambda: you_page(viewer, user_view.rights, user_view.snapshot.notes, acting)
        )

    async def api_nodes(_: Request) -> Response:
        seen, trouble = user_view.snapshot, user_view.live.trouble
        taken = timestamp(seen.taken)
        return await _json(
            lambda: document(
                "ClusterNodeList",
                taken=taken,
                trouble=trouble or None,
                nodes=[_node_data(each, trouble) for each in seen.nodes.values()],
            )
        )

    async def api_node(request: Request) -> Response:
        found = user_view.snapshot.nodes.get(request.path_params["name"])
        if found is None:
            return await _nothing(request)
        return await _json(lambda: document("ClusterNode", **_node_data(found, user_view.live.trouble)))

    async def api_events(_: Request) -> Response:
        return await _json(lambda: document("ClusterEventList", events=[event_data(each) for each in user_view.events]))

    return [
        *node_routes(ClusterContext(pages.name, user_view.live, sight_of, VIEWS)),
        Route("/nodes/{name}", node),
        Route("/nodes/{name}/layouts", layouts),
        Route("/gpus/{uuid}", gpu),
        Route("/shares/{id}", share),
        Route("/queue", queue),
        Route("/ask", ask),
        Route("/events", events),
        Route("/waste", waste),
        Route("/you", you),
        *([] if pages.acts is None else acting_routes(pages.acts, user_view, partial(_shown, pages))),
        Route("/api/nodes", api_nodes),
        Route("/api/nodes/{name}", api_node),
        Route("/api/events", api_events),
        Route("/api/waste", api_waste),
        Route("/{path:path}", _nothing),
    ]


def _acting(acts: ClusterActionHandler | None, viewer: KubeUser) -> str:
    """What somebody can do here, in words."""
    if acts is None:
        return "This page only shows."
    try:
        return f"Pages of nodes and of shares lead to what can be done. {acts.said(viewer)}"
    except UsageError as error:
        return f"{error.message[:1].upper()}{error.message[1:]}."


def _waste_of(pages: ClusterPageContext) -> dict[str, Any] | None:
    """Whoever may not list nodes is not told how much there is in all."""
    report, rights = pages.waste.report(), pages.user_view.rights
    return None if report is None else waste_data(report, rights.sight, others=rights.all_nodes)


def node_data(node: SeenNode) -> dict[str, Any]:
    """A node as JSON data: what `tranche top -o json` prints on it, of when that is, and what Kubernetes says of it."""
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
    """The same, of a page to which nothing newer is known because of that trouble."""
    found = apart(node.name, lambda: node_data(node), lambda: node_data(unshown(node)))
    return {**found, "trouble": found["trouble"] or trouble or None}


def _order(request: Request) -> TableOrder:
    return TableOrder(str(request.scope["path"]), request.query_params)


def _node_page(pages: ClusterPageContext, node: SeenNode | None, order: TableOrder) -> DashboardPage | None:
    seen = pages.user_view.snapshot
    use = NO_USE if node is None else pages.user_view.use(node.name)

    def made(of: SeenNode) -> DashboardPage:
        return node_page(of, seen.notes, seen.taken, None if pages.acts is None else node_acts(of), order, use)

    return None if node is None else apart(node.name, lambda: made(node), lambda: made(unshown(node)))


def _layouts_page(pages: ClusterPageContext, layouts: NodeLayoutView, chosen: str) -> DashboardPage:
    acts = pages.acts is not None
    try:
        outlook = pages.user_view.outlook(layouts, chosen) if chosen and not layouts.unknown else None
    except UsageError as error:
        return node_layouts_page(layouts, chosen, None, f"{error.message}. {error.hint}".strip(), acts=acts)
    return node_layouts_page(layouts, chosen, outlook, "", acts=acts)


def _gpu_page(pages: ClusterPageContext, uuid: str, hours: int, order: TableOrder) -> DashboardPage | None:
    """No two GPUs have one UUID. Where several nodes say that they have it, none of them is believed more than another."""
    seen = pages.user_view.snapshot
    pairs = (
        (each, apart(each.name, partial(_gpu_of, each, uuid), lambda: None)) for each in _asked_for(seen, order.query)
    )
    found = [(node, gpu) for node, gpu in pairs if gpu is not None]
    if len(found) > 1:
        said, address = "Several nodes have a GPU of that name:", f"/gpus/{quote(uuid, safe='')}"
        return several_page(f"GPU {uuid}", said, address, [node for node, _ in found])

    def made(node: SeenNode, gpu: Document) -> DashboardPage | None:
        past = pages.past.past(node.name, uuid)
        use = pages.user_view.use(node.name)
        shown = past_view(node, gpu, past, pages.user_view.rights.sight, seen.taken, hours, use)
        return node_gpu_page(node, uuid, seen.notes, seen.taken, hours, shown, use, order)

    if not found:
        return None
    ((node, gpu),) = found
    return apart(node.name, lambda: made(node, gpu), lambda: node_page(unshown(node), seen.notes, seen.taken))


def _gpu_of(node: SeenNode, uuid: str) -> Document | None:
    return next((gpu for gpu in node.overview["gpus"] if gpu["uuid"] == uuid), None)


def _asked_for(seen: ClusterSnapshot, query: Mapping[str, str]) -> list[SeenNode]:
    """The node that an address names, or all."""
    return [each for each in seen.nodes.values() if query.get("node", each.name) == each.name]


def _share_page(pages: ClusterPageContext, allocation_id: str, query: Mapping[str, str]) -> DashboardPage | None:
    seen = pages.user_view.snapshot
    nodes = _asked_for(seen, query)
    act = None if pages.acts is None else share_act
    return node_share_page(nodes, allocation_id, seen.taken, act)


def _queue_page(pages: ClusterPageContext, fleet: Fleet, backend: AllocationBackend) -> DashboardPage:
    user_view = pages.user_view
    known, pods = user_view.fleet(fleet), in_order(user_view.pods)
    words = {(each.namespace, each.name): each.message for each in user_view.events if each.reason == "WaitsForShare"}
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


def _ask_page(
    pages: ClusterPageContext, fields: dict[str, str], fleet: Fleet, backend: AllocationBackend
) -> DashboardPage:
    if not ASKED & fields.keys():
        return cluster_ask_page({}, None, "")
    try:
        gates = pages.user_view.gates(fleet, backend)
        return cluster_ask_page(fields, explain_request(asked_request(fields), gates, backend), "")
    except UsageError as error:
        return cluster_ask_page(fields, None, f"{error.message}. {error.hint}".strip())


async def _shown(
    pages: ClusterPageContext,
    request: Request,
    make: Callable[[], DashboardPage | None],
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    """The page, or the part of it that changes."""
    live, seen = pages.user_view.live, pages.user_view.snapshot
    version, path = live.version(seen), str(request.scope["path"])
    page = await run_in_threadpool(make)
    if page is None:
        return await _nothing(request)
    if request.headers.get("tranche-part") == "view":
        # A page that is open says why its plan does not hold any more; what keeps it live has not failed.
        return Response(str(live_part(page)), media_type=_HTML)
    text = whole_page(
        page,
        path=path,
        machine=pages.name,
        version=version,
        taken=seen.taken,
        views=VIEWS,
        trouble=live.trouble,
        unseen=UNSEEN,
    )
    return Response(text, status, media_type=_HTML)


async def _json(make: Callable[[], dict[str, Any]]) -> Response:
    return JSONResponse(await run_in_threadpool(make))


async def _nothing(request: Request) -> Response:
    said = "There is nothing at this address, not any more, or not for you."
    return error_answer(str(request.scope["path"]), HTTPStatus.NOT_FOUND, "Not found", said)


def _unavailable(said: str) -> Response:
    return error_answer("", HTTPStatus.SERVICE_UNAVAILABLE, "Kubernetes does not answer", said)
