"""The agent's part that hands shares to pods in clusters without claims: a resource of the device plugin's kind, and care."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tranche.core.allocation import Allocation, Phase, shared_memory
from tranche.core.errors import TrancheError
from tranche.core.keeper import PodKeeper
from tranche.hardware.nodes import DeviceFiles
from tranche.kubernetes.api.decoding import decode_pod
from tranche.kubernetes.api.objects import PodRef
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.claims.vocabulary import SHARE_RESOURCE
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.device_plugin.device_list import ListedDevice
from tranche.kubernetes.device_plugin.endpoints import ResourceServerManager
from tranche.kubernetes.gated.agent.handover import GatedSharePreparer, ShareNode
from tranche.kubernetes.gated.agent.placed_files import PlacedFiles, cdi_name
from tranche.kubernetes.gated.agent.share_reconciler import ShareReconciler
from tranche.kubernetes.gated.leases import CHOICES, ChosenShare, choices_from_lease
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.telling.told_view import lease_name
from tranche.node.claims import ClaimRequest
from tranche.node.processes.pod_processes import pods_with_processes

UNITS = 250
"""So many pods of a node can have shares at once; a kubelet runs 110 pods unless it is told otherwise."""

_TICK_SECONDS = 0.5
_CARE_SECONDS = 5.0
_FRESH_SECONDS = 0.5
_FIRST_CARE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class ShareDriver:
    """A component: serves the kubelet, and gives back what is over.

    `refused` is told why pods, by uid, cannot have their share. `folders` are the kubelet's for device plugins and its
    registration socket, known once `configured` returns. `clock` is monotonic, in seconds.
    """

    name = "shares"

    def __init__(
        self,
        services: NodeContext,
        *,
        folders: Callable[[], tuple[Path, Path | None]],
        cdi_folder: Path,
        files: Callable[[], DeviceFiles],
        configured: Callable[[], Awaitable[object]],
        refused: LatestValue[Mapping[str, str]],
        clock: Callable[[], float],
    ) -> None:
        self._services = services
        self._folders = folders
        self._configured = configured
        self._clock = clock
        host, inventory = services.host, services.inventory
        node = ShareNode(
            shares=lambda: host.claims,
            listed=lambda: services.pods.listed(SHARE_RESOURCE),
            chosen=self._chosen,
            uid_of=self._uid_of,
            adopt=self._adopt,
            observe_gpu=host.observe_gpu,
            files=files,
            driver_version=lambda: inventory.latest.value.view.node.driver_version,
            mps_pipes=host.daemons.records.pipes,
        )
        placed = PlacedFiles(cdi_folder)
        self._changed = asyncio.Event()
        self._handover = GatedSharePreparer(node, placed, self._changed.set, refused=refused)
        self._care = ShareReconciler(
            node,
            self._handover,
            placed,
            lambda: services.api.list_pods_on_node(services.node_name),
            living=pods_with_processes,
            clock=clock,
        )
        self._over = asyncio.Event()
        self._endpoints: ResourceServerManager | None = None
        self._failure = "shares are not handed over yet"

    def ready(self) -> Readiness:
        """Ready when the kubelet knows the resource."""
        if self._failure or self._endpoints is None:
            return Readiness(False, self._failure)
        return self._endpoints.ready()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._configured()
        await self._services.inventory.latest.first()
        folder, socket = self._folders()
        self._endpoints = ResourceServerManager(folder, socket, self, self._clock, starter=self)
        try:
            async with asyncio.TaskGroup() as group:
                # Before a pod is served: what a lost register has left is another's.
                with suppress(TimeoutError, TrancheError):
                    async with asyncio.timeout(_FIRST_CARE_SECONDS):
                        await self._care.adopt()
                group.create_task(self._handover.backlog.run())
                group.create_task(self._keep_serving(self._endpoints))
                group.create_task(self._keep_fresh())
                group.create_task(self._follow_pods())
                group.create_task(self._keep_caring())
                group.create_task(self._keep_telling())
        finally:
            await self._endpoints.close()
            self._endpoints = None

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> ContainerResponse:
        """What a container with these units gets: the name by which its runtime finds what `start` puts there."""
        with self._services.pods.admission():
            names = tuple(map(cdi_name, device_ids))
            # Kubelets before 1.29 pass annotations on, and not yet names.
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
        """Have the share of the container's pod there."""
        await self._handover.start(device_ids)

    async def _keep_serving(self, endpoints: ResourceServerManager) -> None:
        units = tuple(ListedDevice(f"share-{number}") for number in range(UNITS))
        while True:
            node = self._services.node.value if self._services.node.synced else None
            gates = self._services.backend.synced and self._services.backend.value is AllocationBackend.GATES
            serves = gates and mode_in_force(None if node is None else node.labels).by_claims
            held = await asyncio.to_thread(lambda: self._services.host.claims.held_by_pods())
            await endpoints.settle({SHARE_RESOURCE: units} if serves or held else {})
            self._failure = ""
            await asyncio.sleep(_TICK_SECONDS)

    async def _keep_fresh(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._services.inventory.poke()
            await asyncio.sleep(_FRESH_SECONDS)

    async def _follow_pods(self) -> None:
        async for _ in self._services.node_pods.changes():
            self._over.set()

    async def _keep_telling(self) -> None:
        """Of each change on the node, to containers that wait for one."""
        async for _ in self._services.inventory.latest.changes():
            self._handover.news()

    async def _keep_caring(self) -> None:
        while True:
            self._over.clear()
            try:
                if await self._care.look():
                    self._changed.set()
            except TrancheError as error:
                _log.warning("shares not looked after", extra={"reason": error.reason, "error": str(error)})
            await asyncio.sleep(_FRESH_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CARE_SECONDS):
                    await self._over.wait()

    def _adopt(self, order: ClaimRequest) -> None:
        host = self._services.host
        view, holders = host.view(), host.holders
        # Found by its processes alone, when the register was new.
        found = [
            each.id
            for each in view.allocations
            if isinstance(each.keeper, PodKeeper) and each.keeper.uid == order.keeper.uid
        ]
        allocation = Allocation(
            holders.new_id(), order.request, order.grants, Phase.ACTIVE, holders.clock(), keeper=order.keeper
        )
        holders.settle(found, {}, [allocation], shared_memory(order.grants, view.node))

    async def _chosen(self) -> Mapping[str, ChosenShare]:
        lease = await self._services.leases.get(lease_name(CHOICES, self._services.node_name))
        return {} if lease is None else choices_from_lease(lease).choices

    async def _uid_of(self, ref: PodRef) -> str:
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        answer = await self._services.connection.ask(f"read pod {ref}", "GET", path)
        if answer.status == 403:  # in a cluster that gives shares by claims by now, agents may only list
            pods = await self._services.api.list_pods_on_node(self._services.node_name)
            return next((pod.uid for pod in pods if pod.ref == ref), "")
        return "" if answer.status == 404 else decode_pod(answer.accepted()).uid
