"""The agent's part that hands shares to pods in clusters without claims, through a device plugin resource.

The kubelet allocates interchangeable units of the resource without naming the pod. So a unit means nothing until a container
starts. Then the kubelet lists the unit's pod, and the agent realises or refuses the controller's choice for that pod. A refusal
becomes an event of the pod, and the kubelet asks again.

The agent gives the shares of finished pods back once nothing of the pod runs, even if no one reported the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tranche.core.allocation import Allocation, ComputeSlice, Grant, nearest_request
from tranche.core.errors import AllocationUnknown, KubeletUnavailable, TrancheError, WaitTimeout
from tranche.core.keeper import FALLEN_SECONDS, ClaimEvidence, KeeperStatus, PlacedPodKeeper, PodKeeper, judge_claim
from tranche.hardware.cdi import CdiDevice, CdiSpec
from tranche.hardware.nodes import DeviceFiles, merged
from tranche.kubernetes.api.decoding import decode_pod
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.node_mode import mode_in_force
from tranche.kubernetes.claims.vocabulary import SHARE_RESOURCE
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.device_plugin.config_source import ConfigSource
from tranche.kubernetes.device_plugin.device_list import ListedDevice
from tranche.kubernetes.device_plugin.endpoints import ResourceServerManager
from tranche.kubernetes.gated.leases import CHOICES, ChosenShare, choices_from_lease
from tranche.kubernetes.latest_value import within
from tranche.kubernetes.node.claim_queue import LAST_WORD_SECONDS, ClaimQueue, ClaimRetryQueue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.node.share_edits import ShareFiles, adopt_share, spec_now
from tranche.kubernetes.telling.told_view import lease_name
from tranche.node.claims import ClaimRegister, ClaimRequest
from tranche.node.processes.pod_processes import claim_mark, pods_with_processes
from tranche.planning.decide.realise import ChosenDevice

BUDGET_SECONDS = 25.0
"""The kubelet gives up after 30 and then reports less about the cause."""

CDI_KIND = "tranche.dev/placed"
"""The kind of the CDI devices. Each device, in a file of its own, is named after a unit of the resource."""

PATIENCE_SECONDS = BUDGET_SECONDS - LAST_WORD_SECONDS

_log = logging.getLogger(__name__)


class GatedSharePreparer:
    """Hands shares to the containers of one node. It calls `changed` when a pod has received a share, and says in the node's
    `refused` why pods, by uid, cannot have theirs. `files` is called at each use.

    A container waits at most `patience` seconds for an obstacle that passes by itself. Call `news` when something on the node
    has changed.
    """

    def __init__(
        self,
        services: NodeContext,
        files: Callable[[], DeviceFiles],
        cdi_folder: Path,
        changed: Callable[[], None] = lambda: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.backlog = ClaimQueue(ClaimRegister(services.host))
        self.share_files = ShareFiles(cdi_folder, CDI_KIND)
        self.refused = services.refused
        self._services = services
        self._files = files
        self._changed = changed
        self._patience = patience
        self._waiting = ClaimRetryQueue()
        self._starting: dict[str, asyncio.Task[None]] = {}

    @property
    def under_way(self) -> frozenset[str]:
        """The pods, by uid, whose containers are about to start."""
        return frozenset(self._starting)

    def news(self) -> None:
        """Make waiting containers try again, because something on the node has changed."""
        self._waiting.tell()

    async def start(self, units: Sequence[str]) -> None:
        """Prepare everything for the container that received these units.

        KubeletUnavailable when the units' pod is unknown, AllocationUnknown when nothing was chosen for the pod, WaitTimeout
        after 25 seconds, while the work continues. Otherwise the error of the obstacle, with nothing changed; if the obstacle
        could pass by itself, only after `patience`.
        """
        until = asyncio.get_running_loop().time() + self._patience
        if not units:
            raise AllocationUnknown("a container needs one share, but the kubelet passed none")
        unit = units[0]
        keeper = await self._keeper_of(unit)
        if len(units) > 1:
            message = f"a container can have only one share, but the kubelet passed {len(units)}"
            self._say_refused(keeper, message)
            raise AllocationUnknown(message, hint=f"request exactly 1 of {SHARE_RESOURCE} for the container")
        task = self._starting.get(keeper.uid)
        if task is None:
            task = asyncio.create_task(self._start(unit, keeper, until))
            task.add_done_callback(lambda done: self._note(keeper, done))
            self._starting[keeper.uid] = task
        done, _ = await asyncio.wait({task}, timeout=BUDGET_SECONDS)
        if not done:
            raise WaitTimeout(
                f"the agent is still creating the share of {keeper} after {BUDGET_SECONDS:.0f} s",
                hint="it continues; the kubelet starts the container again",
            )
        task.result()

    def forget_refusals(self, uids: frozenset[str]) -> None:
        """Drop the refusals of these pods, which are over."""
        self.refused.publish({uid: why for uid, why in self.refused.value.items() if uid not in uids})

    async def _keeper_of(self, unit: str) -> PlacedPodKeeper:
        listed = [each for each in await self._services.pods.listed(SHARE_RESOURCE) if unit in each.device_ids]
        pods = {PodRef(each.namespace, each.name) for each in listed}
        if len(pods) != 1:
            names = ", ".join(sorted(map(str, pods))) or "no pod"
            raise KubeletUnavailable(
                f"the kubelet lists {unit} for {names}, but it must belong to exactly one pod",
                hint="delete the pod that does not start; its replacement gets another share",
            )
        (ref,) = pods
        uid = await self._uid_of(ref)
        if not uid:
            raise AllocationUnknown(f"pod {ref} was deleted")
        return PlacedPodKeeper(ref.namespace, ref.name, uid)

    async def _start(self, unit: str, keeper: PlacedPodKeeper, until: float) -> None:
        async def hand_over() -> ClaimRequest:
            order = order_for(keeper, await self._grants(keeper))
            await self.backlog.realise(order)
            return order

        order = await self._waiting.persist(
            keeper.uid, hand_over, until, lambda error: self._say_refused(keeper, error.message)
        )
        self._changed()
        await asyncio.to_thread(self._write_file, unit, order)
        _log.info("handed over", extra={"pod": f"{keeper.namespace}/{keeper.name}", "uid": keeper.uid, "unit": unit})

    async def _grants(self, keeper: PlacedPodKeeper) -> tuple[Grant, ...]:
        """What the register says the pod has, else what was chosen for it: a restarted container keeps its share."""
        held = await asyncio.to_thread(ClaimRegister(self._services.host).held_by_pods)
        if mine := held.get(keeper.uid):
            return mine[0].grants
        choice = (await self.chosen()).get(keeper.uid)
        if choice is None:
            raise AllocationUnknown(
                f"the controller chose no share on this node for {keeper}",
                hint="create the pod with the scheduling gate tranche.dev/share; see why with: tranche explain pod/NAME",
            )
        return choice.grants

    def _write_file(self, unit: str, order: ClaimRequest) -> None:
        spec = spec_now(self._services, self._files(), order.keeper, order.grants)
        self.share_files.write(unit_spec(unit, spec))

    async def chosen(self) -> Mapping[str, ChosenShare]:
        """This node's present choices by pod uid."""
        lease = await self._services.leases.get(lease_name(CHOICES, self._services.node_name))
        return {} if lease is None else choices_from_lease(lease).choices

    async def _uid_of(self, ref: PodRef) -> str:
        """The pod's uid, "" if the pod does not exist."""
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        answer = await self._services.connection.ask(f"read pod {ref}", "GET", path)
        if answer.status == 403:  # once the cluster gives shares by claims, agents may only list
            pods = await self._services.api.list_pods_on_node(self._services.node_name)
            return next((pod.uid for pod in pods if pod.ref == ref), "")
        return "" if answer.status == 404 else decode_pod(answer.accepted()).uid

    def _say_refused(self, keeper: PlacedPodKeeper, why: str) -> None:
        self.refused.publish({**self.refused.value, keeper.uid: why})

    def _note(self, keeper: PlacedPodKeeper, task: asyncio.Task[None]) -> None:
        del self._starting[keeper.uid]
        error = None if task.cancelled() else task.exception()
        refused = {uid: why for uid, why in self.refused.value.items() if uid != keeper.uid}
        if isinstance(error, TrancheError):
            refused[keeper.uid] = error.message
        elif error is not None:
            _log.error("cannot hand over a share", extra={"pod": str(keeper)}, exc_info=error)
        self.refused.publish(refused)


def cdi_name(unit: str) -> str:
    """The unit's qualified CDI name, for a container runtime."""
    return f"{CDI_KIND}={unit}"


def unit_spec(unit: str, spec: CdiSpec) -> CdiSpec:
    """The specification with all its devices merged into one, for a container that asks for the unit."""
    whole = merged([each.edits for each in spec.devices])
    return CdiSpec(CDI_KIND, (CdiDevice(unit, whole),), spec.edits, unit)


def order_for(keeper: PlacedPodKeeper, grants: Sequence[Grant]) -> ClaimRequest:
    """The pod's claim request; AllocationUnknown when a pod cannot be handed these grants."""
    found: tuple[ChosenDevice, ...] = tuple(each for each in grants if not isinstance(each, ComputeSlice))
    if len(found) != len(grants) or not found:
        raise AllocationUnknown("a pod cannot use the chosen share")
    return ClaimRequest(keeper, nearest_request(found), found)


FORGOTTEN_SECONDS = 5.0
"""Once API server and kubelet have both forgotten a pod for this long, none of its containers is about to start."""


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
        refused = self._handover.refused.value
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
                _log.warning("adopted a pod that was missing from the register", extra={"pod": str(keeper)})
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
                with suppress(TrancheError):
                    await within(_FIRST_CARE_SECONDS, self._care.adopt())
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
            await within(_CARE_SECONDS, self._over.wait())
