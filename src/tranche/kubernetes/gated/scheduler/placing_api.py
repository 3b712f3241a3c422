"""The placer's requests to a real API server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import encode_event, encode_eviction
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.api.objects import KubeEventType, PodRef
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, choices_from_lease, choices_to_lease
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.placer import ungating
from tranche.kubernetes.gated.scheduler.placing import ChoiceState

_JSON_PATCH = "application/json-patch+json"


class PlacingClient:
    """`PlacingApi`, and the placer's events for people. `now` returns the time in UTC."""

    def __init__(self, connection: ApiConnection, leases: LeaseClient, *, now: Callable[[], datetime]) -> None:
        self._connection = connection
        self._leases = leases
        self._now = now

    async def write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        """Write a node's choices; None when another version exists."""
        lease = choices_to_lease(chosen)
        made = self._leases.create if chosen.lease is None else self._leases.replace
        answer = await made(lease)
        return None if answer is None else choices_from_lease(answer)

    async def let_go(self, pod: ClusterPod, node: str, host: str, choice: ChosenShare) -> bool:
        """Write the choice on the pod and remove its gate."""
        path, patch = _path(pod.namespace, pod.name), ungating(pod.raw, node, host, choice)
        what = f"release pod {pod} to node {node}"
        answer = await self._connection.ask(what, "PATCH", path, patch, content_type=_JSON_PATCH)
        # 422 means that a test in the patch failed: the pod was replaced or no longer waits.
        if answer.status in (404, 409, 422):
            return False
        answer.accepted()
        return True

    async def standing(self, choice: ChosenShare, host: str) -> ChoiceState:
        """Whether the pod still needs the choice."""
        what = f"read pod {choice.namespace}/{choice.name}"
        answer = await self._connection.ask(what, "GET", _path(choice.namespace, choice.name))
        if answer.status == 404:
            return ChoiceState.OVER
        pod = decode_cluster_pod(answer.accepted())
        if pod.uid != choice.uid or pod.finished:
            return ChoiceState.OVER
        return ChoiceState.NEEDED if pod.waits or pod.pinned == host else ChoiceState.OVER

    async def make_anew(self, pod: ClusterPod) -> bool:
        """Evict a pod that never ran, so that its Job recreates it; False when it may not go now."""
        path = f"{_path(pod.namespace, pod.name)}/eviction"
        body = encode_eviction(PodRef(pod.namespace, pod.name), pod.uid)
        answer = await self._connection.ask(f"recreate pod {pod}", "POST", path, body)
        if answer.status in (404, 409, 429):
            return False
        answer.accepted()
        return True

    async def say(self, pod: ClusterPod, reason: str, message: str) -> None:
        """Record an event about a pod. `reason` is one CamelCase word."""
        name, now = f"{pod.name[:200]}.tranche-{pod.uid[:8]}-{reason.lower()}", self._now()
        ref, source = PodRef(pod.namespace, pod.name), {"component": "tranche-controller"}
        event = encode_event(name, ref, pod.uid, source, KubeEventType.NORMAL, reason, message, now=now)
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        what = f"record an event for pod {pod}"
        answer = await self._connection.ask(what, "POST", path, event)
        if answer.status == 409:
            newer = {"message": event["message"], "lastTimestamp": event["lastTimestamp"]}
            answer = await self._connection.ask(
                what, "PATCH", f"{path}/{name}", newer, content_type="application/merge-patch+json"
            )
        if answer.status not in (403, 404):  # a namespace that is going away takes no events
            answer.accepted()


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
