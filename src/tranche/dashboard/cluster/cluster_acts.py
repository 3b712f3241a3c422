"""Does what viewers ask for from a cluster's page: with his own token, so that the API server judges each of them itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, TrancheError, UsageError
from tranche.dashboard.acting.form_keys import FormKeys
from tranche.dashboard.cluster.cluster_deed import (
    ClusterDeed,
    ClusterPlan,
    PodToDelete,
    holders_of,
    node_plan,
    release_plan,
)
from tranche.dashboard.cluster.fleet_reader import FleetReader
from tranche.dashboard.cluster.kube_reviews import KubeReviews
from tranche.dashboard.cluster.kube_viewer import KubeViewer
from tranche.dashboard.cluster.snapshot import SeenNode
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef, Severity

_NO_TOKEN = "you came through a proxy, which shows no token of yours: enter with a token to act"
_REASON = "DoneFromDashboard"

_log = logging.getLogger(__name__)


class ClusterActs:
    """`server` is what is acted on; its own credentials are never used for that. Events are written with those of `own`."""

    def __init__(
        self,
        server: ApiServer,
        own: ApiConnection,
        reviews: KubeReviews,
        fleets: FleetReader,
        keys: FormKeys,
        *,
        now: Callable[[], datetime],
        random: Callable[[], float],
    ) -> None:
        self._server = server
        self._events = KubeClient(own, now=now, random=random)
        self._reviews = reviews
        self._fleets = fleets
        self._keys = keys

    async def plan(self, viewer: KubeViewer, deed: ClusterDeed, node: SeenNode) -> ClusterPlan:
        """What would be done now. `node` is as the viewer sees it. UsageError where nothing can be; errors of the API server."""
        if not viewer.token:
            raise UsageError(_NO_TOKEN)
        if deed.kind != "release":
            return node_plan(deed, node)
        claims = (await self._fleets.fleet()).claims
        async with self._as(viewer) as connection:
            pods = [await _pod(connection, *each) for each in holders_of(deed, node, claims)]
        return release_plan(deed, pods)

    async def why_not(self, viewer: KubeViewer, plan: ClusterPlan) -> str:
        """Which right the viewer lacks for it; "" when he has all. The API server judges again when it is done."""
        for each in plan.rights:
            if not await self._reviews.may(viewer, each):
                return f"You may not {each}."
        return ""

    def key(self, viewer: KubeViewer, plan: ClusterPlan) -> str:
        """The key of a form that shows him that plan."""
        return self._keys.key(_session(viewer), plan.deed.address, plan.digest)

    def spend(self, viewer: KubeViewer, plan: ClusterPlan, key: str) -> str:
        """Use the key up; why it does not count, "" when it does."""
        return self._keys.spend(key, _session(viewer), plan.deed.address, plan.digest)

    async def act(self, viewer: KubeViewer, plan: ClusterPlan) -> None:
        """Do it in the viewer's name. The API server's refusal, as it is."""
        async with self._as(viewer) as connection:
            for method, path, body, content_type in plan.requests:
                answer = await connection.ask(
                    plan.deed.title[:1].lower() + plan.deed.title[1:], method, path, body, content_type=content_type
                )
                if not (method == "DELETE" and answer.status == 404):
                    answer.accepted()
        try:
            await self._tell(viewer, plan)
        except TrancheError as error:
            _log.warning("done, and not told of", extra={"deed": plan.deed.title, "error": error.message})
        _log.info("done from the page", extra={"deed": plan.deed.title, "viewer": viewer.user})

    async def _tell(self, viewer: KubeViewer, plan: ClusterPlan) -> None:
        message = f"{plan.deed.title}: done by {viewer.user} from the dashboard"
        for pod in plan.pods:
            about = KubePod(PodRef(pod.namespace, pod.name), uid=pod.uid)
            await self._events.create_pod_event(about, plan.deed.node, Severity.NORMAL, _REASON, message)
        if not plan.pods:
            await self._events.create_node_event(KubeNode(plan.deed.node), Severity.NORMAL, _REASON, message)

    @asynccontextmanager
    async def _as(self, viewer: KubeViewer) -> AsyncIterator[ApiConnection]:
        token = viewer.token
        connection = ApiConnection(replace(self._server, token=lambda: token))
        try:
            yield connection
        finally:
            await connection.close()


async def _pod(connection: ApiConnection, namespace: str, name: str) -> PodToDelete:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        raw = (await connection.ask(f"read pod {namespace}/{name}", "GET", path)).accepted()
    except KubernetesNotFound as error:
        raise UsageError(f"pod {namespace}/{name} has gone already") from error
    except KubernetesForbidden as error:
        raise UsageError(f"you may not read pod {namespace}/{name}, and so not delete it from here") from error
    return PodToDelete(namespace, name, str((raw.get("metadata") or {}).get("uid") or ""))


def _session(viewer: KubeViewer) -> str:
    return f"{viewer.user} {hashlib.sha256(viewer.token.encode()).hexdigest()}"
