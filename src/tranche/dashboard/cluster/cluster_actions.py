"""Does what viewers ask for from a cluster's page: each by his own rights, as the API server judges them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, TrancheError, UsageError
from tranche.dashboard.acting.form_keys import FormKeyStore
from tranche.dashboard.cluster.acting_accounts import ActingClient, ActingClientSource
from tranche.dashboard.cluster.cluster_action import (
    ClusterAction,
    ClusterPlan,
    PodIdentity,
    holders_of,
    node_plan,
    release_plan,
)
from tranche.dashboard.cluster.fleet_reader import FleetReader
from tranche.dashboard.cluster.kube_viewer import KubePermission, KubeUser
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.objects import KubeEventType, KubeNode, KubePod, PodRef

_REASON = "DoneFromDashboard"

_log = logging.getLogger(__name__)


class ClusterActionHandler:
    """`accounts` say with whose account something is done. Events are written over `own`, with the page's."""

    def __init__(
        self,
        accounts: ActingClientSource,
        own: ApiConnection,
        fleets: FleetReader,
        keys: FormKeyStore,
        *,
        now: Callable[[], datetime],
        random: Callable[[], float],
    ) -> None:
        self._accounts = accounts
        self._events = KubeClient(own, now=now, random=random)
        self._fleets = fleets
        self._keys = keys

    async def plan(self, viewer: KubeUser, action: ClusterAction, node: SeenNode) -> ClusterPlan:
        """What would be done now. `node` is as the viewer sees it. UsageError where nothing can be; errors of the API server."""
        account = self._accounts.of(viewer)
        if action.kind != "release":
            return node_plan(action, node)
        holders = holders_of(action, node, (await self._fleets.fleet()).claims)
        if why_not := await account.refuses([KubePermission("get", "pods", *each) for each in holders]):
            raise UsageError(why_not.removesuffix("."))
        async with _connected(account) as connection:
            pods = [await _pod(connection, *each) for each in holders]
        return release_plan(action, pods)

    def said(self, viewer: KubeUser) -> str:
        """Whose rights decide, in words for him; UsageError where nothing is done for him."""
        return self._accounts.of(viewer).said

    async def why_not(self, viewer: KubeUser, plan: ClusterPlan) -> str:
        """Which right the viewer lacks for it; "" when he has all. The API server judges again when it is done."""
        return await self._accounts.of(viewer).lacks(plan.rights)

    def key(self, viewer: KubeUser, plan: ClusterPlan) -> str:
        """The key of a form that shows him that plan."""
        return self._keys.key(_session(viewer), plan.action.address, plan.digest)

    def spend(self, viewer: KubeUser, plan: ClusterPlan, key: str) -> str:
        """Use the key up; why it does not count, "" when it does."""
        return self._keys.spend(key, _session(viewer), plan.action.address, plan.digest)

    async def act(self, viewer: KubeUser, plan: ClusterPlan) -> None:
        """Do it in the viewer's name. The API server's refusal, as it is; what was done before it is told of all the same."""
        account, title = self._accounts.of(viewer), plan.action.title
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

    async def _tell(self, account: ActingClient, plan: ClusterPlan, pods: Sequence[PodIdentity]) -> None:
        message = f"{plan.action.title}: done by {account.done_by} from the dashboard"
        try:
            for pod in pods:
                about = KubePod(PodRef(pod.namespace, pod.name), uid=pod.uid)
                await self._events.create_pod_event(about, plan.action.node, KubeEventType.NORMAL, _REASON, message)
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


async def _pod(connection: ApiConnection, namespace: str, name: str) -> PodIdentity:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        raw = (await connection.ask(f"read pod {namespace}/{name}", "GET", path)).accepted()
    except KubernetesNotFound as error:
        raise UsageError(f"pod {namespace}/{name} has gone already") from error
    except KubernetesForbidden as error:
        raise UsageError(f"you may not read pod {namespace}/{name}, and so not delete it from here") from error
    return PodIdentity(namespace, name, str((raw.get("metadata") or {}).get("uid") or ""))


def _session(viewer: KubeUser) -> str:
    # Whoever is in other groups now is somebody else: a form that was shown to him before does not count.
    token = hashlib.sha256(viewer.token.encode()).hexdigest()
    return json.dumps([viewer.user, viewer.uid, sorted(viewer.groups), token])
