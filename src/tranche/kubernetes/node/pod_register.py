"""Pods in the register of holders: recorded before a hand-over, settled by what kubelet and API server say.

The register is the ledger's, so every command of the machine sees what pods hold, and pods get nothing that a command holds. Only
the register asks kubelet and API server who holds a slice.

Nothing asks the kubelet for its list while it gives a device away. If a kubelet of Kubernetes 1.36 is asked then, and one of its
pods has just ended, it forgets the device that is on its way (UpdateAllocatedDevices in its device manager). It gives the device
to the next pod too, and that pod has to be turned away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

from tranche.core.allocation import (
    Allocation,
    FractionalShare,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    devices,
    memory_of,
    nearest_request,
    overlap,
    shared_memory,
)
from tranche.core.errors import GpuBusy, TrancheError
from tranche.core.keeper import PodKeeper
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices, KubeletResponse, PodResourcesClient
from tranche.kubernetes.node.pod_settlement import (
    HeldGrants,
    Living,
    PodObservation,
    RegisterUpdate,
    device_of,
    forgotten,
    holding,
    settle_pods,
    unaccounted,
)
from tranche.node.host import Host
from tranche.node.processes.pod_processes import devices_told

_API_SECONDS = 5.0
_ASK_SECONDS = 30.0
"""As often as `tranche run` asks the daemon of its own share."""

_log = logging.getLogger(__name__)


class PodRegister:
    """The pods' part of one host's register. `pods` asks the API server for the node's pods; `clock` is monotonic, in seconds.

    `living` says which of these pods, by uid, have processes on the machine, and which devices these name; it blocks.
    """

    def __init__(
        self,
        host: Host,
        kubelet: PodResourcesClient,
        pods: Callable[[], Awaitable[Sequence[KubePod]]],
        *,
        clock: Callable[[], float],
        living: Callable[[Collection[str]], Living] = devices_told,
    ) -> None:
        self._host = host
        self._kubelet = kubelet
        self._pods = pods
        self._clock = clock
        self._living = living
        self._admissions = AdmissionTracker()
        self._runs: dict[str, float] = {}
        self._complete_run = ""
        self._seen: dict[str, float] = {}
        self._shared = False
        self._asked = -_ASK_SECONDS
        self._unlimited: frozenset[str] = frozenset()

    @property
    def kubelet_run(self) -> str:
        """The present run of the kubelet; "" when there is none."""
        return self._kubelet.run()

    async def look(self) -> NodeView:
        """The node with all holders, settled by the latest reports, once no hand-over is under way.

        Passes on the errors of the driver, the ledger and the kubelet, and then settles nothing.
        """
        await self._admissions.over()
        view, _ = await self._look()
        return view

    async def _look(self) -> tuple[NodeView, KubeletResponse]:
        word = await self._kubelet.read()
        view = await asyncio.to_thread(self._view)
        unlisted = forgotten(view.allocations, devices(view.node), word)
        living = await asyncio.to_thread(self._living, unlisted) if unlisted else {}
        found = self._settle(view, word, None, living)
        if found.undecided or word.run != self._complete_run:
            found = self._settle(view, word, await self._ask_api_server(), living)
        if found.empty:
            return view, word
        gone = [grant for each in view.allocations if each.id in found.removed for grant in each.grants]
        await asyncio.to_thread(self._host.given_back, gone)
        memory = shared_memory((grant for each in found.added for grant in each.grants), view.node)
        allocations = await asyncio.to_thread(
            self._host.settle, found.removed, found.keepers or {}, found.added, memory
        )
        return replace(view, allocations=allocations), word

    def _view(self) -> NodeView:
        """The machine. Where something is shared with limits, it is asked from time to time whether these still hold.

        If the driver's list shows that limits are gone, that is written down at once.
        """
        due = self._shared and self._clock() - self._asked >= _ASK_SECONDS
        view = self._host.view(thorough=due and not self._host.ledger.read_only)
        unlimited = frozenset(each.id for each in view.allocations if any(map(_is_unlimited, each.grants)))
        if unlimited - self._unlimited and not due and not self._host.ledger.read_only:
            view, due = self._host.view(thorough=True), True
        self._asked = self._clock() if due else self._asked
        self._unlimited = unlimited
        self._shared = any(isinstance(grant, FractionalShare) for each in view.allocations for grant in each.grants)
        return view

    async def hand_over(self, resource: str, given: HeldGrants) -> str:
        """Record that a container of some pod gets this, before telling the kubelet. Returns the allocation's id.

        GpuBusy when another holder has some of it, or a plan is about to take it away. A kubelet that gives a device away again
        has taken it back from the pod before, which may not be settled yet; it then no longer lists the device.
        """
        with self._admissions.one():
            return await self._hand_over(resource, given)

    async def _hand_over(self, resource: str, given: HeldGrants) -> str:
        keeper = PodKeeper(resource, kubelet=self._kubelet.run(), replicas=given.replicas)
        try:
            return await asyncio.to_thread(self._record, keeper, given)
        except GpuBusy:
            view, word = await self._look()
        _refuse_given_twice(word, view, given)
        superseded = [
            each.id
            for each in view.allocations
            if isinstance(each.keeper, PodKeeper)
            and given.collides(holding(each))
            and _same_pod_again(each.keeper, keeper)
        ]
        return await asyncio.to_thread(self._record, keeper, given, superseded)

    def _record(self, keeper: PodKeeper, given: HeldGrants, superseded: Sequence[str] = ()) -> str:
        """Write the holder down, and have the daemons that it needs serve. Without such daemons, no GPU is queried."""
        host, request = self._host, nearest_request(given.grants)
        if not given.by_mps and not host.daemons.records.look():
            return host.add_holder(keeper, request, given.grants, superseded, given.memory)
        allocation = Allocation(host.new_id(), request, given.grants, Phase.ACTIVE, host.clock(), keeper=keeper)
        host.hand_over(allocation, superseded)
        return allocation.id

    async def listed(self, resource: str) -> tuple[ContainerDevices, ...]:
        """What the kubelet lists of a resource, once no hand-over is under way; KubeletUnavailable when it does not answer."""
        await self._admissions.over()
        return tuple(each for each in (await self._kubelet.read()).listed if each.resource == resource)

    async def listed_by_claims(self) -> frozenset[str]:
        """CDI devices that the kubelet lists with pods because of their claims; KubeletUnavailable when it does not answer."""
        return (await self._kubelet.read()).by_claims

    def admission(self) -> AbstractContextManager[None]:
        """Spans one moment in which the kubelet gives something away and must not be asked for its list."""
        return self._admissions.one()

    async def take_back(self, allocation_id: str) -> None:
        """Undo a hand-over that no one was told of."""
        await asyncio.to_thread(self._host.settle, [allocation_id], {}, [])

    def _settle(
        self, view: NodeView, word: KubeletResponse, pods: Mapping[PodRef, KubePod] | None, living: Living
    ) -> RegisterUpdate:
        now = self._clock()
        self._runs = {word.run: self._runs.get(word.run, now)}
        self._seen = {each.id: self._seen.get(each.id, now) for each in view.allocations}
        waited = {each: now - since for each, since in self._seen.items()}
        words = PodObservation(word, now - self._runs[word.run], pods, waited, living=living)
        if pods is not None and word.run != self._complete_run:
            keepers = [each.keeper for each in view.allocations if isinstance(each.keeper, PodKeeper)]
            missing = unaccounted(words, [each for each in keepers if each.container])
            for pod, resource in missing:
                _log.warning("pod runs with unknown devices", extra={"pod": str(pod.ref), "resource": resource})
            if not missing:
                self._complete_run = word.run
        words = replace(words, complete=word.run == self._complete_run)
        host = self._host

        def memory(device: WholeGpu | Slice) -> int:
            return memory_of(device, view.node.gpu(device.gpu_uuid))

        return settle_pods(
            view.allocations, devices(view.node), words, now=host.clock(), new_id=host.new_id, memory=memory
        )

    async def _ask_api_server(self) -> Mapping[PodRef, KubePod] | None:
        try:
            async with asyncio.timeout(_API_SECONDS):
                return {pod.ref: pod for pod in await self._pods()}
        except (TrancheError, TimeoutError) as error:
            _log.info("cannot read pods", extra={"error": str(error)})
            return None


def _is_unlimited(grant: Grant) -> bool:
    return isinstance(grant, FractionalShare) and grant.unlimited


def _same_pod_again(keeper: PodKeeper, asking: PodKeeper) -> bool:
    """Whether the asking kubelet gave these devices to that keeper itself, and now gives them again.

    It does so after an init container of the same pod, which it does not list, and after a failed admission. It forgets a pod
    that is deleted by force before its containers have ended.
    """
    return not keeper.lingers and keeper.resource == asking.resource and keeper.kubelet == asking.kubelet


def _refuse_given_twice(word: KubeletResponse, view: NodeView, given: HeldGrants) -> None:
    """GpuBusy when the kubelet gives away what it lists with a pod.

    Kubernetes 1.36 does so: if anyone asks for the list while a device plugin answers, and a pod has ended meanwhile, the kubelet
    forgets the device that is on its way, and gives it to the next pod too (UpdateAllocatedDevices in its device manager).
    """
    alone = [grant for grant in given.grants if not isinstance(grant, FractionalShare)]
    by_uuid = devices(view.node)
    for each in word.listed:
        for device_id in each.device_ids:
            device = by_uuid.get(device_of(device_id))
            if device_id in given.replicas or (device and any(overlap(device, grant) for grant in alone)):
                raise GpuBusy(
                    f"another share now holds device {device_id}: the kubelet lists it with pod {each.namespace}/{each.name}",
                    hint="the pod's replacement gets another device",
                )


ENTERED_SECONDS = 0.2
"""How long the kubelet needs after the answer to list the device: it does so at once."""
_LONGEST_SECONDS = 3.0
"""The longest delay of a look, however many pods come one after the other."""
_POLL_SECONDS = 0.02


class AdmissionTracker:
    """The admissions under way. To be used from one event loop."""

    def __init__(self) -> None:
        self._under_way = 0
        self._answered = float("-inf")

    @contextmanager
    def one(self) -> Iterator[None]:
        """Spans one admission, from the kubelet's question to the answer; a refusal leaves nothing to list."""
        self._under_way += 1
        try:
            yield
            self._answered = asyncio.get_running_loop().time()
        finally:
            self._under_way -= 1

    async def over(self) -> None:
        """Return when none is under way, or after a while in any case."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_SECONDS):
                while (wait := self._wait()) > 0:
                    await asyncio.sleep(wait)

    def _wait(self) -> float:
        if self._under_way:
            return _POLL_SECONDS
        return self._answered + ENTERED_SECONDS - asyncio.get_running_loop().time()
