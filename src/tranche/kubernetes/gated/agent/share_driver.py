"""The agent's part that hands shares to pods in clusters without claims, through a device plugin resource.

It gives the shares of finished pods back once nothing of the pod runs, even if no one reported the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tranche.core.allocation import Allocation
from tranche.core.errors import TrancheError
from tranche.core.keeper import FALLEN_SECONDS, ClaimEvidence, KeeperStatus, PlacedPodKeeper, PodKeeper, judge_claim
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.claims.vocabulary import SHARE_RESOURCE
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.device_plugin.config_source import ConfigSource
from tranche.kubernetes.device_plugin.device_list import ListedDevice
from tranche.kubernetes.device_plugin.endpoints import ResourceServerManager
from tranche.kubernetes.gated.agent.handover import GatedSharePreparer, cdi_name, order_for
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.node.share_edits import adopt_share
from tranche.node.claims import ClaimRegister, ClaimRequest
from tranche.node.processes.pod_processes import claim_mark, pods_with_processes

FORGOTTEN_SECONDS = 5.0
"""Once API server and kubelet have both forgotten a pod for this long, none of its containers is about to start."""

_log = logging.getLogger(__name__)


class ShareReconciler:
    """Looks after the shares of one node. `clock` is monotonic, in seconds.

    `living` returns which of these pods, by uid, have processes on the machine; it blocks. The kubelet vouches that a finished
    pod has none. For a pod that no longer exists, no one has confirmed that its containers ended. It gets half a minute, or five
    seconds if the kubelet does not know it either.
    """

    def __init__(
        self,
        services: NodeContext,
        handover: GatedSharePreparer,
        *,
        living: Callable[[Collection[str]], Collection[str]] = pods_with_processes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._handover = handover
        self._files = handover.share_files
        self._living = living
        self._clock = clock
        self._fallen: dict[str, float] = {}

    async def look(self) -> bool:
        """Give back the shares of pods that are over; returns whether there were any."""
        held = await asyncio.to_thread(ClaimRegister(self._services.host).held_by_pods)
        candidates = {uid: each for uid, each in held.items() if uid not in self._handover.under_way}
        refused = self._handover.refused.value if self._handover.refused.synced else {}
        if not candidates and not refused:
            self._fallen = {}
            return False
        # Ask before looking for processes: the API server then knows any pod that starts in between.
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
        """Record shares that pods have but a lost register does not know, before anyone else is given them."""
        held = await asyncio.to_thread(ClaimRegister(self._services.host).held_by_pods)
        marks = (await asyncio.to_thread(self._files.marks)).values()
        filed = [PlacedPodKeeper(*each.ref, each.uid) for each in marks if each.ref[1] and each.uid not in held]
        stand = await self._standing() if filed else {}
        chosen = await self._handover.chosen() if filed else {}
        for keeper in filed:
            pod = (stand or {}).get(keeper.uid)
            if pod is not None and not pod.finished and keeper.uid in chosen:
                _log.warning("adopted a pod that the register did not have", extra={"pod": str(keeper)})
                await asyncio.to_thread(self._adopt, order_for(keeper, chosen[keeper.uid].grants))

    async def _standing(self) -> Mapping[str, KubePod] | None:
        try:
            pods = await self._services.api.list_pods_on_node(self._services.node_name)
            return {pod.uid: pod for pod in pods}
        except TrancheError as error:
            _log.info("cannot read pods", extra={"error": str(error)})
            return None

    async def _known_to_kubelet(self) -> frozenset[PodRef] | None:
        """The pods that the kubelet lists with the resource; None when it does not answer."""
        try:
            listed = await self._services.pods.listed(SHARE_RESOURCE)
            return frozenset(PodRef(each.namespace, each.name) for each in listed)
        except TrancheError as error:
            _log.info("cannot ask the kubelet", extra={"error": str(error)})
            return None

    async def _give_back(self, uid: str, allocations: tuple[Allocation, ...]) -> None:
        keeper = allocations[0].keeper
        assert isinstance(keeper, PlacedPodKeeper)
        await asyncio.to_thread(lambda: ClaimRegister(self._services.host).give_back(uid, why="its pod has ended"))
        self._handover.news()
        await asyncio.to_thread(self._files.remove_of, claim_mark(uid))
        _log.info("given back", extra={"pod": str(keeper), "uid": uid})

    def _adopt(self, order: ClaimRequest) -> None:
        view = self._services.host.view()
        # Allocations found by their processes alone while the register was new.
        found = [
            each.id
            for each in view.allocations
            if isinstance(each.keeper, PodKeeper) and each.keeper.uid == order.keeper.uid
        ]
        adopt_share(self._services.host, order, view.node, found)


def _ref(allocation: Allocation) -> PodRef:
    keeper = allocation.keeper
    assert isinstance(keeper, PlacedPodKeeper)
    return PodRef(keeper.namespace, keeper.name)


UNITS = 250
"""The most pods of a node that can have shares at once. A kubelet runs 110 pods by default."""

_TICK_SECONDS = 0.5
_CARE_SECONDS = 5.0
_FRESH_SECONDS = 0.5
_FIRST_CARE_SECONDS = 5.0


class ShareDriver:
    """A component: serves the kubelet, and gives back the shares of pods that are over.

    The device plugin's `config` says where the kubelet's sockets and the device files are.
    """

    name = "shares"

    def __init__(self, services: NodeContext, config: ConfigSource, *, cdi_folder: Path) -> None:
        self._services = services
        self._config = config
        self._changed = asyncio.Event()
        self._handover = GatedSharePreparer(services, config.files, cdi_folder, self._changed.set)
        self._care = ShareReconciler(services, self._handover)
        self._over = asyncio.Event()
        self._endpoints: ResourceServerManager | None = None
        self._failure = "the agent does not hand over shares yet"

    def ready(self) -> Readiness:
        """Ready when the kubelet knows the resource."""
        if self._failure or self._endpoints is None:
            return Readiness(False, self._failure)
        return self._endpoints.ready()

    async def run(self) -> None:
        """Serve until cancelled."""
        config = await self._config.latest.first()
        await self._services.inventory.latest.first()
        socket = Path(config.kubelet_socket) if config.kubelet_socket else None
        self._endpoints = ResourceServerManager(config.plugin_folder, socket, self, time.monotonic, starter=self.start)
        try:
            async with asyncio.TaskGroup() as group:
                # Adopt before serving any pod: what a lost register left behind belongs to other pods.
                with suppress(TimeoutError, TrancheError):
                    async with asyncio.timeout(_FIRST_CARE_SECONDS):
                        await self._care.adopt()
                group.create_task(self._handover.backlog.run())
                group.create_task(self._keep_serving(self._endpoints))
                group.create_task(self._keep_fresh())
                group.create_task(self._services.node_pods.tell(self._over.set))
                group.create_task(self._keep_caring())
                group.create_task(self._services.inventory.latest.tell(self._handover.news))
        finally:
            await self._endpoints.close()
            self._endpoints = None

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> ContainerResponse:
        """The container's CDI names, by which its runtime finds what `start` writes."""
        with self._services.pods.admission():
            names = tuple(map(cdi_name, device_ids))
            # Kubelets before 1.29 pass on annotations but not names.
            annotations = {
                f"cdi.k8s.io/tranche-{device_id}": name for device_id, name in zip(device_ids, names, strict=True)
            }
            return ContainerResponse(annotations=annotations, cdi_devices=names)

    async def prefer(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """Any: units mean nothing before a container starts."""
        return (*required, *(each for each in available if each not in required))[:size]

    async def start(self, device_ids: Sequence[str]) -> None:
        """Prepare the share of the container's pod."""
        await self._handover.start(device_ids)

    async def _keep_serving(self, endpoints: ResourceServerManager) -> None:
        units = tuple(ListedDevice(f"share-{number}") for number in range(UNITS))
        while True:
            node = self._services.node.value if self._services.node.synced else None
            gates = self._services.backend.synced and self._services.backend.value is AllocationBackend.GATES
            serves = gates and mode_in_force(None if node is None else node.labels).by_claims
            held = await asyncio.to_thread(ClaimRegister(self._services.host).held_by_pods)
            await endpoints.settle({SHARE_RESOURCE: units} if serves or held else {})
            self._failure = ""
            await asyncio.sleep(_TICK_SECONDS)

    async def _keep_fresh(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._services.inventory.poke()
            await asyncio.sleep(_FRESH_SECONDS)

    async def _keep_caring(self) -> None:
        while True:
            self._over.clear()
            try:
                if await self._care.look():
                    self._changed.set()
            except TrancheError as error:
                _log.warning("cannot check the shares", extra={"reason": error.reason, "error": str(error)})
            await asyncio.sleep(_FRESH_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CARE_SECONDS):
                    await self._over.wait()
