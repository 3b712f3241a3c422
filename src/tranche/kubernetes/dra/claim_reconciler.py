"""Cleans up claims that the kubelet does not give back, and claims' files and shares that a crash has left.

The kubelet gives a claim back when its pods have ended. It cannot when it has lost its state, or when the claim was freed without
it. So the reconciler asks the API server about those claims that no pod of the node uses, and about no others.

Only evidence that no workload can change says who uses a claim on this node: what the API server and the kubelet say of pods, and
the control groups of processes. A process controls its own environment: a pod that runs without it still uses its share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tranche.core.allocation import Allocation, Phase
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.keeper import ClaimEvidence, ClaimKeeper, KeeperStatus, judge_claim
from tranche.hardware.process_stat import PROC
from tranche.kubernetes.api.objects import KubePod
from tranche.kubernetes.claims.claim import ClaimRef
from tranche.kubernetes.dra.given import given_devices, order_of
from tranche.kubernetes.dra.preparer import ClaimPreparer
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.node.share_edits import adopt_share, claim_of
from tranche.node.claims import ClaimRegister, ClaimRequest, as_given, may_be_lost, processes_of
from tranche.node.processes.pod_processes import claim_mark, claims_with_processes, running_pods
from tranche.node.state.session import boot_id

_log = logging.getLogger(__name__)


def used_by(keeper: ClaimKeeper, pods: Sequence[KubePod], running: Collection[str]) -> bool:
    """Whether the claim is used, or may be. `pods` are those known from the API server, `running` the uids of pods with a living
    process on this machine.

    If not all of a claim's pods are known, or none ever was, any running pod may use it, except those known not to.
    """
    mine = {pod.uid for pod in pods if _names(pod, keeper)} | set(keeper.pods)
    if not mine.isdisjoint(running) or any(pod.uid in mine and not pod.finished for pod in pods):
        return True
    not_mine = {pod.uid_on_node for pod in pods if not _names(pod, keeper)}
    return (keeper.others or not keeper.pods) and not not_mine.issuperset(running)


def _names(pod: KubePod, keeper: ClaimKeeper) -> bool:
    return pod.ref.namespace == keeper.namespace and keeper.name in pod.claims


_ASKED_IN_TURN = 8
"""How many of the claims in use are checked at each look: it is rare that somebody deletes a claim while its pod runs."""


class ClaimReconciler:
    """Looks after the claims of one node. `clock` is monotonic, in seconds."""

    def __init__(
        self, services: NodeContext, preparer: ClaimPreparer, *, clock: Callable[[], float], proc: Path = PROC
    ) -> None:
        self._services = services
        self._host = services.host
        self._preparer = preparer
        self._files = preparer.share_files
        self._clock = clock
        self._proc = proc
        self._fallen: dict[str, float] = {}
        self._asked: tuple[str, ...] = ()

    async def look(self, *, thorough: bool = False) -> None:
        """Do one round of the work.

        A `thorough` round asks the API server about all claims; any other round asks about only a few of those in use, in turn.
        """
        held = await self.note_pods()
        filed = await asyncio.to_thread(self._files.marks)
        for uid, mark in filed.items():
            if uid not in held and uid not in self._preparer.under_way:
                namespace, name = mark.ref if mark.variable == claim_mark(uid) else ("", "")
                await self._of_no_share(ClaimKeeper(namespace, name, uid))
        for uid, allocations in held.items():
            active = [each for each in allocations if each.phase is Phase.ACTIVE]
            if uid not in filed and active and uid not in self._preparer.under_way:
                await self._write_again(active[0])
        await self._free_the_fallen(held, len(held) if thorough else _ASKED_IN_TURN)

    async def note_pods(self) -> Mapping[str, tuple[Allocation, ...]]:
        """Record in the register which pods use claims by now; returns what claims have, by uid.

        Nobody asks for an already prepared claim when another pod comes to use it.
        """
        held = await asyncio.to_thread(ClaimRegister(self._host).held)
        found: dict[str, tuple[str, ...]] = {}
        for uid, (first, *_) in held.items():
            assert isinstance(first.keeper, ClaimKeeper)
            mine = (pod for pod in self._seen() if not pod.finished and _names(pod, first.keeper))
            named = tuple(pod.uid for pod in mine)
            if not set(first.keeper.pods).issuperset(named):
                found[uid] = named
        if found:
            await asyncio.to_thread(ClaimRegister(self._host).note_pods, found)
            held = await asyncio.to_thread(ClaimRegister(self._host).held)
        return held

    async def _of_no_share(self, keeper: ClaimKeeper) -> None:
        """A file without a share: the share was given back, or the register was lost while its pods run."""
        order = await self._order_of(keeper)
        if order is None:
            return
        if isinstance(order, ClaimRequest):
            unknown = order
            await self._preparer.repair(keeper.uid, lambda held: None if held else self._adopt(unknown))
            return
        listed = await self._listed()
        if listed is not None and keeper.uid not in listed | await self._with_pods([keeper]):
            await self._preparer.repair(keeper.uid, lambda held: None if held else self._files.remove(keeper.uid))

    def _adopt(self, order: ClaimRequest) -> None:
        _log.warning("adopted a claim that was missing from the register", extra={"claim": str(order.keeper)})
        adopt_share(self._host, order, self._host.observe())

    async def _write_again(self, allocation: Allocation) -> None:
        assert isinstance(allocation.keeper, ClaimKeeper)
        order = await self._order_of(allocation.keeper)
        if isinstance(order, ClaimRequest) and as_given(order.grants) == as_given(allocation.grants):
            keeper, grants = order.keeper, order.grants
            try:
                await self._preparer.repair(
                    keeper.uid, lambda held: self._preparer.write_file(keeper, grants) if held else None
                )
            except TrancheError as error:
                _log.warning(
                    "cannot write a claim's CDI file", extra={"claim": str(allocation.keeper), "error": str(error)}
                )

    async def _order_of(self, keeper: ClaimKeeper) -> ClaimRequest | bool | None:
        """What the API server says the claim has; False when it no longer has anything here, None when unknown."""
        ref = ClaimRef(keeper.namespace, keeper.name, keeper.uid)
        if not keeper.name:
            return False
        try:
            claim = await self._preparer.read(ref)
        except TrancheError as error:
            _log.info("cannot read a claim", extra={"claim": str(ref), "error": str(error)})
            return None
        if claim is None:
            return False
        try:
            given = given_devices(claim, ref, self._services.node_name, await self._preparer.devices())
            return order_of(replace(claim, ref=ref), given)
        except AllocationUnknown:
            return False
        except TrancheError as error:
            # The devices of a GPU that was lost when the agent began are unknown, but still the claim's.
            _log.info("cannot resolve a claim's devices", extra={"claim": str(ref), "error": str(error)})
            return None

    async def _free_the_fallen(self, held: Mapping[str, tuple[Allocation, ...]], most: int) -> None:
        """Free ended claims, and check for up to `most` of the claims in use whether they stand."""
        if not held:
            self._fallen = {}
            self._services.fallen.publish(frozenset())
            return
        # Ask before looking for processes, so that a pod whose containers start between the two is listed.
        listed = await self._listed()
        keepers = [each.keeper for each, *_ in held.values() if isinstance(each.keeper, ClaimKeeper)]
        living = {*(listed or ()), *await self._with_pods(keepers)}
        # Even if a pod exists and the kubelet remembers its claim: no container has started again without a new preparation.
        living -= {each.uid for each in keepers if _restarted_since(each)}
        for uid, processes in (await asyncio.to_thread(self._with_processes, held)).items():
            if processes:
                living.add(uid)
        told = self._services.fallen
        now, fallen, over = self._clock(), {}, set(told.value)
        in_turn = self._next_of(sorted(living & held.keys()), most)
        for uid, allocations in held.items():
            if uid in self._preparer.under_way or (uid in living and uid not in in_turn):
                continue
            keeper = allocations[0].keeper
            assert isinstance(keeper, ClaimKeeper)
            order = await self._order_of(keeper)
            stands = (
                None
                if order is None
                else (
                    isinstance(order, ClaimRequest)
                    and any(as_given(order.grants) == as_given(each.grants) for each in allocations)
                )
            )
            if stands is not None:
                over = over - {uid} if stands else over | {uid}
            if uid in living:
                continue
            if stands is False:
                fallen[uid] = self._fallen.get(uid, now)
            elif stands is None and uid in self._fallen:
                fallen[uid] = self._fallen[uid]
            evidence = ClaimEvidence(stands, now - fallen.get(uid, now), listed=None if listed is None else False)
            if judge_claim(evidence) is KeeperStatus.GONE:
                await self._preparer.forget(uid, "its claim has ended, but the kubelet did not release it")
                fallen.pop(uid, None)
        self._fallen = fallen
        told.publish(frozenset(over & held.keys()))

    def _next_of(self, uids: Sequence[str], most: int) -> frozenset[str]:
        """Up to `most` of these, those first whose turn was longest ago."""
        waiting = [each for each in uids if each not in self._asked]
        if most >= len(uids) or not waiting:
            self._asked, waiting = (), list(uids)
        self._asked = (*self._asked, *waiting[:most])
        return frozenset(waiting[:most])

    def _seen(self) -> tuple[KubePod, ...]:
        """The node's pods, perhaps late."""
        return self._services.node_pods.value if self._services.node_pods.synced else ()

    async def _with_pods(self, keepers: Collection[ClaimKeeper]) -> frozenset[str]:
        """The claims, by uid, that a pod of this node uses or may use."""
        pods, uids = self._seen(), [each.uid for each in keepers]
        running, marked = await asyncio.to_thread(
            lambda: (running_pods(self._proc), claims_with_processes(uids, self._proc))
        )
        return marked | {each.uid for each in keepers if used_by(each, pods, running)}

    async def _listed(self) -> frozenset[str] | None:
        """The claims, by uid, that the kubelet lists with pods; None when it does not answer."""
        try:
            return frozenset(map(claim_of, await self._services.pods.listed_by_claims()))
        except TrancheError as error:
            _log.info("cannot ask the kubelet", extra={"error": str(error)})
            return None

    def _with_processes(self, held: Mapping[str, tuple[Allocation, ...]]) -> Mapping[str, bool]:
        view = self._host.view()
        return {
            uid: any(processes_of(each.grants, view) or may_be_lost(each.grants, view) for each in mine)
            for uid, mine in held.items()
        }


def _restarted_since(keeper: ClaimKeeper) -> bool:
    """Whether the machine was restarted since the claim was prepared; a restart ends every container."""
    now = boot_id()
    return bool(now and keeper.boot) and keeper.boot != now
