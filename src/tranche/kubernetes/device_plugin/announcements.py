"""Events about the node: each is reported once when it begins, and again only when it has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tranche.core.allocation import FractionalShare, NodeView
from tranche.core.errors import KubernetesForbidden, TrancheError
from tranche.core.keeper import PodKeeper
from tranche.core.state import DaemonState
from tranche.kubernetes.api.client import KubeClient
from tranche.kubernetes.api.objects import KubeEventType, KubeNode, KubePod, PodRef
from tranche.kubernetes.latest_value import LatestValue
from tranche.node.health.checkup import FORGOTTEN, FORGOTTEN_HINT, forgotten_pods

_RETRY_SECONDS = 5.0
_NAMED = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginCondition:
    """A present condition that people should see. `reason` is one CamelCase word.

    The event is about the node, or about `pod` where one is given.
    """

    reason: str
    message: str
    pod: KubePod | None = None


class ConditionReporter:
    """Reports what is new. It retries what the API server does not accept."""

    def __init__(self, api: KubeClient, node: LatestValue[KubeNode | None], *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._api = api
        self._node = node
        self._clock = clock
        self._said: dict[str, PluginCondition] = {}
        self._not_before = 0.0

    async def say(self, current: Mapping[str, PluginCondition]) -> None:
        """Report the conditions in `current`, by key, that were not reported last time."""
        self._said = {key: said for key, said in self._said.items() if key in current}
        node = self._node.value if self._node.synced else None
        if node is None or self._clock() < self._not_before:
            return
        for key, announcement in current.items():
            if self._said.get(key) == announcement:
                continue
            try:
                await self._record(node, announcement)
            except TrancheError as error:
                _log.warning("cannot record an event", extra={"event_reason": announcement.reason, "error": str(error)})
                # Not every cluster lets an agent write in the pods' namespaces; the node gets an event as well.
                if announcement.pod is None or not isinstance(error, KubernetesForbidden):
                    self._not_before = self._clock() + _RETRY_SECONDS
                    return
            self._said[key] = announcement

    async def _record(self, node: KubeNode, announcement: PluginCondition) -> None:
        words = KubeEventType.WARNING, announcement.reason, announcement.message
        if announcement.pod is None:
            await self._api.create_node_event(node, *words)
        else:
            await self._api.create_pod_event(announcement.pod, node.name, *words)


def announced_of_register(view: NodeView) -> Mapping[str, PluginCondition]:
    """Present and coming trouble with pods and shared devices in that view, each under its own key."""
    return {**_forgotten_pods(forgotten_pods(view.allocations)), **_shared_devices(view)}


def _forgotten_pods(pods: Sequence[str]) -> Mapping[str, PluginCondition]:
    if not pods:
        return {}
    named = ", ".join(pods[:_NAMED]) + (f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else "")
    message = f"{FORGOTTEN}: {named}; {FORGOTTEN_HINT}"
    return {"forgotten": PluginCondition("PodsUnknownToKubelet", message)}


def _shared_devices(view: NodeView) -> Mapping[str, PluginCondition]:
    found: dict[str, PluginCondition] = {}
    for gpu in view.node:
        if any(daemon.state is DaemonState.READY and not daemon.every_user for daemon in gpu.daemons):
            message = (
                f"this driver's MPS serves one user at a time on {gpu.label}: in a container that does not run as "
                "root (runAsUser), the first CUDA call hangs"
            )
            found[f"one user {gpu.uuid}"] = PluginCondition("MpsServesOneUser", message)
    for allocation in view.allocations:
        if any(isinstance(grant, FractionalShare) and grant.unlimited for grant in allocation.grants):
            message = f"the GPU memory limit of {allocation.keeper} ({allocation.id}) is no longer enforced: see tranche events"
            found[f"unlimited {allocation.id}"] = PluginCondition("ShareUnlimited", message)
            if (keeper := allocation.keeper) and isinstance(keeper, PodKeeper) and keeper.admitted and keeper.uid:
                pod = KubePod(PodRef(keeper.namespace, keeper.name), keeper.uid)
                message = "this pod's GPU memory limit is no longer enforced, so its device accepts no more pods"
                found[f"unlimited pod {keeper.uid}"] = PluginCondition("ShareUnlimited", message, pod)
    return found
