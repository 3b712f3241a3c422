"""The address at which an action's plan is shown and done; whoever asks has passed the gate before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tranche.core.errors import TrancheError, UsageError
from tranche.dashboard.cluster.acting_page import plan_page, refused_page
from tranche.dashboard.cluster.cluster_action import ClusterAction, ClusterPlan
from tranche.dashboard.cluster.cluster_actions import ClusterActionHandler
from tranche.dashboard.cluster.foreseen_plan import foreseen_plan, with_outlook
from tranche.dashboard.cluster.user_view import UserView
from tranche.dashboard.frame import DashboardPage

_LONGEST_FORM = 16 * 1024
_CHANGED = "the cluster has changed since you saw the plan"

ShowPage = Callable[[Request, Callable[[], DashboardPage], HTTPStatus], Awaitable[Response]]


def acting_routes(acts: ClusterActionHandler, user_view: UserView, shown: ShowPage) -> list[Route]:
    """The plan by GET, the action by POST."""

    async def planned(request: Request, fields: Mapping[str, str]) -> ClusterPlan:
        action = ClusterAction.asked(fields)
        node = user_view.snapshot.nodes.get(action.node)
        if node is None:
            raise UsageError(f"there is no node {action.node}, or not for you")
        plan = await acts.plan(request.scope["viewer"], action, node)
        return await run_in_threadpool(foreseen_plan, plan, user_view)

    async def show(request: Request, plan: ClusterPlan, moved: str = "") -> Response:
        viewer = request.scope["viewer"]
        why_not = await acts.why_not(viewer, plan)
        page = plan_page(plan, "" if why_not else acts.key(viewer, plan), why_not, acts.said(viewer), moved=moved)
        status = HTTPStatus.CONFLICT if moved else HTTPStatus.OK
        return await shown(request, lambda: with_outlook(page, plan.action, user_view), status)

    async def do(request: Request, plan: ClusterPlan, fields: Mapping[str, str]) -> Response:
        viewer = request.scope["viewer"]
        if plan.digest != fields.get("plan"):
            return await show(request, plan, _CHANGED)
        if why_not := acts.spend(viewer, plan, fields.get("key", "")):
            return await show(request, plan, why_not)
        if why_not := await acts.why_not(viewer, plan):
            return await refuse(request, plan.action.title, why_not, HTTPStatus.FORBIDDEN)
        await acts.act(viewer, plan)
        return RedirectResponse(f"/nodes/{quote(plan.action.node, safe='')}", HTTPStatus.SEE_OTHER)

    async def refuse(request: Request, title: str, said: str, status: HTTPStatus) -> Response:
        return await shown(request, lambda: refused_page(title, said), status)

    async def act(request: Request) -> Response:
        try:
            fields = await _fields(request)
            plan = await planned(request, fields)
            return await (show(request, plan) if request.method != "POST" else do(request, plan, fields))
        except UsageError as error:
            return await refuse(request, "Nothing is done", f"{error.message}.", HTTPStatus.BAD_REQUEST)
        except TrancheError as error:
            return await refuse(request, "Kubernetes refuses it", f"{error.message}.", HTTPStatus.FORBIDDEN)

    return [Route("/act", act, methods=["GET", "POST"])]


async def _fields(request: Request) -> Mapping[str, str]:
    if request.method != "POST":
        return dict(request.query_params)
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _LONGEST_FORM:
            raise UsageError("that is no form of ours")
    return {name: values[0] for name, values in parse_qs(content.decode("latin-1")).items()}
