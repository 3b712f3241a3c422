"""Who uses a claim on this node, by words and traces that no workload can change: what the API server and the kubelet say of
pods, and the control groups of processes.

What is in a process's environment is its own: a pod that runs without it uses its share all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

from tranche.core.errors import TrancheError
from tranche.core.keeper import ClaimKeeper
from tranche.hardware.process_stat import PROC
from tranche.kubernetes.api.objects import KubePod
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.share_edits import claim_of
from tranche.node.processes.pod_processes import claims_with_processes, running_pods

_log = logging.getLogger(__name__)


class ClaimUserReader:
    """`pods` are the node's, perhaps late. `listed` asks the kubelet which CDI devices pods have by claims."""

    def __init__(
        self,
        pods: LatestValue[tuple[KubePod, ...]],
        listed: Callable[[], Awaitable[Collection[str]]],
        *,
        proc: Path = PROC,
    ) -> None:
        self._pods = pods
        self._listed = listed
        self._proc = proc

    def named_by(self, keeper: ClaimKeeper) -> tuple[str, ...]:
        """The uids of pods of this node that name the claim, by the API server's word."""
        return tuple(pod.uid for pod in self._seen() if not pod.finished and _names(pod, keeper))

    async def with_pods(self, keepers: Collection[ClaimKeeper]) -> frozenset[str]:
        """Those of the claims, by uid, that a pod of this node uses or may use."""
        pods = self._seen()
        running, marked = await asyncio.to_thread(self._processes, [each.uid for each in keepers])
        return marked | {each.uid for each in keepers if used_by(each, pods, running)}

    async def listed(self) -> frozenset[str] | None:
        """The claims, by uid, that the kubelet lists with pods; None when it does not answer."""
        try:
            return frozenset(map(claim_of, await self._listed()))
        except TrancheError as error:
            _log.info("kubelet not asked", extra={"error": str(error)})
            return None

    def _seen(self) -> tuple[KubePod, ...]:
        return self._pods.value if self._pods.synced else ()

    def _processes(self, uids: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        return running_pods(self._proc), claims_with_processes(uids, self._proc)


def used_by(keeper: ClaimKeeper, pods: Sequence[KubePod], running: Collection[str]) -> bool:
    """Whether the claim is used, or may be. `pods` are those of which the API server tells, `running` the uids of those of which
    a process lives on this machine.

    A claim of which no pod was ever known, or not every pod is, may be any running pod's of which nobody knows that it is not.
    """
    mine = {pod.uid for pod in pods if _names(pod, keeper)} | set(keeper.pods)
    if not mine.isdisjoint(running) or any(pod.uid in mine and not pod.finished for pod in pods):
        return True
    not_mine = {pod.uid_on_node for pod in pods if not _names(pod, keeper)}
    return (keeper.others or not keeper.pods) and not not_mine.issuperset(running)


def _names(pod: KubePod, keeper: ClaimKeeper) -> bool:
    return pod.ref.namespace == keeper.namespace and keeper.name in pod.claims
