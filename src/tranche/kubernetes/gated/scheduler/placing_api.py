"""What the rounds of the placer ask of a real API server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tranche.core.printable import shortened
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import timestamp
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.api.objects import KubeEventType
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, choices_from_lease, choices_to_lease
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.placer import ungating
from tranche.kubernetes.gated.scheduler.placing import ChoiceState

_JSON_PATCH = "application/json-patch+json"


class PlacingClient:
    """`PlacingApi`, and what the placer says to people. `now` gives the time in UTC."""

    def __init__(self, connection: ApiConnection, leases: LeaseClient, *, now: Callable[[], datetime]) -> None:
        self._connection = connection
        self._leases = leases
        self._now = now

    async def write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        """Write a node's choices; None when there is another version by now."""
        lease = choices_to_lease(chosen)
        made = self._leases.create if chosen.lease is None else self._leases.replace
        answer = await made(lease)
        return None if answer is None else choices_from_lease(answer)

    async def let_go(self, pod: ClusterPod, node: str, host: str, choice: ChosenShare) -> bool:
        """Write the choice on the pod and take its gate away."""
        path, patch = _path(pod.namespace, pod.name), ungating(pod.raw, node, host, choice)
        what = f"let pod {pod} go to node {node}"
        answer = await self._connection.ask(what, "PATCH", path, patch, content_type=_JSON_PATCH)
        # 422 is a test of the patch that failed: the pod is another by now, or waits no more.
        if answer.status in (404, 409, 422):
            return False
        answer.accepted()
        return True

    async def standing(self, choice: ChosenShare, host: str) -> ChoiceState:
        """What the choice is to its pod now."""
        what = f"read pod {choice.namespace}/{choice.name}"
        answer = await self._connection.ask(what, "GET", _path(choice.namespace, choice.name))
        if answer.status == 404:
            return ChoiceState.OVER
        pod = decode_cluster_pod(answer.accepted())
        if pod.uid != choice.uid or pod.finished:
            return ChoiceState.OVER
        return ChoiceState.NEEDED if pod.waits or pod.pinned == host else ChoiceState.OVER

    async def make_anew(self, pod: ClusterPod) -> bool:
        """Have a pod that never ran made anew by its Job; False when it may not go now."""
        meta = {"namespace": pod.namespace, "name": pod.name}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": meta,
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"{_path(pod.namespace, pod.name)}/eviction"
        answer = await self._connection.ask(f"have pod {pod} made anew", "POST", path, body)
        if answer.status in (404, 409, 429):
            return False
        answer.accepted()
        return True

    async def say(self, pod: ClusterPod, reason: str, message: str) -> None:
        """Record an event about a pod. `reason` is one CamelCase word."""
        moment = timestamp(self._now())
        name = f"{pod.name[:200]}.tranche-{pod.uid[:8]}-{reason.lower()}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": KubeEventType.NORMAL.value,
            "reason": reason,
            "message": shortened(message),
            "source": {"component": "tranche-controller"},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        what = f"record an event about pod {pod}"
        answer = await self._connection.ask(what, "POST", path, event)
        if answer.status == 409:
            newer = {"message": shortened(message), "lastTimestamp": moment}
            answer = await self._connection.ask(
                what, "PATCH", f"{path}/{name}", newer, content_type="application/merge-patch+json"
            )
        if answer.status not in (403, 404):  # a namespace that is going away takes no events
            answer.accepted()


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
