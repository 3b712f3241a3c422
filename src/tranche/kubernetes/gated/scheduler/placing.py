"""Chooses shares for waiting pods in rounds, as requests to an API server that may answer late or not at all. One replica of the
controller leads, with a round after each change.

A choice is written twice. The first write goes into the node's lease and replaces the version that the choice was decided on.
Two controllers cannot both extend one version, so no share of a node is chosen twice. The second write patches the pod: it sets
the node and removes the gate. If a round stops between the two, the next round of any controller continues: it releases a waiting
pod with its existing choice. A choice is dropped when the API server says that its pod is over or went elsewhere. It is also
dropped when the pod's node would refuse it forever and has given it nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tranche.core.errors import TrancheError
from tranche.core.keeper import ChosenFor
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import encode_event
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.api.objects import EvictionStatus, KubeEventType, PodRef
from tranche.kubernetes.component import Component
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, choices_from_lease, choices_to_lease
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.cluster_watch import ClusterWatch
from tranche.kubernetes.gated.scheduler.placer import (
    ClusterState,
    PodPlacement,
    UnplacedPod,
    gpu_nodes,
    place,
    spread_of,
    ungating,
    waiting_text,
)
from tranche.kubernetes.latest_value import within
from tranche.kubernetes.rollout.leadership import LeaderLease

_JSON_PATCH = "application/json-patch+json"

_log = logging.getLogger(__name__)


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
        return answer.unless(404, 409, 422) is not None

    async def stands(self, choice: ChosenShare, host: str) -> bool:
        """Whether the pod still needs the choice on the node with that host name, as the API server says now."""
        what = f"read pod {choice.namespace}/{choice.name}"
        raw = (await self._connection.ask(what, "GET", _path(choice.namespace, choice.name))).unless(404)
        pod = None if raw is None else decode_cluster_pod(raw)
        return pod is not None and pod.uid == choice.uid and _stands(pod, host)

    async def make_anew(self, pod: ClusterPod) -> bool:
        """Evict a pod that never ran, so that its Job recreates it; False when it may not go now."""
        answer = await KubeClient(self._connection).evict_pod(PodRef(pod.namespace, pod.name), pod.uid)
        return answer.outcome is EvictionStatus.ACCEPTED

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
        answer.unless(403, 404)  # a namespace that is going away takes no events


@dataclass(slots=True)
class PlacingResult:
    """A round's result: the released pods by uid, and why others keep waiting.

    `written` has the nodes' choices that were written, `unwritten` the nodes where the write failed. `unfinished` says that
    something must be retried soon.
    """

    let_go: set[str] = field(default_factory=set)
    waiting: tuple[UnplacedPod, ...] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)
    written: list[ChoiceLease] = field(default_factory=list)
    unwritten: set[str] = field(default_factory=set)
    unfinished: bool = False


class PlacingRunner:
    """Runs rounds. It keeps no state between them."""

    def __init__(self, api: PlacingClient) -> None:
        self._api = api
        self._done = PlacingResult()

    async def round(self, now: ClusterState, avoided: Mapping[str, frozenset[str]] | None = None) -> PlacingResult:
        """Run one round. `avoided` has the nodes not to choose, by pod uid."""
        done = self._done = PlacingResult()
        for node, chosen in sorted(now.choices.items()):
            await self._clear(now, node, chosen)
        for pod in now.pods.values():
            if pod.waits and not pod.never and not pod.ending and (found := now.choice_of(pod)) is not None:
                await self._finish(now, pod, *found)
        done.waiting = await self._choose(now, avoided or {})
        done.wrong = {pod.uid: pod.wrong for pod in now.pods.values() if pod.wrong} | dict(_refused_for_ever(now))
        done.unfinished |= bool(done.unwritten)
        return done

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
                if not await self._api.stands(choice, host):
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
        nodes, unknown = gpu_nodes(now, away={*(each.node for each in self._done.written), *self._done.unwritten})
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
                self._done.let_go.add(pod.uid)
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
            self._done.unwritten.add(chosen.node)
        else:
            self._done.written.append(written)
        return written

    def _note(self, what: str, choice: ChosenShare, error: TrancheError) -> None:
        self._done.unfinished = True
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


_TRY_SECONDS = 3.0
_GATHER_SECONDS = 0.1
"""Pods arrive in bursts: one round serves all that arrive within this time."""
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 10.0
_SAY_SECONDS = 30.0
_MOST_SAID = 20

UNBOUND_SECONDS = 30.0
"""How long the scheduler may take to bind a released pod."""

REFUSED_SECONDS = 15.0
"""How long a node may refuse a choice: most refusals pass, for example when the previous pod has just ended."""

AVOIDED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """Released pods that do not start: when their job should recreate them, and which nodes to avoid then. Pure.

    The scheduler knows rules that the placer does not (affinity to other pods), and a node may have changed since its last
    report. Only pods that never ran are recreated, and only those of `tranche submit` jobs, which do not count them as failed.

    `since` has the pods in trouble by uid: why, and since when. `avoided_until` says until when a job avoids a node, by job uid
    and node.
    """

    since: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    avoided_until: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def look(self, now: ClusterState, moment: float) -> RetryHistory:
        """The history as of `moment`, in seconds."""
        since: dict[str, tuple[str, float]] = {}
        nodes: dict[str, tuple[str, str]] = {}
        for pod in now.pods.values():
            found = now.choice_of(pod) if pod.job and not (pod.waits or pod.finished or pod.ending) else None
            if found is None:
                continue
            node, _ = found
            refusals = now.gpus[node].refused if node in now.gpus else {}
            why = "refused" if pod.uid in refusals else "unbound" if not pod.node else ""
            if why:
                before = self.since.get(pod.uid, (why, moment))
                since[pod.uid] = before if before[0] == why else (why, moment)
                nodes[pod.uid] = (pod.job, node)
        kept = {key: until for key, until in self.avoided_until.items() if until > moment}
        return RetryHistory(since, nodes, kept)

    def due(self, moment: float) -> Mapping[str, str]:
        """The pods to recreate, by uid, and why."""
        longest = {"refused": REFUSED_SECONDS, "unbound": UNBOUND_SECONDS}
        return {uid: why for uid, (why, began) in self.since.items() if moment - began >= longest[why]}

    def made_anew(self, uid: str, moment: float) -> RetryHistory:
        """The history after recreating the pod: its job avoids its node for a while."""
        rest = {each: known for each, known in self.since.items() if each != uid}
        return replace(
            self, since=rest, avoided_until={**self.avoided_until, self.nodes[uid]: moment + AVOIDED_SECONDS}
        )

    def avoided(self, now: ClusterState, moment: float) -> Mapping[str, frozenset[str]]:
        """The nodes to avoid, by pod uid."""
        by_job: dict[str, set[str]] = {}
        for (job, node), until in self.avoided_until.items():
            if until > moment:
                by_job.setdefault(job, set()).add(node)
        return {pod.uid: frozenset(by_job[pod.job]) for pod in now.pods.values() if pod.job in by_job}


class PlacingLeader(Component):
    """A component, always ready: another replica may lead, and the webhook still answers. `clock` is monotonic, in seconds;
    `random` returns numbers from 0 to 1.
    """

    name = "placer"

    def __init__(
        self,
        api: PlacingClient,
        watch: ClusterWatch,
        leadership: LeaderLease,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._api = api
        self._watch = watch
        self._leadership = leadership
        self._placing = PlacingRunner(api)
        self._clock = clock
        self._random = random
        self._tries = RetryHistory()
        self._said: dict[str, tuple[str, float]] = {}

    async def run(self) -> None:
        """Compete for the lead, and lead, until cancelled."""
        while True:
            try:
                if await self._leadership.try_to_lead():
                    await self._lead()
            except TrancheError as error:
                _log.info("cannot lead the choice of shares", extra={"reason": error.reason, "error": str(error)})
            await asyncio.sleep(_TRY_SECONDS * (0.5 + self._random()))

    async def _lead(self) -> None:
        _log.info("choosing shares")
        await self._leadership.lead(self._watch.run(), self._choose(), sleep=asyncio.sleep)

    async def _choose(self) -> None:
        """Choose until another replica may lead. Two leaders at once are safe, but some of their writes fail."""
        while True:
            await self._watch.changed.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._watch.changed.clear()
            if not self._watch.synced:
                continue
            if not self._leadership.sure:
                return
            pause = _AGAIN_SECONDS if (await self._look()).unfinished else _LOOK_SECONDS
            await within(pause, self._watch.changed.wait())
            self._watch.changed.set()

    async def _look(self) -> PlacingResult:
        now = self._watch.now()
        self._tries = self._tries.look(now, self._clock())
        done = await self._placing.round(now, self._tries.avoided(now, self._clock()))
        for each in done.written:
            self._watch.wrote(each)
        self._watch.forget(done.unwritten)
        await self._make_anew(now)
        await self._say(now, done)
        return done

    async def _make_anew(self, now: ClusterState) -> None:
        """Recreate pods of our jobs that cannot start on their chosen node, so that they try another."""
        for uid, why in self._tries.due(self._clock()).items():
            pod = now.pods.get(uid)
            if pod is None:
                continue
            try:
                if await self._api.make_anew(pod):
                    self._tries = self._tries.made_anew(uid, self._clock())
                    _log.warning("recreated a pod", extra={"pod": str(pod), "why": why})
            except TrancheError as error:
                _log.warning("cannot recreate a pod", extra={"pod": str(pod), "error": str(error)})

    async def _say(self, now: ClusterState, done: PlacingResult) -> None:
        words = {each.pod.uid: waiting_text(each) for each in done.waiting} | dict(done.wrong)
        self._said = {uid: said for uid, said in self._said.items() if uid in words}
        moment, count = self._clock(), 0
        for uid, text in words.items():
            before, when = self._said.get(uid, ("", float("-inf")))
            if text == before or moment - when < _SAY_SECONDS or count >= _MOST_SAID or uid not in now.pods:
                continue
            count += 1
            self._said[uid] = (text, moment)
            try:
                await self._api.say(now.pods[uid], "WaitsForShare", text)
            except TrancheError as error:
                _log.info("cannot record an event", extra={"pod": str(now.pods[uid]), "error": str(error)})
