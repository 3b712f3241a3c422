"""Hands a pod its chosen share at each start of its container, before the container is created.

The kubelet allocates interchangeable units of a resource without naming the pod. So a unit means nothing until the container
starts. Then the kubelet lists the unit's pod, and the agent realises or refuses the controller's choice for that pod. A refusal
becomes an event of the pod, and the kubelet asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tranche.core.allocation import ComputeSlice, Grant, nearest_request
from tranche.core.errors import AllocationUnknown, KubeletUnavailable, TrancheError, WaitTimeout
from tranche.core.keeper import PlacedPodKeeper
from tranche.hardware.cdi import CdiDevice, CdiSpec
from tranche.hardware.nodes import ContainerEdits, DeviceFiles
from tranche.kubernetes.api.decoding import decode_pod
from tranche.kubernetes.api.objects import PodRef
from tranche.kubernetes.claims.vocabulary import SHARE_RESOURCE
from tranche.kubernetes.gated.leases import CHOICES, ChosenShare, choices_from_lease
from tranche.kubernetes.node.claim_queue import LAST_WORD_SECONDS, ClaimQueue, ClaimRetryQueue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.node.share_edits import ShareFiles, spec_now
from tranche.kubernetes.telling.told_view import lease_name
from tranche.node.claims import ClaimRegister, ClaimRequest
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
        refused = self.refused.value if self.refused.synced else {}
        self.refused.publish({uid: why for uid, why in refused.items() if uid not in uids})

    async def _keeper_of(self, unit: str) -> PlacedPodKeeper:
        listed = [each for each in await self._services.pods.listed(SHARE_RESOURCE) if unit in each.device_ids]
        pods = {PodRef(each.namespace, each.name) for each in listed}
        if len(pods) != 1:
            names = ", ".join(sorted(map(str, pods))) or "no pod"
            raise KubeletUnavailable(
                f"the kubelet lists {unit} with {names}",
                hint="delete the pod that does not start; its replacement is placed again",
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
                hint="create the pod with the scheduling gate tranche.dev/share; see: tranche explain pod/NAME",
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
        refused = dict(self.refused.value) if self.refused.synced else {}
        self.refused.publish({**refused, keeper.uid: why})

    def _note(self, keeper: PlacedPodKeeper, task: asyncio.Task[None]) -> None:
        del self._starting[keeper.uid]
        error = None if task.cancelled() else task.exception()
        refused = dict(self.refused.value) if self.refused.synced else {}
        refused.pop(keeper.uid, None)
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
    edits = [each.edits for each in spec.devices]
    whole = ContainerEdits(
        tuple(dict.fromkeys(node for each in edits for node in each.device_nodes)),
        tuple(dict.fromkeys(mount for each in edits for mount in each.mounts)),
        tuple(dict.fromkeys(pair for each in edits for pair in each.environment)),
        tuple(dict.fromkeys(hook for each in edits for hook in each.hooks)),
    )
    return CdiSpec(CDI_KIND, (CdiDevice(unit, whole),), spec.edits, unit)


def order_for(keeper: PlacedPodKeeper, grants: Sequence[Grant]) -> ClaimRequest:
    """The pod's claim request; AllocationUnknown when a pod cannot be handed these grants."""
    found: tuple[ChosenDevice, ...] = tuple(each for each in grants if not isinstance(each, ComputeSlice))
    if len(found) != len(grants) or not found:
        raise AllocationUnknown("the chosen share is not one that a pod can use")
    return ClaimRequest(keeper, nearest_request(found), found)
