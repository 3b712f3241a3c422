"""The addresses of a cluster's page of nodes over HTTP; whoever asks has passed the gate before."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tranche.dashboard.cluster.choice import NodeFilter
from tranche.dashboard.cluster.feed import rows_message, seen_message
from tranche.dashboard.cluster.live import ClusterPublisher
from tranche.dashboard.cluster.node_row import RowCache
from tranche.dashboard.cluster.nodes_page import nodes_page
from tranche.dashboard.cluster.snapshot import ClusterSnapshot
from tranche.dashboard.cluster.visibility import NameVisibility
from tranche.dashboard.error_answer import error_answer
from tranche.dashboard.frame import DashboardPage, live_part, whole_page
from tranche.dashboard.open_streams import StreamTracker

_HTML = "text/html; charset=utf-8"

UNSEEN = "this page sees nothing newer of the cluster"
"""What it means when the server speaks, has no trouble, and what it shows is old."""

SightOf = Callable[[Request], Awaitable[NameVisibility]]
"""Whose names whoever asks may see."""


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """What the dashboard is of: the cluster's name, what is known of it, who may see which names, and the views to lead to."""

    name: str
    live: ClusterPublisher
    sight_of: SightOf
    views: tuple[tuple[str, str], ...] = (("/", "Fleet"),)
    row_cache: RowCache = field(default_factory=RowCache)


def node_routes(served: ClusterContext) -> list[Route]:
    """The page of all nodes, and the stream of what changes."""
    streams = StreamTracker()

    async def fleet(request: Request) -> Response:
        sight = await served.sight_of(request)
        return await _shown(served, request, lambda seen: _fleet(served, request, seen, sight))

    async def news(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        lines = _lines(served, request, await served.sight_of(request))
        told = streams.told(request.headers.get("cookie", ""), lines)
        return StreamingResponse(told, media_type="text/event-stream")

    return [Route("/", fleet), Route("/live", news)]


def _fleet(served: ClusterContext, request: Request, seen: ClusterSnapshot, sight: NameVisibility) -> DashboardPage:
    return nodes_page(served.row_cache.rows(seen), seen.notes, NodeFilter.asked(request.query_params), sight)


async def _shown(
    served: ClusterContext, request: Request, make: Callable[[ClusterSnapshot], DashboardPage | None]
) -> Response:
    """The page of what was seen last, or the part of it that changes."""
    seen, path = served.live.newest, str(request.scope["path"])
    if seen is None:
        why = served.live.trouble or "no node has been heard yet"
        return error_answer(path, HTTPStatus.SERVICE_UNAVAILABLE, "Nothing was seen of the cluster", why)
    version = served.live.version(seen)

    def written() -> str | None:
        page = make(seen)
        if page is None:
            return None
        if request.headers.get("tranche-part") == "view":
            return str(live_part(page))
        return whole_page(
            page,
            path=path,
            machine=served.name,
            version=version,
            taken=seen.taken,
            views=served.views,
            trouble=served.live.trouble,
            unseen=UNSEEN,
        )

    text = await run_in_threadpool(written)
    if text is None:
        said = "There is nothing at this address, or not any more."
        return error_answer(path, HTTPStatus.NOT_FOUND, "Not found", said)
    return Response(text, headers={"Tranche-Version": version}, media_type=_HTML)


async def _lines(served: ClusterContext, request: Request, sight: NameVisibility) -> AsyncGenerator[str, None]:
    known = request.headers.get("last-event-id") or request.query_params.get("since", "")
    choice, rows = NodeFilter.asked(request.query_params), "rows" in request.query_params
    async with aclosing(served.live.news(known)) as every:
        async for news in every:
            changed = await run_in_threadpool(rows_message, news, served.row_cache, choice, sight) if rows else ""
            yield changed + seen_message(news, time.time())
