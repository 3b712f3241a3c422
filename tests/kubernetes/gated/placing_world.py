"""An API server for rounds of the placer that answers late, loses answers, and is asked by two controllers at once; and a node's
agent that takes up what was chosen, when it likes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase, nearest_request, overlap
from tranche.core.errors import KubernetesUnavailable
from tranche.core.keeper import PlacedPodKeeper
from tranche.core.request import Request
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, NodeGpus, choices_from_lease, choices_to_lease
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod
from tranche.kubernetes.gated.scheduler.placer import ClusterState


@dataclass
class PlacingWorld:
    """The truth. `chance` decides what goes wrong; each request may be lost before it is done, or its answer after."""

    chance: random.Random
    views: dict[str, NodeView]
    faults: float = 0.3
    pods: dict[str, ClusterPod] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    said: dict[str, NodeGpus] = field(default_factory=dict)
    held: dict[str, dict[str, tuple[Grant, ...]]] = field(default_factory=dict)
    version: int = 1

    def add_pod(self, uid: str, request: Request) -> None:
        self.pods[uid] = ClusterPod("team", f"pod-{uid}", uid, request, created=uid, waits=True, asks=True)

    def end_pod(self, uid: str) -> None:
        """It ends, and its node gives back what it had."""
        self.pods.pop(uid)
        for held in self.held.values():
            held.pop(uid, None)

    def now(self) -> ClusterState:
        """What somebody hears who listens now."""
        nodes = {name: FleetNode(name, uid=f"uid-{name}") for name in self.views}
        choices = {name: choices_from_lease(lease) for name, lease in self.leases.items()}
        return ClusterState(dict(self.pods), nodes, dict(self.said), choices)

    def take_up(self, node: str) -> None:
        """The agent hands over what was chosen for pods that were let go to it."""
        chosen = choices_from_lease(self.leases[node]).choices if node in self.leases else {}
        for uid, pod in self.pods.items():
            if pod.pinned == node and uid in chosen:
                self.held.setdefault(node, {}).setdefault(uid, chosen[uid].grants)  # what it has stays its own

    def tell(self, node: str) -> None:
        """The agent says what is so now."""
        before = self.said.get(node)
        self.said[node] = NodeGpus(node, self._view(node), 1 if before is None else before.generation + 1)

    def check(self) -> None:
        """No two pods of a node were given one share."""
        for node, held in self.held.items():
            grants = [(uid, grant) for uid, mine in held.items() for grant in mine]
            for place, (uid, one) in enumerate(grants):
                for other_uid, other in grants[place + 1 :]:
                    parts = (
                        isinstance(one, FractionalShare)
                        and isinstance(other, FractionalShare)
                        and one.device == other.device
                    )
                    assert uid == other_uid or parts or not overlap(one, other), (node, uid, other_uid)
            for gpu in self.views[node].node:
                parts_here = [
                    each for _, each in grants if isinstance(each, FractionalShare) and each.gpu_uuid == gpu.uuid
                ]
                assert sum(each.memory for each in parts_here) <= gpu.memory

    async def write(self, chosen: ChoiceLease) -> ChoiceLease | None:
        self._may_fail()
        known = self.leases.get(chosen.node)
        if (known is None) != (chosen.lease is None) or (
            known and chosen.lease and known.version != chosen.lease.version
        ):
            return None
        self.version += 1
        self.leases[chosen.node] = replace(choices_to_lease(chosen), version=str(self.version))
        self._may_fail()
        return choices_from_lease(self.leases[chosen.node])

    async def let_go(self, pod: ClusterPod, node: str, host: str, choice: ChosenShare) -> bool:
        self._may_fail()
        there = self.pods.get(choice.uid)
        if there is None or not there.waits:
            return False
        self.pods[choice.uid] = replace(there, waits=False, request=None, pinned=host, node=host)
        self._may_fail()
        return True

    async def stands(self, choice: ChosenShare, host: str) -> bool:
        self._may_fail()
        pod = self.pods.get(choice.uid)
        return pod is not None and (pod.waits or pod.pinned == host)

    def _may_fail(self) -> None:
        if self.chance.random() < self.faults:
            raise KubernetesUnavailable("cannot reach it")

    def _view(self, node: str) -> NodeView:
        added = tuple(
            Allocation(
                f"a-{uid}", nearest_request(grants), grants, Phase.ACTIVE, 0.0, keeper=PlacedPodKeeper("t", uid, uid)
            )
            for uid, grants in self.held.get(node, {}).items()
        )
        view = self.views[node]
        return replace(view, allocations=(*view.allocations, *added))
