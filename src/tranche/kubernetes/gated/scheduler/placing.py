"""One round of choosing shares for pods that wait, told as requests to an API server that may answer late, or not at all.

A choice is written twice. First into the lease of the node, in the place of the version that it was decided on: two controllers
cannot add to one version, so no share of a node is chosen twice. Then on the pod, in one patch with its node and without its
gate. Whatever ends between the two is taken up by the next round, of whichever controller: a pod that waits with a choice is let
go with that choice. A choice goes when the API server says of its pod that it is over, or that it went elsewhere; and when the
pod's node would refuse it for ever, and has given it nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tranche.core.errors import TrancheError
from tranche.core.keeper import ChosenFor
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod
from tranche.kubernetes.gated.scheduler.cluster_state import ClusterState, gpu_nodes, spread_of
from tranche.kubernetes.gated.scheduler.placer import PodPlacement, UnplacedPod, place

_log = logging.getLogger(__name__)


class ChoiceState(StrEnum):
    """What a choice is to its pod. NEEDED: the pod has it, or is about to. OVER: it never will have it again."""

    NEEDED = "needed"
    OVER = "over"


class PlacingApi(Protocol):
    """What a round asks of the API server. Errors are those of `KubeClient`; after one it is not known what was done."""

    async def write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        """Write a node's choices in the place of the version that they were read in; None when there is another by now."""
        ...

    async def let_go(self, pod: ClusterPod, node: str, host: str, choice: ChosenShare) -> bool:
        """Write the choice on a pod and take its gate away; False when the pod is another by now, or waits no more."""
        ...

    async def standing(self, choice: ChosenShare, host: str) -> ChoiceState:
        """What the choice of a node of that host name is to its pod, by the API server's word of now."""
        ...


@dataclass(frozen=True, slots=True)
class PlacingResult:
    """What came of one: the pods that were let go, by uid, and why others go on waiting.

    `written` are the choices of nodes that were written, `unwritten` the nodes whose choices could not be. `unfinished` says that
    something is to be tried again soon.
    """

    let_go: frozenset[str] = frozenset()
    waiting: tuple[UnplacedPod, ...] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)
    written: tuple[ChoiceLease, ...] = ()
    unwritten: frozenset[str] = frozenset()
    unfinished: bool = False


class PlacingRunner:
    """Makes rounds. It keeps nothing between them."""

    def __init__(self, api: PlacingApi) -> None:
        self._api = api
        self._let_go: set[str] = set()
        self._written: list[ChoiceLease] = []
        self._unwritten: set[str] = set()
        self._unfinished = False

    async def round(self, now: ClusterState, avoided: Mapping[str, frozenset[str]] | None = None) -> PlacingResult:
        """Do what is to be done now. `avoided` are nodes that are not to be chosen, by the uid of a pod."""
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
        """Forget the choices of pods that are over, once the API server has said so for each."""
        host, gone = now.host(node), []
        for choice in chosen.choices.values():
            pod = now.pods.get(choice.uid)
            if pod is not None and pod.never and not _has(now, node, pod):
                _log.warning("a choice taken back", extra={"pod": str(pod), "uid": pod.uid, "why": pod.never})
                gone.append(choice.uid)
                continue
            if _stands(pod, host):
                continue
            try:
                if await self._api.standing(choice, host) is ChoiceState.OVER:
                    gone.append(choice.uid)
            except TrancheError as error:
                self._note("a choice was not looked after", choice, error)
        if gone:
            await self._write(chosen.without(gone))

    async def _choose(self, now: ClusterState, avoided: Mapping[str, frozenset[str]]) -> tuple[UnplacedPod, ...]:
        pods = {
            pod.uid: pod
            for pod in now.pods.values()
            if pod.gated is not None and not pod.ending and now.choice_of(pod) is None
        }
        nodes, unknown = gpu_nodes(now, away={*(each.node for each in self._written), *self._unwritten})
        gated = [pod.gated for pod in pods.values() if pod.gated is not None]
        spread = spread_of(now) if any(each.spread for each in gated) else None
        found = place(gated, nodes, unknown=unknown, avoided=avoided, spread=spread)
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
            self._note("a pod was not let go", choice, error)

    async def _write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        try:
            written = await self._api.write(chosen)
        except TrancheError as error:
            _log.warning("choices not written", extra={"node": chosen.node, "error": str(error)})
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
    """Whether the pod has something of the node, or may have, as nobody tells of it."""
    said = now.gpus.get(node)
    if said is None or node in now.unreadable:
        return True
    return any(isinstance(each.keeper, ChosenFor) and each.keeper.uid == pod.uid for each in said.view.allocations)


def _refused_for_ever(now: ClusterState) -> Iterator[tuple[str, str]]:
    """Pods that were let go all the same, by uid, with what is to be done."""
    for pod in now.pods.values():
        if pod.never and pod.asks and not (pod.waits or pod.finished or pod.ending or _runs(now, pod)):
            yield pod.uid, f"{pod.never}: its node refuses it for ever, and nothing is kept for it; make the pod anew"


def _runs(now: ClusterState, pod: ClusterPod) -> bool:
    return bool(pod.node) and _has(now, pod.node, pod)


def _stands(pod: ClusterPod | None, host: str) -> bool:
    """Whether nothing speaks against a choice of a node for that pod, by what was heard last."""
    return pod is not None and not pod.finished and (pod.waits or pod.pinned == host)
