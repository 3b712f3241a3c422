"""The agent's part that keeps the node's ResourceSlices true, even if others delete or edit them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from tranche.core.allocation import NodeView
from tranche.core.errors import TrancheError
from tranche.hardware.host_facts import read_pcie_roots
from tranche.kubernetes.api.object_client import NodeSlice, SliceClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force, node_mode
from tranche.kubernetes.claims.vocabulary import FREE_LABELS, MODE_LABEL, AttributeName, TaintKey
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.devices.devices import NodeDevice, devices_of
from tranche.kubernetes.devices.taints import KeptRoom, TaintFacts, kept_places, kept_sizes, reasons_against, set_apart
from tranche.kubernetes.dra.pool import (
    UNKNOWN,
    ClaimableDevices,
    PluginGrants,
    Reasons,
    SliceUpdate,
    claim_grants,
    counted_otherwise,
    free_labels,
    open_gpus,
    pool_contents,
    shown_in,
    slice_writes,
    to_claims,
)
from tranche.kubernetes.latest_value import LatestValue, within
from tranche.kubernetes.node.advertisement_arbiter import AdvertisementState, PluginAdvertisement
from tranche.kubernetes.node.health import FaultyDevices, faulty
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.serving.supervisor import LAST_RETRY_SECONDS, LookResult, Reconciler

PAUSE_SECONDS = 1.0
_ECHO_SECONDS = 5.0
_LABELS_SECONDS = 30.0

_log = logging.getLogger(__name__)


class SlicePublisher:
    """A component: shows claims what the node has.

    It handles changes within `pause` seconds after a look together. `pcie_roots` gives the PCIe root of each GPU by UUID, and
    blocks. It writes labels of the node twice a minute at most. It writes nothing before the kubelet has the driver for
    the first time: the kubelet retries a pod that it cannot prepare only after more than a minute. With `ways` it shows nothing
    as free that the device plugin may still be giving away.
    """

    name = "dra-slices"

    def __init__(
        self,
        services: NodeContext,
        slices: SliceClient,
        *,
        pcie_roots: Callable[[NodeView], Mapping[str, str]] | None = None,
        ways: AdvertisementState | None = None,
        pause: float = PAUSE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._services = services
        self._slices = slices
        self._pcie_roots = pcie_roots or _pcie_roots
        self._device_health = services.device_health
        self._ways = AdvertisementState() if ways is None else ways
        if ways is None:
            self._ways.plugin.publish(PluginAdvertisement())
        self._opening: frozenset[str] = frozenset()
        self._waiting = ""
        self._labels: LatestValue[Mapping[str, str | None]] = LatestValue()
        self._sleep = sleep
        self._known: LatestValue[tuple[NodeSlice, ...]] = LatestValue()
        self._generation = 0
        self._roots: tuple[tuple[str, ...], Mapping[str, str]] = ((), {})
        self._basis: _Basis | None = None
        trouble = "no devices have been published to claims yet"
        self._reconciler = Reconciler(_log, "cannot write the ResourceSlices", trouble=trouble, sleep=sleep)
        self._pause = pause

    def ready(self) -> Readiness:
        """Ready when the pool showed the truth at the last look; where claims get nothing, also while it cannot be read."""
        node = self._services.node.value if self._services.node.synced else None
        idle = not self._known.synced and node is not None and not mode_in_force(node.labels).by_claims
        trouble = "" if idle else self._reconciler.trouble or self._waiting
        return Readiness(not trouble, trouble)

    async def run(self) -> None:
        """Keep the slices until cancelled. They stay: the kubelet removes them when no agent comes back."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._keep())
            group.create_task(self._keep_labels())

    async def withdraw(self) -> None:
        """Remove every slice of the node until cancelled: claims get nothing more of it."""
        async with aclosing(self._slices.watch()) as snapshots:
            async for slices in snapshots:
                while not await self._removed(slices):
                    await self._sleep(LAST_RETRY_SECONDS)

    async def _removed(self, slices: Sequence[NodeSlice]) -> bool:
        try:
            for each in slices:
                await self._slices.delete(replace(each, version=""))  # whatever it says by now
        except TrancheError as error:
            _log.warning("cannot delete the ResourceSlices", extra={"reason": error.reason, "error": str(error)})
            return False
        return True

    async def _follow(self) -> None:
        async with aclosing(self._slices.watch()) as snapshots:
            async for slices in snapshots:
                self._generation = max([self._generation, *(each.generation for each in slices)])
                self._known.publish(slices)
                self._say(self._opening)

    def _say(self, opening: frozenset[str]) -> None:
        """Tell the device plugin's side what claims may be seeing."""
        self._opening = opening
        self._ways.claims.publish(to_claims(_shown(self._known.value), opening))

    async def _keep(self) -> None:
        services = self._services
        await services.registered.until(bool)
        others = (self._ways.plugin, self._device_health.faults, services.fallen)
        needed = (services.node, services.inventory.latest, self._known)
        await self._reconciler.run(self._look, needed, (each.changes() for each in others))

    async def _look(self) -> LookResult:
        """Write what differs. While it waits for the device plugin, it heeds the plugin's word at once."""
        node = self._services.node.value
        if node is None or not node.uid:
            return LookResult()
        sizes, problem = kept_sizes(node.annotations)
        await self._services.api.warn_of_node(node, "NodeModeUnknown", _unknown_mode(node))
        await self._services.api.warn_of_node(node, "KeptRoomUnknown", problem)
        view = (await self._services.inventory.current()).view
        if self._now(node, sizes, view) == self._basis:
            return LookResult()
        devices = await self._devices(view)
        # From here on no other task runs until the device plugin is told what may be shown.
        basis = self._now(self._services.node.value or node, sizes, view)
        opened = basis.open_gpus
        self._say(self._opening | shown_in(basis.mode, opened))  # earlier writes may still arrive
        self._waiting = basis.waiting
        # This compares some 500 devices with what is shown: too long for the event loop.
        writes, labels, reserved = await asyncio.to_thread(_decide, basis, devices, self._generation)
        self._labels.publish(labels)
        self._services.reserved.publish(reserved)
        if not writes.count:
            self._basis = basis
        elif not await self._write(writes):
            return LookResult(self._pause)
        self._say(shown_in(basis.mode, opened))  # no write of another decision is still to come
        if writes.count:
            _log.debug("ResourceSlices written", extra={"count": writes.count, "generation": writes.generation})
        return LookResult(self._pause) if writes.count or not basis.waiting else LookResult()

    def _now(self, node: KubeNode, sizes: tuple[KeptRoom, ...], view: NodeView) -> _Basis:
        other = UNKNOWN
        if self._ways.plugin.synced:
            offer = self._ways.plugin.value
            other = PluginGrants(offer.grants, offer.strangers(node.allocatable))
        mode, known, faults = mode_in_force(node.labels), self._known.value, self._device_health.faults.value
        return _Basis(node.name, node.uid, mode, sizes, view, known, faults, other, self._services.fallen.value)

    async def _keep_labels(self) -> None:
        async for _ in self._labels.changes():
            while not await self._labelled(self._labels.value):
                await self._sleep(_LABELS_SECONDS)
            await self._sleep(_LABELS_SECONDS)

    async def _labelled(self, labels: Mapping[str, str | None]) -> bool:
        """Write the labels where they differ; returns whether the node has them now."""
        try:
            node = await self._services.api.get_node(self._services.node_name)
            if changes := {key: value for key, value in labels.items() if node.labels.get(key) != value}:
                await self._services.api.patch_node_metadata(node.name, labels=changes)
        except TrancheError as error:
            _log.warning("cannot write the node labels", extra={"reason": error.reason, "error": str(error)})
            return False
        return True

    async def _devices(self, view: NodeView) -> tuple[NodeDevice, ...]:
        gpus = tuple(sorted(gpu.uuid for gpu in view.node if not gpu.lost))
        if gpus != self._roots[0]:
            self._roots = (gpus, await asyncio.to_thread(self._pcie_roots, view))
        return await asyncio.to_thread(devices_of, view.node, self._roots[1])

    async def _write(self, writes: SliceUpdate) -> bool:
        """Whether everything was written, and the watch has shown it.

        Concurrent writers win: the next look sees and rewrites what then differs.
        """
        self._generation = max(self._generation, writes.generation)
        written: list[NodeSlice] = []
        try:
            for each in (*writes.create, *writes.replace):
                make = self._slices.replace if each.version else self._slices.create
                answer = await make(each)
                if answer is not None:
                    written.append(answer)
            for each in writes.remove:
                await self._slices.delete(replace(each, version=""))  # whatever it says by now
        finally:
            shown = await self._echo(written)
        return shown and len(written) == len(writes.create) + len(writes.replace)

    async def _echo(self, written: list[NodeSlice]) -> bool:
        """Wait until the watch shows what was written, to avoid writing it twice; somebody may have deleted it, though."""

        def seen() -> bool:
            shown = {each.name: each.version for each in self._known.value}
            return all(_not_older(shown.get(each.name, ""), each.version) for each in written)

        await within(_ECHO_SECONDS, self._known.until(lambda _: seen()))
        return seen()


class _Basis(NamedTuple):
    """The node's name and uid, its mode, what it keeps, its state, what it shows, which GPUs are faulty, what the device plugin
    may be giving away, and the uids of ended claims whose pods run on.
    """

    name: str
    uid: str
    mode: NodeMode
    sizes: tuple[KeptRoom, ...]
    view: NodeView
    known: tuple[NodeSlice, ...]
    faults: FaultyDevices
    other: PluginGrants
    fallen: frozenset[str]

    @property
    def open_gpus(self) -> frozenset[str]:
        """The GPUs whose devices are to be shown, by UUID."""
        held = frozenset(grant.gpu_uuid for grant in claim_grants(self.view))
        return open_gpus(self.mode, self.view, self.other, _shown(self.known), held)

    @property
    def waiting(self) -> str:
        """Why claims are not shown everything yet; "" when they are."""
        if not self.mode.by_claims or (
            self.open_gpus >= {gpu.uuid for gpu in self.view.node} and not self.other.strangers
        ):
            return ""
        if self.other == UNKNOWN:
            return "not all GPUs are offered to claims yet: the device plugin has not reported its devices"
        names = ", ".join(sorted(self.other.strangers)) or "GPUs"
        return f"not all GPUs are offered to claims yet: the node's status still counts {names} from a device plugin"


def _decide(
    basis: _Basis, devices: Sequence[NodeDevice], generation: int
) -> tuple[SliceUpdate, Mapping[str, str | None], frozenset[str]]:
    """The writes, the labels of the node, and the devices, by name, that are kept for larger requests."""
    name, uid, mode, sizes, view, known, faults, other, fallen = basis
    opened = basis.open_gpus
    offered = tuple(each for each in devices if each.gpu_uuid in opened)
    against: Reasons = reasons_against(offered, view, TaintFacts(mode, frozenset(faulty(faults, view.node)), fallen))
    counted = counted_otherwise(offered, other, _shown(known))
    against = {
        name: tuple(sorted({*why, *((TaintKey.MODE,) if name in counted else ())})) for name, why in against.items()
    }
    if sizes and mode.by_claims:
        kept = {
            str(device["name"])
            for each in known
            for device in each.devices
            if AttributeName.KEPT in (device.get("attributes") or {})
        }
        places = kept_places(offered, view, sizes, against, kept)
        offered, against = set_apart(offered, places, against)
    contents = pool_contents(name, offered, view, against, known)
    labels = free_labels(offered, view, against) if mode.by_claims else dict.fromkeys(FREE_LABELS)
    reserved = frozenset(each for each, why in against.items() if TaintKey.RESERVED in why)
    return slice_writes(contents, known, (name, uid), generation), labels, reserved


def _unknown_mode(node: KubeNode) -> str:
    if node_mode(node.labels) is not None:
        return ""
    word = f"{MODE_LABEL}={node.labels.get(MODE_LABEL, '')}"
    return f"{word} is not a mode, so this node offers no GPUs; use one of {', '.join(NodeMode)}"


def _pcie_roots(view: NodeView) -> Mapping[str, str]:
    return read_pcie_roots({gpu.uuid: gpu.pci_bus_id for gpu in view.node if not gpu.lost})


def _shown(known: Sequence[NodeSlice]) -> ClaimableDevices:
    return ClaimableDevices.of(device for each in known for device in each.devices)


def _not_older(shown: str, written: str) -> bool:
    """Whether the shown version of an object is the written one or a later one."""
    return shown == written or (shown.isdecimal() and written.isdecimal() and int(shown) >= int(written))
