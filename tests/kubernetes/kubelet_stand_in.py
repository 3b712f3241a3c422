"""A kubelet's pod-resources API for tests: what it lists, which run of it answers, and what it does when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices, KubeletResponse, PodResourcesClient


@dataclass
class Kubelet(PodResourcesClient):
    """What the kubelet lists, each device for a pod; `asked` is called at each read, before the answer. `by_claims` are CDI
    devices.
    """

    holders: dict[str, PodRef] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    asked: Callable[[], None] = lambda: None
    failing: bool = False
    runs: int = 1
    by_claims: frozenset[str] = frozenset()
    reads: int = 0

    def run(self) -> str:
        return f"run-{self.runs}"

    async def read(self) -> KubeletResponse:
        self.reads += 1
        self.asked()
        if self.failing:
            raise KubeletUnavailable("the kubelet does not answer")
        listed = tuple(
            ContainerDevices(pod.namespace, pod.name, "main", self.resources.get(uuid, "nvidia.com/gpu"), (uuid,))
            for uuid, pod in self.holders.items()
        )
        await asyncio.sleep(0)
        return KubeletResponse(self.run(), listed, self.by_claims)

    def restart(self) -> dict[str, PodRef]:
        """Start anew, and list nothing yet; what it will list once it knows its pods again."""
        self.runs += 1
        before, self.holders = self.holders, {}
        return before


async def no_pods() -> Sequence[KubePod]:
    """An API server that knows of no pod."""
    return ()
