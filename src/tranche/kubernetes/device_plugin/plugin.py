"""The device plugin as a part of the agent: tells the kubelet at every change what the inventory shows."""

from __future__ import annotations

import asyncio
import logging
import operator
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tranche.core.allocation import FractionalShare
from tranche.core.errors import GpuBusy, GpuNotFound, KubernetesUnavailable, TrancheError
from tranche.core.keeper import PodKeeper
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState, NodeState
from tranche.documents.slices import why_withheld
from tranche.hardware.cdi import write_spec
from tranche.hardware.control_groups import why_tied
from tranche.hardware.nodes import DeviceFiles
from tranche.hardware.nvml_links import read_links
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.allocate import (
    ContainerResponse,
    cdi_spec,
    refuse_request,
    respond,
    why_prohibited,
    why_unavailable,
    with_mps,
)
from tranche.kubernetes.device_plugin.announcements import ConditionReporter, PluginCondition, announced_of_register
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.config_source import ConfigSource, device_files
from tranche.kubernetes.device_plugin.device_list import (
    AbandonedResourceTracker,
    ListableDevice,
    ListedDevice,
    ListedDevices,
    counted_elsewhere,
    listed,
)
from tranche.kubernetes.device_plugin.endpoints import ResourceServerManager
from tranche.kubernetes.device_plugin.offers import (
    Links,
    RefusedDevices,
    free,
    given_as,
    offered,
    preferred,
    why_still_cut,
)
from tranche.kubernetes.latest_value import within
from tranche.kubernetes.node.advertisement_arbiter import AdvertisementState
from tranche.kubernetes.node.health import recall_lost
from tranche.kubernetes.node.inventory import Snapshot
from tranche.kubernetes.node.replicas import held_with, replicated
from tranche.kubernetes.node.resources import Advertisement, PluginDevice, Resource, advertise
from tranche.kubernetes.node.services import NodeContext
from tranche.planning.steps.plan import unlimited_on

CDI_FOLDER = Path("/var/run/cdi")
_TICK_SECONDS = 0.5
_NEWS_SECONDS = 1.0
_PURSUIT_SECONDS = 1.0
_FIRST_SECONDS = 10.0
BLIND_SECONDS = 30.0
UNKNOWN_SECONDS = 40.0
"""A kubelet removes the ResourceSlices of a driver that has been gone for 30."""

_log = logging.getLogger(__name__)


class DevicePlugin:
    """A component: offers the node's GPUs and slices to the kubelet.

    One level-based loop does everything: it runs at each change of inventory, configuration or health, and twice a second to
    check whether the kubelet is still the same.
    """

    name = "device-plugin"

    def __init__(
        self,
        services: NodeContext,
        config: ConfigSource,
        *,
        cdi_folder: Path = CDI_FOLDER,
        ways: AdvertisementState | None = None,
        laid_out: Callable[[], bool] = lambda: False,
        files: Callable[[PluginConfig], DeviceFiles] = device_files,
        mps_tied: Callable[[], str] = why_tied,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `ways`, a node in a mode other than static offers only what pods already have, and so does any GPU on which claims
        are shown something free. `laid_out` says whether a layout has cut the GPUs as they are; otherwise GPUs cut on demand are
        not offered as whole ones. `mps_tied` says why MPS daemons end with the agent, "" when they outlive it. `clock` is
        monotonic, in seconds.
        """
        self._config = config
        self._inventory = services.inventory
        self._pods = services.pods
        self._faults = services.device_health.faults
        self._node = services.node
        self._backend = services.backend
        self._mps_pipes = services.host.daemons.records.pipes
        self._files = files
        self._mps_tied = mps_tied
        self._announcer = ConditionReporter(services.api, services.node, clock=clock)
        self._clock = clock
        self._cdi_folder = cdi_folder
        self._ways = ways
        self._laid_out = laid_out
        self._counted = ListedDevices()
        self._unknown_since: float | None = None
        self._wake = asyncio.Event()
        self._remembered: dict[str, GpuState] = {}
        self._links: tuple[Collection[str], Links] = ((), {})
        self._offered: Mapping[str, Mapping[str, PluginDevice]] = {}
        self._blind_since: float | None = None
        self._blind = ""
        self._basis: tuple[object, ...] | None = None
        self._listable: Mapping[str, Sequence[ListableDevice]] = {}
        self._wanted: Mapping[str, Sequence[ListedDevice]] = {}
        self._news: Mapping[str, PluginCondition] = {}
        self._abandoned = AbandonedResourceTracker()
        self._insisted = RefusedDevices()
        self._pursued_at = 0.0
        self._run = ""
        self._emptied: frozenset[str] = frozenset()
        self._endpoints: ResourceServerManager | None = None
        self._failure = "the devices have not been offered to the kubelet yet"

    def ready(self) -> Readiness:
        """Ready when the kubelet knows every resource and its devices as they are now."""
        if self._failure or self._endpoints is None:
            return Readiness(False, self._failure)
        return self._endpoints.ready()

    async def run(self) -> None:
        """Offer devices until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_announcing())
            group.create_task(self._offer())

    async def _offer(self) -> None:
        config = await self._config.latest.first()
        await self._inventory.latest.first()
        # A freshly started agent has forgotten what a layout is about to take, but must not offer it.
        await self._inventory.marks_known(_FIRST_SECONDS)
        socket = Path(config.kubelet_socket) if config.kubelet_socket else None
        self._endpoints = ResourceServerManager(config.plugin_folder, socket, self, self._clock)
        try:
            async with asyncio.TaskGroup() as group:
                news = [self._inventory.latest, self._config.latest, self._node, self._faults]
                for each in (*news, *(() if self._ways is None else (self._ways.claims,))):
                    group.create_task(each.tell(self._wake.set))
                group.create_task(self._keep_settled(self._endpoints))
        finally:
            await self._endpoints.close()
            self._endpoints = None

    async def _keep_settled(self, endpoints: ResourceServerManager) -> None:
        while True:
            self._wake.clear()
            if (run := self._pods.kubelet_run) not in ("", self._run):
                await self._look_with(run)
            snapshot, config = self._inventory.latest.value, self._config.latest.value
            self._insisted = self._insisted.left(self._offered, snapshot.view.allocations, run, self._clock())
            basis = (snapshot, config, self._faults.value, self._blindness(endpoints), self._heeds_cuts, self._insisted)
            if self._basis is None or not all(map(operator.is_, self._basis, basis)):
                self._listable = await self._decide(snapshot, config)
                self._basis = basis
            # From here on no other task runs until each server has its list.
            found = listed(self._listable, static=self._mode is NodeMode.STATIC, to_claims=self._shown_to_claims())
            self._wanted = {resource: [each.device for each in members] for resource, members in found.items()}
            self._say(found, endpoints)
            await endpoints.settle({**dict.fromkeys(self._to_be_emptied(endpoints), ()), **self._wanted})
            self._say(found, endpoints)
            self._pursue()
            self._failure = ""
            await within(_TICK_SECONDS, self._wake.wait())

    def _pursue(self) -> None:
        """Look again soon while pods have what the kubelet takes for free: offer it as soon as it is free."""
        allocations, now = self._inventory.latest.value.view.allocations, self._clock()
        lingering = any(isinstance(each.keeper, PodKeeper) and each.keeper.lingers for each in allocations)
        if (lingering or self._insisted.refused) and now - self._pursued_at >= _PURSUIT_SECONDS:
            self._pursued_at = now
            self._inventory.poke()

    async def _look_with(self, run: str) -> None:
        """Look again before telling a new kubelet of any device: it may take for free what ended pods had."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_SECONDS):
                while self._run != run:
                    try:
                        await self._inventory.refresh()
                        self._run = run
                    except TrancheError:
                        await asyncio.sleep(_TICK_SECONDS)
        self._run = run

    def _say(self, found: Mapping[str, Sequence[ListableDevice]], endpoints: ResourceServerManager) -> None:
        """Tell the side that serves claims what may be counted as listed."""
        node = self._node.value if self._node.synced else None
        devices = {resource: {each.device.id: each.grant for each in members} for resource, members in found.items()}
        allocatable = None if node is None else node.allocatable
        self._counted = self._counted.look(devices, endpoints.heard, allocatable, self._clock())
        if self._ways is not None:
            self._ways.plugin.publish(self._counted.offer)

    def _shown_to_claims(self) -> Collection[str] | None:
        """The GPUs on which claims are shown something free; None for a short time while unknown. After that it assumes none: a
        node of layouts does not depend on what claims need, and the register keeps apart what pods have.
        """
        if self._ways is None:
            return ()
        if self._backend.synced and self._backend.value not in BY_CLAIMS:
            self._unknown_since = None
            return ()
        if self._ways.claims.synced:
            self._unknown_since = None
            return self._ways.claims.value
        now = self._clock()
        since = self._unknown_since = now if self._unknown_since is None else self._unknown_since
        return None if now - since < UNKNOWN_SECONDS else ()

    def _to_be_emptied(self, endpoints: ResourceServerManager) -> Collection[str]:
        """The abandoned resources: served without devices until the node shows that it has none."""
        node = self._node.value if self._node.synced and self._config.latest.value.kubelet_socket else None
        now = self._clock()
        served = self._wanted.keys() | endpoints.leaving
        self._abandoned = self._abandoned.look(counted_elsewhere(node, served) if node is not None else (), now)
        protected = {resource for resource in self._abandoned.due(now) if endpoints.another_serves(resource)}
        self._abandoned = self._abandoned.spare(protected, now)
        due = self._abandoned.due(now)
        for resource in due - self._emptied:
            _log.warning(
                "the node still counts a resource that no plugin serves: reporting it as empty",
                extra={"resource": resource},
            )
        self._emptied = due
        return due

    def _blindness(self, endpoints: ResourceServerManager) -> str:
        """Why nothing may be given away, when the inventory could not be read for a while; "" otherwise.

        Time without a kubelet does not count: the inventory asks the kubelet who holds what, and a kubelet that comes back must
        not be told that everything is unhealthy.
        """
        inventory = self._inventory.ready()
        if inventory.ready:
            self._blind_since, self._blind = None, ""
        elif not endpoints.listened_to:
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = self._clock()
        elif not self._blind and self._clock() - self._blind_since >= BLIND_SECONDS:
            self._blind = f"cannot read the GPUs: {inventory.why}"
        return self._blind

    async def _decide(self, snapshot: Snapshot, config: PluginConfig) -> Mapping[str, Sequence[ListableDevice]]:
        """What the kubelet may be told, after preparing what it may then ask about."""
        self._remembered.update({gpu.uuid: gpu for gpu in snapshot.view.node if not gpu.lost})
        node, lost = recall_lost(snapshot.view.node, self._remembered)
        files = self._files(config)
        advertised = replicated(advertise(node, config.mig_strategy), config.sharing, node.sharing, snapshot.view.uses)
        if config.cdi_enabled:
            # A runtime looks devices up when a container starts.
            hint = "make the folder writable, or choose a device-list strategy without CDI"
            await asyncio.to_thread(lambda: write_spec(cdi_spec(node, files), self._cdi_folder, hint=hint))
        await self._read_links(node)
        self._offered = {
            resource.name: {device.id: device for device in resource.devices} for resource in advertised.resources
        }
        self._news = self._announcements(advertised, lost)
        numa_nodes = {gpu.uuid: files.numa_node(gpu) for gpu in node}
        allocations = snapshot.view.allocations

        def listable(resource: Resource) -> Iterator[ListableDevice]:
            for device in offered(resource.devices, resource.name, allocations):
                given = given_as(device, resource.name, allocations)
                draining = device.uuid in snapshot.draining
                # A pod may have been given it just before it was draining.
                if given or not draining:
                    fit = not (draining or device.id in self._insisted.refused or self._why_unfit(device, lost))
                    told = ListedDevice(device.id, fit, numa_nodes[device.gpu.uuid])
                    yield ListableDevice(told, device.grant, given)

        return {resource.name: list(listable(resource)) for resource in advertised.resources}

    async def _keep_announcing(self) -> None:
        while True:
            await self._announcer.say({**self._news, **self._config_news(), **self._conflicts()})
            await asyncio.sleep(_NEWS_SECONDS)

    def _conflicts(self) -> Mapping[str, PluginCondition]:
        if self._endpoints is None:
            return {}
        return {
            f"conflict {resource}": PluginCondition(
                "DevicePluginConflict",
                f"another device plugin also serves {resource} on this node: the kubelet uses the one that registered last",
            )
            for resource in self._wanted
            if self._endpoints.another_serves(resource)
        }

    def _config_news(self) -> Mapping[str, PluginCondition]:
        said = {"DevicePluginConfigInvalid": self._config.problem, "VisibleDevicesNotEnforced": self._config.exposed}
        return {
            reason: PluginCondition(reason, live.value) for reason, live in said.items() if live.synced and live.value
        }

    async def _read_links(self, node: NodeState) -> None:
        """Read the links once for each set of GPUs. Without links, GPUs are chosen by index."""
        gpus = sorted(gpu.uuid for gpu in node)
        if gpus == self._links[0]:
            return
        try:
            self._links = (gpus, await asyncio.to_thread(read_links))
        except TrancheError as error:
            _log.warning("cannot read the GPU links", extra={"error": str(error)})
            self._links = (gpus, {})

    def _why_unfit(self, device: PluginDevice, lost: Collection[str]) -> str:
        if device.gpu.uuid in lost:
            return "the GPU is lost"
        withheld = why_withheld(self._inventory.latest.value.view, device.gpu)
        return (
            self._blind
            or self._faults.value.why_sick(device)
            or why_prohibited(device)
            or withheld
            or self._why_still_cut(device)
            or self._why_no_more(device)
        )

    @property
    def _heeds_cuts(self) -> bool:
        """Whether the present slices were made on demand, as far as known, and the device plugin gives GPUs away."""
        return self._ways is not None and self._mode is NodeMode.STATIC and not self._laid_out()

    def _why_still_cut(self, device: PluginDevice) -> str:
        if device.piece is not None or not self._heeds_cuts:
            return ""
        return why_still_cut(self._inventory.latest.value.view, device.gpu)

    def _why_no_more(self, device: PluginDevice) -> str:
        """Why the device admits no more pods; "" when it does, and for a device that one pod alone gets."""
        if why := why_unavailable(device):
            return why
        part = device.grant
        ids = (
            unlimited_on(part.device, self._inventory.latest.value.view.allocations)
            if isinstance(part, FractionalShare)
            else ()
        )
        return f"nothing limits the memory of {', '.join(ids)}, which share it" if ids else ""

    def _announcements(self, advertised: Advertisement, lost: Collection[str]) -> Mapping[str, PluginCondition]:
        found = {}
        if advertised.problem:
            message = f"nvidia.com/gpu is 0 with MIG strategy single: {advertised.problem}"
            found["single"] = PluginCondition("MigStrategySingleInvalid", message)
        for warning in advertised.warnings:
            found[warning] = PluginCondition("SlicesNotAdvertised", warning)
        for why in advertised.unshared:
            found[why] = PluginCondition("DevicesNotShared", why)
        if any(device.sharing is Sharing.MPS for device in advertised.devices) and (why := self._mps_tied()):
            message = (
                f"programs on shared GPUs will fail when the agent exits, because its MPS daemons end with it: {why}"
            )
            found["tied"] = PluginCondition("MpsDaemonsEndWithAgent", message)
        found |= announced_of_register(self._inventory.latest.value.view)
        for device in advertised.devices:
            if why := self._why_unfit(device, lost):
                message = f"devices of {device.gpu.label} ({device.gpu.uuid}) are not offered to pods: {why}"
                reason = "GpuStillCut" if why == self._why_still_cut(device) else "GpuUnhealthy"
                found[f"sick {device.gpu.uuid}"] = PluginCondition(reason, message)
        return found

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> ContainerResponse:
        """What a container that is given those devices gets.

        Raises:
            GpuNotFound: a device that is not offered.
            UsageError: more replicas than a container may ask for.
            GpuBusy: a change in progress may take the device away, another holder has it, the node is in another mode, or the
                GPU's compute mode lets no program use it.
            KubernetesUnavailable: it is not known yet how this node's containers can be told of devices.
        """
        self._refuse_mode()
        devices = [self._device(resource, device_id) for device_id in device_ids]
        config = self._config.latest.value
        if config.unchosen:
            raise KubernetesUnavailable("the API server has not reported this node's container runtime yet")
        refuse_request(devices, config.sharing)
        self._refuse_draining(devices)
        for device in devices:
            if why := why_prohibited(device) or self._why_still_cut(device):
                raise GpuBusy(f"{device.gpu.label}: {why}")
        try:
            allocation_id = await self._pods.hand_over(resource, held_with(devices))
        except GpuBusy:
            # Otherwise the kubelet gives the device to the next pod of a backlog, and that pod is refused as well.
            self._insisted = self._insisted.refuse(device_ids, self._clock())
            with suppress(TrancheError):
                await self._inventory.refresh()
            raise
        try:
            self._refuse_draining(devices)
        except GpuBusy:
            await self._pods.take_back(allocation_id)
            raise
        self._inventory.poke()
        answer = respond(devices, config, self._files(config), request_id=str(uuid.uuid4()))
        return with_mps(answer, resource, devices, self._mps_pipes)

    @property
    def _mode(self) -> NodeMode:
        """How the node's GPUs are given away."""
        if self._ways is None:
            return NodeMode.STATIC
        node = self._node.value if self._node.synced else None
        return mode_in_force(None if node is None else node.labels)

    def _refuse_mode(self) -> None:
        if (mode := self._mode) is not NodeMode.STATIC:
            raise GpuBusy(
                f"the node is in mode {mode}, which offers no device plugin resources",
                hint="delete the pod; the scheduler then places its replacement",
            )

    def _refuse_draining(self, devices: Sequence[PluginDevice]) -> None:
        for device in devices:
            if device.uuid in self._inventory.draining:
                raise GpuBusy(
                    f"a change in progress is about to remove device {device.uuid}",
                    hint="delete the pod; the scheduler then places its replacement",
                )

    async def prefer(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """The best of the available devices for a container. It skips devices that are no longer offered.

        It also skips held devices, which the kubelet may not know of.
        """
        found = self._free(resource, available, required)
        if len(found) < size:
            with suppress(TrancheError):
                await self._inventory.refresh()
            found = self._free(resource, available, required)
        if len(found) < size:
            found = self._free(resource, available, required, self._pods.kubelet_run)
        return preferred(found, required, size, self._links[1], self._config.latest.value.shared_policy)

    def _free(
        self, resource: str, available: Sequence[str], required: Sequence[str], run: str = ""
    ) -> list[PluginDevice]:
        offered = self._offered.get(resource, {})
        devices = [offered[device_id] for device_id in available if device_id in offered]
        found = {device.id for device in free(devices, self._inventory.latest.value.view.allocations, run)}
        return [device for device in devices if device.id in found.union(required)]

    def _device(self, resource: str, device_id: str) -> PluginDevice:
        device = self._offered.get(resource, {}).get(device_id)
        if device is None:
            raise GpuNotFound(f"invalid request: unknown device: {device_id}")
        return device
