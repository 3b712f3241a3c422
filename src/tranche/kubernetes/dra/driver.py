"""The agent's part that answers the kubelet about claims: sockets, the backlog, care, and the devices' health.

The kubelet names a claim, and only the object has its allocation. So the driver asks the API server for each, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path

from tranche.core.allocation import Slice, WholeGpu, overlap
from tranche.core.errors import TrancheError
from tranche.hardware.nodes import DeviceFiles
from tranche.hardware.process_stat import PROC
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.claims.claim import ClaimRef, KubeClaim, decode_claim
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.devices.devices import NodeDevice
from tranche.kubernetes.dra.claim_reconciler import ClaimReconciler
from tranche.kubernetes.dra.plugin_server import PluginServer
from tranche.kubernetes.dra.preparer import PATIENCE_SECONDS, ClaimPreparer
from tranche.kubernetes.dra.registration import PluginSocketFiles, RegistrationServer
from tranche.kubernetes.latest_value import LatestValue, within
from tranche.kubernetes.node.health import faulty
from tranche.kubernetes.node.services import NodeContext

_AT_ONCE = 20
"""The number of connections that are kept. With more, each request opens another, whose handshake takes longer than the answer;
with fewer, a backlog waits for an API server that is slow to answer.
"""


class ClaimReader:
    """Reads claims, a few at a time."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def read(self, ref: ClaimRef) -> KubeClaim | None:
        """The claim of that namespace and name, with any uid; None when there is none.

        KubernetesUnavailable when the server does not answer, and its siblings.
        """
        path = f"/apis/resource.k8s.io/v1/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
        async with self._places:
            raw = (await self._connection.ask(f"read {ref}", "GET", path)).unless(404)
        return None if raw is None else decode_claim(raw)


_TICK_SECONDS = 1.0
_CALM_SECONDS = 0.5
_LONGEST_BACKLOG_SECONDS = 3.0
_CARE_SECONDS = 15.0
_FIRST_CARE_SECONDS = 5.0
_THOROUGH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class ClaimDriver:
    """A component: does for the kubelet what claims need on this node.

    `instance` is the uid of the agent's pod, "" without one. `files` is called at each use, once `configured` returns. `clock` is
    monotonic, in seconds. A claim waits `patience` seconds for what time alone mends.
    """

    name = "dra"

    def __init__(
        self,
        services: NodeContext,
        *,
        kubelet_folder: Path,
        instance: str,
        cdi_folder: Path,
        files: Callable[[], DeviceFiles],
        configured: Callable[[], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
        care_seconds: float = _CARE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        proc: Path = PROC,
    ) -> None:
        self._inventory = services.inventory
        self._device_health = services.device_health
        self._health: LatestValue[Mapping[str, str]] = LatestValue()
        self._configured = configured
        self._care_seconds = care_seconds
        self._failure = "the DRA driver is not serving yet"
        self._serves = False
        self._changed = asyncio.Event()
        self._refused = asyncio.Event()
        self._refused.set()  # the first look finds what was so before this agent began
        self._preparer = ClaimPreparer(
            services,
            ClaimReader(services.connection).read,
            files,
            cdi_folder,
            changed=self._changed.set,
            met=self._refused.set,
            patience=patience,
        )
        self._pods = services.node_pods
        self._care = ClaimReconciler(services, self._preparer, clock=clock, proc=proc)
        sockets = PluginSocketFiles(kubelet_folder, instance)
        server = PluginServer(sockets.plugin, services.node_name, self._preparer, self._health, now=time.time)
        self._registration = RegistrationServer(sockets, server, services.registered)

    def ready(self) -> Readiness:
        """Ready while it serves where the kubelet looks for it, and the kubelet has it."""
        why = self._failure or self._registration.refusal
        if not why and not (self._registration.registered.synced and self._registration.registered.value):
            why = "the kubelet has not registered the DRA driver yet"
        if not why and not self._serves:
            why = "claims wait until the agent has checked the node"
        return Readiness(not why, why)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                # At once, as callers wait. A kubelet that finds no driver may not ask again for more than a minute.
                group.create_task(self._keep_serving())
                await self._configured()
                await self._inventory.latest.first()
                group.create_task(self._preparer.backlog.run())
                # Before serving pods: what a crash has left may belong to a claim until proven otherwise.
                await within(_FIRST_CARE_SECONDS, self._look_after())
                self._preparer.open()
                self._serves = True
                group.create_task(self._keep_fresh())
                group.create_task(self._keep_health(self._inventory.latest.changes()))
                group.create_task(self._keep_health(self._device_health.faults.changes()))
                group.create_task(self._keep_caring())
                group.create_task(self._keep_noting())
                group.create_task(self._inventory.latest.tell(self._preparer.news))
        finally:
            await self._registration.stop()

    async def _keep_serving(self) -> None:
        """Keep serving, even if the kubelet's folders are emptied."""
        while True:
            if not self._registration.found:
                await self._registration.stop()
                self._failure = "the DRA driver is not serving yet"
                await self._registration.start()
                self._failure = ""
                _log.info("serving", extra={"driver": DRIVER})
            await asyncio.sleep(_TICK_SECONDS)

    async def _keep_fresh(self) -> None:
        """Refresh the GPUs' state after claims, but not amid a backlog: the work after a look delays waiting claims."""
        while True:
            await self._changed.wait()
            await within(_LONGEST_BACKLOG_SECONDS, calm(self._changed, lambda: self._preparer.busy))
            self._changed.clear()
            self._inventory.poke()

    async def _keep_caring(self) -> None:
        """Look after claims now and then, and at once when a claim met another's holding, as that claim may be over."""
        while True:
            await within(self._care_seconds, self._refused.wait())
            refused = self._refused.is_set()
            self._refused.clear()
            await self._look_after(thorough=refused)
            if refused:
                await asyncio.sleep(min(_THOROUGH_SECONDS, self._care_seconds))

    async def _keep_noting(self) -> None:
        """Record each pod that comes to use a claim, before the pod can be forgotten."""
        async for _ in self._pods.changes():
            try:
                await self._care.note_pods()
            except TrancheError as error:
                _log.warning("cannot record the pods of claims", extra={"reason": error.reason, "error": str(error)})

    async def _look_after(self, *, thorough: bool = False) -> None:
        try:
            await self._care.look(thorough=thorough)
        except TrancheError as error:
            _log.warning("cannot check the claims", extra={"reason": error.reason, "error": str(error)})

    async def _keep_health(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            devices = await self._preparer.devices()
            node = self._inventory.latest.value.view.node
            there, sick = {gpu.uuid for gpu in node if not gpu.lost}, faulty(self._device_health.faults.value, node)
            self._health.publish({name: _trouble(each, there, sick) for name, each in devices.items()})


async def calm(
    changed: asyncio.Event, busy: Callable[[], bool], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Return when nothing has `changed` for half a second and nothing is `busy`."""
    while changed.is_set() or busy():
        changed.clear()
        await sleep(_CALM_SECONDS)


def _trouble(device: NodeDevice, there: Collection[str], sick: Mapping[WholeGpu | Slice, str]) -> str:
    if device.gpu_uuid not in there:
        return "the driver has lost the GPU"
    reasons = sorted({why for each, why in sick.items() if overlap(device.offered, each)})
    return f"the driver reported {', '.join(reasons)}" if reasons else ""
