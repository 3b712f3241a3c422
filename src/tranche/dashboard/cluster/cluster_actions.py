"""Carries out what viewers ask for on a cluster's page: each with their own rights, as the API server judges them.

It uses the viewer's own account through their token, or the page's account for viewers whom a proxy names. The API server judges
each request by the rights of its account. The page's account may do more than most viewers, so it does nothing before the API
server has said, just then, that the viewer may do exactly that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import quote

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, TrancheError, UsageError
from tranche.dashboard.acting.forms import FormKeyStore
from tranche.dashboard.cluster.cluster_action import (
    ClusterAction,
    ClusterPlan,
    holders_of,
    node_plan,
    release_plan,
)
from tranche.dashboard.cluster.kube_reviews import AccessReviewClient
from tranche.dashboard.cluster.kube_viewer import KubePermission, KubeUser
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.dashboard.cluster.source import FleetReader
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import KubeEventType, KubeNode, KubePod, PodRef

_NO_TOKEN = (
    "you came through a proxy, which shows no token of yours, and this page does nothing for those: reach it without the proxy, "
    "and enter with a token"
)
_BY_OWN_RIGHTS = "Kubernetes judges it by your own rights."
_BY_PAGES_ACCOUNT = (
    "You came through a proxy: the page asks Kubernetes each time whether you may, and then does it with an account of its own. "
    "Your name is written down with it."
)
_LONGEST_NAME = 900
"""Characters of a viewer's name in a header: the API server's audit log cuts a user agent at 1,024."""
_REASON = "DoneFromDashboard"

_log = logging.getLogger(__name__)


class ClusterActionHandler:
    """Acts on `server`. Events are written by `events`, with the page's account.

    With `for_proxied`, viewers named by a proxy act with the server's own credentials; else they cannot act.
    """

    def __init__(
        self,
        server: ApiServer,
        reviews: AccessReviewClient,
        fleets: FleetReader,
        keys: FormKeyStore,
        events: KubeClient,
        *,
        for_proxied: bool,
    ) -> None:
        self._server = server
        self._reviews = reviews
        self._fleets = fleets
        self._keys = keys
        self._events = events
        self._for_proxied = for_proxied

    def account(self, viewer: KubeUser) -> ActingClient:
        """The account for the viewer's actions; UsageError where there is none."""
        if not viewer.token and not self._for_proxied:
            raise UsageError(_NO_TOKEN)
        if not viewer.token and len(quote(viewer.user)) > _LONGEST_NAME:
            raise UsageError("your name is too long for an audit log, so nothing is done in it")
        return ActingClient(viewer, self._server, self._reviews)

    async def plan(self, viewer: KubeUser, action: ClusterAction, node: SeenNode) -> ClusterPlan:
        """What would be done now. `node` is as the viewer sees it. UsageError if it is impossible; errors of the API server."""
        account = self.account(viewer)
        if action.kind != "release":
            return node_plan(action, node)
        holders = holders_of(action, node, (await self._fleets.fleet()).claims)
        if why_not := await account.refuses([KubePermission("get", "pods", *each) for each in holders]):
            raise UsageError(why_not.removesuffix("."))
        async with _connected(account) as connection:
            pods = [await _pod(connection, *each) for each in holders]
        return release_plan(action, pods)

    def said(self, viewer: KubeUser) -> str:
        """Whose rights decide, in words for the viewer; UsageError if this viewer may do nothing here."""
        return self.account(viewer).said

    async def why_not(self, viewer: KubeUser, plan: ClusterPlan) -> str:
        """Which right the viewer lacks for it; "" if none. The API server judges again when it is done."""
        return await self.account(viewer).lacks(plan.rights)

    def key(self, viewer: KubeUser, plan: ClusterPlan) -> str:
        """The key of a form that shows the viewer that plan."""
        return self._keys.key(_session(viewer), plan.action.address, plan.digest)

    def spend(self, viewer: KubeUser, plan: ClusterPlan, key: str) -> str:
        """Use up the key. Returns why it is invalid, or ""."""
        return self._keys.spend(key, _session(viewer), plan.action.address, plan.digest)

    async def act(self, viewer: KubeUser, plan: ClusterPlan) -> None:
        """Do it in the viewer's name. Passes on the API server's refusal; what was done before it still gets its events."""
        account, title = self.account(viewer), plan.action.title
        if why_not := await account.refuses(plan.rights):
            raise KubernetesForbidden(why_not.removesuffix("."))
        _log.info("begun from the page", extra={"action": title, "viewer": viewer.user, "groups": viewer.groups})
        done = 0
        try:
            async with _connected(account) as connection:
                for method, path, body, content_type in plan.requests:
                    what = title[:1].lower() + title[1:]
                    answer = await connection.ask(what, method, path, body, content_type=content_type)
                    if not (method == "DELETE" and answer.status == 404):
                        answer.accepted()
                    done += 1
        finally:
            if done:
                await self._tell(account, plan, plan.pods[:done])
        _log.info("done from the page", extra={"action": title, "viewer": viewer.user})

    async def _tell(self, account: ActingClient, plan: ClusterPlan, pods: Sequence[KubePod]) -> None:
        message = f"{plan.action.title}: done by {account.done_by} from the dashboard"
        try:
            for pod in pods:
                await self._events.create_pod_event(pod, plan.action.node, KubeEventType.NORMAL, _REASON, message)
            if not plan.pods:
                await self._events.create_node_event(KubeNode(plan.action.node), KubeEventType.NORMAL, _REASON, message)
        except TrancheError as error:
            _log.warning("done, and not told of", extra={"action": plan.action.title, "error": error.message})


@asynccontextmanager
async def _connected(account: ActingClient) -> AsyncIterator[ApiConnection]:
    connection = account.connect()
    try:
        yield connection
    finally:
        await connection.close()


async def _pod(connection: ApiConnection, namespace: str, name: str) -> KubePod:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        raw = (await connection.ask(f"read pod {namespace}/{name}", "GET", path)).accepted()
    except KubernetesNotFound as error:
        raise UsageError(f"pod {namespace}/{name} has gone already") from error
    except KubernetesForbidden as error:
        raise UsageError(f"you may not read pod {namespace}/{name}, and so not delete it from here") from error
    return KubePod(PodRef(namespace, name), str((raw.get("metadata") or {}).get("uid") or ""))


def _session(viewer: KubeUser) -> str:
    # A viewer whose groups have changed counts as someone else: forms shown before are no longer valid.
    token = hashlib.sha256(viewer.token.encode()).hexdigest()
    return json.dumps([viewer.user, viewer.uid, sorted(viewer.groups), token])


@dataclass(frozen=True, slots=True)
class ActingClient:
    """The account for one viewer's actions.

    With a token it is the viewer's own: the API server judges each of its requests, so the rights known here only serve for
    words. Else it is the page's own, which remembers no viewer's rights, and takes anything but a plain yes as a no.
    """

    viewer: KubeUser
    server: ApiServer
    reviews: AccessReviewClient

    @property
    def said(self) -> str:
        """Whose rights decide, in words for the viewer."""
        return _BY_OWN_RIGHTS if self.viewer.token else _BY_PAGES_ACCOUNT

    @property
    def done_by(self) -> str:
        """Who acts with this account, in the words of an event."""
        return self.viewer.user if self.viewer.token else f"{self.viewer.user}, whom the proxy named,"

    async def lacks(self, rights: Sequence[KubePermission]) -> str:
        """Which of these rights the viewer lacks, in words for the viewer; "" only if the viewer is known to have all."""
        if self.viewer.token:
            for each in rights:
                if not await self.reviews.may(self.viewer, each):
                    return f"You may not {each}."
            return ""
        try:
            answers = await asyncio.gather(*(self.reviews.may_now(self.viewer, each) for each in rights))
        except TrancheError as error:
            return f"Nobody can say now whether you may do it ({error.reason}), so it is not done."
        lacking = (each for each, allowed in zip(rights, answers, strict=True) if not allowed)
        return next((f"You may not {each}." for each in lacking), "")

    async def refuses(self, rights: Sequence[KubePermission]) -> str:
        """Why requests that need these rights must not be sent now; "" where they may be."""
        return "" if self.viewer.token else await self.lacks(rights)

    def connect(self) -> ApiConnection:
        """A connection with that account. The caller closes it."""
        if token := self.viewer.token:
            return ApiConnection(replace(self.server, token=lambda: token))
        return ApiConnection(self.server, user_agent=f"tranche-dashboard (for {quote(self.viewer.user)})")
