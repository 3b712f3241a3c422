"""Shares of pods that are over: given back when nothing of the pod runs any more, whoever forgot to say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from tranche.core.allocation import Allocation
from tranche.core.errors import TrancheError
from tranche.core.keeper import FALLEN_SECONDS, ClaimEvidence, KeeperStatus, PlacedPodKeeper, judge_claim
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.gated.agent.handover import GatedSharePreparer, ShareNode, order_for
from tranche.kubernetes.gated.agent.placed_files import PlacedFiles

FORGOTTEN_SECONDS = 5.0
"""So long after API server and kubelet have both forgotten a pod none of its containers is about to start any more."""

_log = logging.getLogger(__name__)


class ShareReconciler:
    """Looks after the shares of one node. `pods` asks the API server for the node's pods; `clock` is monotonic, in seconds.

    `living` says which of these pods, by uid, have processes on the machine; it blocks. A pod that has finished has none by the
    kubelet's word. Of one that is there no more nobody has said that its containers have ended: it has half a minute, and five
    seconds where the kubelet does not know it either.
    """

    def __init__(
        self,
        node: ShareNode,
        handover: GatedSharePreparer,
        files: PlacedFiles,
        pods: Callable[[], Awaitable[Collection[KubePod]]],
        *,
        living: Callable[[Collection[str]], Collection[str]],
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._handover = handover
        self._files = files
        self._pods = pods
        self._living = living
        self._clock = clock
        self._fallen: dict[str, float] = {}

    async def look(self) -> bool:
        """Give back what is over; whether something was."""
        held = await asyncio.to_thread(lambda: self._node.shares().held_by_pods())
        candidates = {uid: each for uid, each in held.items() if uid not in self._handover.under_way}
        refused = self._handover.refused.value if self._handover.refused.synced else {}
        if not candidates and not refused:
            self._fallen = {}
            return False
        # Before the processes are looked for: a pod that starts between the two is there by the API server's word.
        stand = await self._standing()
        known = await self._known_to_kubelet()
        living = set(await asyncio.to_thread(self._living, list(candidates)))
        if stand is not None:
            self._handover.forget_refusals(frozenset(refused.keys() - stand.keys()))
        now, fallen, given = self._clock(), {}, False
        for uid, allocations in candidates.items():
            word = None if stand is None else stand.get(uid)
            stands = None if stand is None else word is not None and not word.finished
            if stands is False:
                since = self._fallen.get(uid, now)
                fallen[uid] = since if word is None else min(since, now - FALLEN_SECONDS)
            elif stands is None and uid in self._fallen:
                fallen[uid] = self._fallen[uid]
            for_long = now - fallen.get(uid, now)
            if known is not None and for_long >= FORGOTTEN_SECONDS and not known & set(map(_ref, allocations)):
                for_long = FALLEN_SECONDS
            evidence = ClaimEvidence(stands, for_long, uid in living)
            if judge_claim(evidence) is KeeperStatus.GONE and uid not in self._handover.under_way:
                await self._give_back(uid, allocations)
                fallen.pop(uid, None)
                given = True
        self._fallen = fallen
        return given

    async def adopt(self) -> None:
        """Take up what pods have of which the register knows nothing, as after it was lost: before anybody else is given it."""
        held = await asyncio.to_thread(lambda: self._node.shares().held_by_pods())
        filed = [each for each in await asyncio.to_thread(self._files.keepers) if each.uid not in held]
        stand = await self._standing() if filed else {}
        chosen = await self._node.chosen() if filed else {}
        for keeper in filed:
            pod = (stand or {}).get(keeper.uid)
            if pod is not None and not pod.finished and keeper.uid in chosen:
                _log.warning("a pod of which the register knew nothing", extra={"pod": str(keeper)})
                await asyncio.to_thread(self._node.adopt, order_for(keeper, chosen[keeper.uid].grants))

    async def _standing(self) -> Mapping[str, KubePod] | None:
        try:
            return {pod.uid: pod for pod in await self._pods()}
        except TrancheError as error:
            _log.info("pods not read", extra={"error": str(error)})
            return None

    async def _known_to_kubelet(self) -> frozenset[PodRef] | None:
        """The pods that the kubelet lists with the resource; None where it does not say."""
        try:
            return frozenset(PodRef(each.namespace, each.name) for each in await self._node.listed())
        except TrancheError as error:
            _log.info("kubelet not asked", extra={"error": str(error)})
            return None

    async def _give_back(self, uid: str, allocations: tuple[Allocation, ...]) -> None:
        keeper = allocations[0].keeper
        assert isinstance(keeper, PlacedPodKeeper)
        await asyncio.to_thread(lambda: self._node.shares().give_back(uid, why="its pod is over"))
        self._handover.news()
        await asyncio.to_thread(self._files.remove_of, keeper)
        _log.info("given back", extra={"pod": str(keeper), "uid": uid})


def _ref(allocation: Allocation) -> PodRef:
    keeper = allocation.keeper
    assert isinstance(keeper, PlacedPodKeeper)
    return PodRef(keeper.namespace, keeper.name)
