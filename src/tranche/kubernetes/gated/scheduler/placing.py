"""One round of choosing shares for waiting pods, as requests to an API server that may answer late or not at all.

A choice is written twice. The first write goes into the node's lease and replaces the version that the choice was decided on.
Two controllers cannot both extend one version, so no share of a node is chosen twice. The second write patches the pod: it sets
the node and removes the gate. If a round stops between the two, the next round of any controller continues: it releases a waiting
pod with its existing choice. A choice is dropped when the API server says that its pod is over or went elsewhere. It is also
dropped when the pod's node would refuse it forever and has given it nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tranche.core.errors import TrancheError
from tranche.core.keeper import ChosenFor
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import encode_event, encode_eviction
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.api.objects import KubeEventType, PodRef
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, choices_from_lease, choices_to_lease
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.cluster_state import ClusterState, gpu_nodes, spread_of
from tranche.kubernetes.gated.scheduler.placer import PodPlacement, UnplacedPod, place, ungating

_JSON_PATCH = "application/json-patch+json"

_log = logging.getLogger(__name__)


class ChoiceState(StrEnum):
    """NEEDED: the pod has the choice or is about to. OVER: it will never have it again."""

    NEEDED = "needed"
    OVER = "over"


class PlacingClient:
    """The placer's requests to the API server. They raise `KubeClient`'s errors; after one, the outcome is unknown."""

    def __init__(self, connection: ApiConnection, leases: LeaseClient) -> None:
        self._connection = connection
        self._leases = leases

    async def write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        """Replace the version of a node's choices that was read; None when it is no longer the current one."""
        lease = choices_to_lease(chosen)
        made = self._leases.create if chosen.lease is None else self._leases.replace
        answer = await made(lease)
        return None if answer is None else choices_from_lease(answer)

    async def let_go(self, pod: ClusterPod, node: str, host: str, choice: ChosenShare) -> bool:
        """Write the choice on a pod and remove its gate; False when the pod was replaced or no longer waits."""
        path, patch = _path(pod.namespace, pod.name), ungating(pod.raw, node, host, choice)
        what = f"release pod {pod} to node {node}"
        answer = await self._connection.ask(what, "PATCH", path, patch, content_type=_JSON_PATCH)
        # 422 means that a test in the patch failed: the pod was replaced or no longer waits.
        if answer.status in (404, 409, 422):
            return False
        answer.accepted()
        return True

    async def standing(self, choice: ChosenShare, host: str) -> ChoiceState:
        """Whether the pod still needs the choice on the node with that host name, as the API server says now."""
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
        name, now = f"{pod.name[:200]}.tranche-{pod.uid[:8]}-{reason.lower()}", self._connection.now()
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


@dataclass(frozen=True, slots=True)
class PlacingResult:
    """A round's result: the released pods by uid, and why others keep waiting.

    `written` has the nodes' choices that were written, `unwritten` the nodes where the write failed. `unfinished` says that
    something must be retried soon.
    """

    let_go: frozenset[str] = frozenset()
    waiting: tuple[UnplacedPod, ...] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)
    written: tuple[ChoiceLease, ...] = ()
    unwritten: frozenset[str] = frozenset()
    unfinished: bool = False


class PlacingRunner:
    """Runs rounds. It keeps no state between them."""

    def __init__(self, api: PlacingClient) -> None:
        self._api = api
        self._let_go: set[str] = set()
        self._written: list[ChoiceLease] = []
        self._unwritten: set[str] = set()
        self._unfinished = False

    async def round(self, now: ClusterState, avoided: Mapping[str, frozenset[str]] | None = None) -> PlacingResult:
        """Run one round. `avoided` has the nodes not to choose, by pod uid."""
        self._let_go, self._written, self._unwritten, self._unfinished = set(), [], set(), False
        for node, chosen in sorted(now.choices.items()):
            await self._clear(now, node, chosen)
        for pod in now.pods.values():
            if pod.waits and not pod.never and not pod.ending and (found := now.choice_of(pod)) is not None:
                await self._finish(now, pod, *found)
        waiting = await self._choose(now, avoided or {})
        wrong = {pod.uid: pod.wrong for pod in now.pods.values() if pod.wrong} | dict(_refused_for_ever(now))
        let_go, unwritten = frozenset(self._let_go), frozenset(self._unwritten)
        return PlacingResult(
            let_go, waiting, wrong, tuple(self._written), unwritten, self._unfinished or bool(unwritten)
        )

    async def _clear(self, now: ClusterState, node: str, chosen: ChoiceLease) -> None:
        """Drop the choices of finished pods, once the API server has confirmed each, and those that a node would never accept."""
        host, gone = now.host(node), []
        for choice in chosen.choices.values():
            pod = now.pods.get(choice.uid)
            if pod is not None and pod.never and not _has(now, node, pod):
                _log.warning("withdrew a choice", extra={"pod": str(pod), "uid": pod.uid, "why": pod.never})
                gone.append(choice.uid)
                continue
            if _stands(pod, host):
                continue
            try:
                if await self._api.standing(choice, host) is ChoiceState.OVER:
                    gone.append(choice.uid)
            except TrancheError as error:
                self._note("cannot check a choice", choice, error)
        if gone:
            await self._write(chosen.without(gone))

    async def _choose(self, now: ClusterState, avoided: Mapping[str, frozenset[str]]) -> tuple[UnplacedPod, ...]:
        pods = {
            pod.uid: pod
            for pod in now.pods.values()
            if pod.request is not None and not pod.ending and now.choice_of(pod) is None
        }
        nodes, unknown = gpu_nodes(now, away={*(each.node for each in self._written), *self._unwritten})
        spread = spread_of(now) if any(each.spread for each in pods.values()) else None
        found = place(pods.values(), nodes, unknown=unknown, avoided=avoided, spread=spread)
        by_node: dict[str, list[PodPlacement]] = {}
        for each in found:
            if isinstance(each, PodPlacement):
                by_node.setdefault(each.node, []).append(each)
        for node, placements in by_node.items():
            await self._reserve(now, node, placements, pods)
        return tuple(each for each in found if isinstance(each, UnplacedPod))

    async def _reserve(
        self, now: ClusterState, node: str, placements: Sequence[PodPlacement], pods: Mapping[str, ClusterPod]
    ) -> None:
        seen = now.gpus[node].generation
        choices = [
            ChosenShare(each.pod.namespace, each.pod.name, each.pod.uid, each.granted.grants, seen)
            for each in placements
        ]
        before = now.choices.get(node) or ChoiceLease(node, owner=(node, now.nodes[node].uid))
        if await self._write(before.with_choices(choices)) is None:
            return
        for choice in choices:
            await self._finish(now, pods[choice.uid], node, choice)

    async def _finish(self, now: ClusterState, pod: ClusterPod, node: str, choice: ChosenShare) -> None:
        try:
            if await self._api.let_go(pod, node, now.host(node), choice):
                self._let_go.add(pod.uid)
                _log.info("share chosen", extra={"pod": str(pod), "uid": pod.uid, "node": node})
        except TrancheError as error:
            self._note("cannot remove a pod's scheduling gate", choice, error)

    async def _write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        try:
            written = await self._api.write(chosen)
        except TrancheError as error:
            _log.warning("cannot write choices", extra={"node": chosen.node, "error": str(error)})
            written = None
        if written is None:
            self._unwritten.add(chosen.node)
        else:
            self._written.append(written)
        return written

    def _note(self, what: str, choice: ChosenShare, error: TrancheError) -> None:
        self._unfinished = True
        _log.warning(what, extra={"pod": f"{choice.namespace}/{choice.name}", "error": str(error)})


def _has(now: ClusterState, node: str, pod: ClusterPod) -> bool:
    """Whether the pod has something on the node, or may have because the node does not report."""
    said = now.gpus.get(node)
    if said is None or node in now.unreadable:
        return True
    return any(isinstance(each.keeper, ChosenFor) and each.keeper.uid == pod.uid for each in said.view.allocations)


def _refused_for_ever(now: ClusterState) -> Iterator[tuple[str, str]]:
    """Pods past the gate that their node will always refuse, by uid, with what to do."""
    for pod in now.pods.values():
        if pod.never and pod.asks and not (pod.waits or pod.finished or pod.ending or _runs(now, pod)):
            why = f"{pod.never}: its node will always refuse it, and the controller reserves no share for it"
            yield pod.uid, f"{why}; create the pod again"


def _runs(now: ClusterState, pod: ClusterPod) -> bool:
    return bool(pod.node) and _has(now, pod.node, pod)


def _stands(pod: ClusterPod | None, host: str) -> bool:
    """Whether the choice still stands for that pod, by the last known state."""
    return pod is not None and not pod.finished and (pod.waits or pod.pinned == host)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
