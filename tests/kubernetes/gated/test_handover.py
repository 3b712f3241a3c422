"""A container gets exactly what was chosen for its pod, or does not start and says why; what is over is given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kubernetes.dra.claim_node import ClaimNodeStandIn, on_claim_node
from tests.kubernetes.waiting import until
from tranche.core.allocation import Grant
from tranche.core.errors import AllocationUnknown, GpuBusy, KubeletUnavailable
from tranche.core.keeper import FALLEN_SECONDS, PlacedPodKeeper
from tranche.core.request import parse_request
from tranche.hardware.nodes import SimulatedDeviceFiles
from tranche.kubernetes.api.connection import ApiResponse
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.claims.vocabulary import SHARE_RESOURCE
from tranche.kubernetes.gated.agent.share_driver import FORGOTTEN_SECONDS, GatedSharePreparer, ShareReconciler
from tranche.kubernetes.gated.leases import ChoiceLease, ChosenShare, choices_to_lease
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices
from tranche.kubernetes.latest_value import LatestValue
from tranche.planning.decide.allocate import Granted, decide

A100 = "A100-SXM4-40GB"


@dataclass
class PlacedNode:
    """One node: what its kubelet lists, what the controller has chosen, and its pods."""

    node: ClaimNodeStandIn
    listed: list[ContainerDevices] = field(default_factory=list)
    chosen: dict[str, ChosenShare] = field(default_factory=dict)
    pods: dict[PodRef, KubePod] = field(default_factory=dict)
    living: set[str] = field(default_factory=set)
    now: float = 0.0
    patience: float = 0.0

    def __post_init__(self) -> None:
        real, state = self.node.node.services, Path(self.node.node.machine.machine.environment()["TRANCHE_SIM_STATE"])

        async def listed(resource: str) -> list[ContainerDevices]:
            return self.listed

        async def lease(name: str) -> Lease:
            return choices_to_lease(ChoiceLease("n1", self.chosen))

        async def ask(what: str, method: str, path: str) -> ApiResponse:
            name = path.rpartition("/")[2]
            pod = self.pods.get(PodRef("team", name))
            meta = {"namespace": "team", "name": name, "uid": "" if pod is None else pod.uid}
            return ApiResponse(what, 404 if pod is None else 200, {"metadata": meta})

        async def pods(node: str) -> list[KubePod]:
            return list(self.pods.values())

        services: Any = SimpleNamespace(
            node_name="n1",
            host=real.host,
            inventory=real.inventory,
            refused=LatestValue[Mapping[str, str]]({}),
            pods=SimpleNamespace(listed=listed),
            leases=SimpleNamespace(get=lease),
            connection=SimpleNamespace(ask=ask),
            api=SimpleNamespace(list_pods_on_node=pods),
        )
        self.handover = GatedSharePreparer(
            services, lambda: SimulatedDeviceFiles(state), self.node.cdi, patience=self.patience
        )
        self.care = ShareReconciler(
            services, self.handover, living=lambda uids: self.living & set(uids), clock=lambda: self.now
        )

    def pod(self, name: str, unit: str, grants: tuple[Grant, ...] = ()) -> None:
        """A pod that the kubelet has given a unit, and the controller these grants."""
        self.pods[PodRef("team", name)] = KubePod(PodRef("team", name), f"uid-{name}")
        self.listed.append(ContainerDevices("team", name, "main", SHARE_RESOURCE, (unit,)))
        if grants:
            self.chosen[f"uid-{name}"] = ChosenShare("team", name, f"uid-{name}", grants)

    def decided(self, **request: str) -> tuple[Grant, ...]:
        found = decide(self.node.node.host.view(), parse_request(**request))
        assert isinstance(found, Granted)
        return found.grants

    def held(self) -> dict[str, tuple[Grant, ...]]:
        found = {}
        for each in self.node.allocations:
            assert isinstance(each.keeper, PlacedPodKeeper)
            found[each.keeper.uid] = each.grants
        return found

    def environment(self, unit: str) -> str:
        (device,) = json.loads((self.node.cdi / f"tranche.dev-placed_{unit}.json").read_text())["devices"]
        assert device["name"] == unit
        return "\n".join(device["containerEdits"]["env"])


def on_node(test: Callable[[PlacedNode], Coroutine[Any, Any, None]], *, patience: float = 0.0) -> None:
    async def run(node: ClaimNodeStandIn) -> None:
        placed = PlacedNode(node, patience=patience)
        await node.node.services.inventory.latest.first()  # as the driver does before it serves
        backlog = asyncio.create_task(placed.handover.backlog.run())
        try:
            await test(placed)
        finally:
            backlog.cancel()
            with suppress(asyncio.CancelledError):
                await backlog

    on_claim_node(run, A100)


def test_a_container_gets_what_was_chosen_and_again_when_it_starts_again() -> None:
    async def act(node: PlacedNode) -> None:
        grants = node.decided(gpu_memory="4Gi")
        node.pod("p", "share-3", grants)
        await node.handover.start(["share-3"])
        assert node.held() == {"uid-p": grants}
        assert "TRANCHE_CLAIM_uid_p=team/p" in node.environment("share-3")
        # The choice is gone, as after its node's lease was deleted: what the pod has stays its own.
        node.chosen.clear()
        await node.handover.start(["share-3"])
        assert node.held() == {"uid-p": grants}

    on_node(act)


def test_a_container_that_asks_for_two_is_refused_and_the_controller_hears_of_it() -> None:
    async def act(node: PlacedNode) -> None:
        node.pod("p", "share-1", node.decided(gpu_memory="4Gi"))
        node.listed[0] = ContainerDevices("team", "p", "main", SHARE_RESOURCE, ("share-1", "share-2"))
        with pytest.raises(AllocationUnknown, match="the kubelet passed 2"):
            await node.handover.start(["share-1", "share-2"])
        assert node.handover.refused.value == {"uid-p": "a container can have only one share, but the kubelet passed 2"}
        assert not node.held()

    on_node(act)


def test_two_pods_that_start_at_once_get_each_its_own() -> None:
    async def act(node: PlacedNode) -> None:
        first = node.decided(mig_profile="1g.5gb")
        node.pod("p", "share-1", first)
        await node.handover.start(["share-1"])
        node.pod("q", "share-2", node.decided(mig_profile="2g.10gb"))
        node.pod("r", "share-3", node.chosen["uid-q"].grants)  # the same again: the controller was wrong
        done = await asyncio.gather(
            node.handover.start(["share-2"]), node.handover.start(["share-3"]), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in done) == ["GpuBusy", "NoneType"]
        refused = node.handover.refused.value
        assert len(refused) == 1
        assert "overlaps what pod team/" in next(iter(refused.values()))
        assert len(node.held()) == 2

    on_node(act)


def _nobody(node: PlacedNode) -> None:
    node.listed.clear()


def _two(node: PlacedNode) -> None:
    node.pod("q", "share-1")


def _deleted(node: PlacedNode) -> None:
    node.pods.clear()


def _not_chosen(node: PlacedNode) -> None:
    node.chosen.clear()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (_nobody, KubeletUnavailable, "for no pod"),
        (_two, KubeletUnavailable, "team/p, team/q"),
        (_deleted, AllocationUnknown, "was deleted"),
        (_not_chosen, AllocationUnknown, "the controller chose no share on this node for pod team/p"),
    ],
)
def test_a_container_of_which_nobody_knows_does_not_start(
    change: Callable[[PlacedNode], None], error: type[Exception], words: str
) -> None:
    async def act(node: PlacedNode) -> None:
        node.pod("p", "share-1", node.decided(gpu_memory="4Gi"))
        change(node)
        with pytest.raises(error, match=words):
            await node.handover.start(["share-1"])
        assert not node.held()

    on_node(act)


def test_a_refusal_is_over_when_its_reason_is() -> None:
    async def act(node: PlacedNode) -> None:
        whole = node.decided(gpus="1")
        node.pod("before", "share-1", whole)
        node.pod("after", "share-2", whole)
        await node.handover.start(["share-1"])
        with pytest.raises(GpuBusy):
            await node.handover.start(["share-2"])
        assert set(node.handover.refused.value) == {"uid-after"}
        node.pods[PodRef("team", "before")] = KubePod(PodRef("team", "before"), "uid-before", phase="Succeeded")
        assert await node.care.look()
        await node.handover.start(["share-2"])
        assert (set(node.held()), node.handover.refused.value) == ({"uid-after"}, {})

    on_node(act)


def test_a_container_waits_for_the_pod_before_it_to_end() -> None:
    async def act(node: PlacedNode) -> None:
        whole = node.decided(gpus="1")
        node.pod("before", "share-1", whole)
        node.pod("after", "share-2", whole)
        await node.handover.start(["share-1"])
        starting = asyncio.create_task(node.handover.start(["share-2"]))
        await until(lambda: node.handover.refused.synced and "uid-after" in node.handover.refused.value)
        del node.pods[PodRef("team", "before")]
        node.listed.pop(0)
        assert not await node.care.look()
        node.now += FORGOTTEN_SECONDS
        assert await node.care.look()
        await starting
        assert (set(node.held()), node.handover.refused.value) == ({"uid-after"}, {})

    on_node(act, patience=3600.0)


def test_what_a_lost_register_knew_is_taken_up_again_before_anybody_is_served() -> None:
    async def act(node: PlacedNode) -> None:
        grants = node.decided(mig_profile="2g.10gb")
        node.pod("p", "share-1", grants)
        node.pod("q", "share-2", node.decided(mig_profile="1g.5gb"))
        await node.handover.start(["share-1"])
        (held,) = node.node.allocations
        node.node.node.host.settle([held.id], {}, ())
        assert not node.held()
        await node.care.adopt()
        assert node.held() == {"uid-p": grants}  # and not what q was only promised
        await node.care.adopt()
        assert len(node.node.allocations) == 1

    on_node(act)


def test_what_is_over_is_given_back_and_nothing_else_is() -> None:
    async def act(node: PlacedNode) -> None:
        for name, unit in (("p", "share-1"), ("q", "share-2")):
            node.pod(name, unit, node.decided(gpu_memory="4Gi"))
            await node.handover.start([unit])
        assert not await node.care.look()
        node.pods[PodRef("team", "p")] = KubePod(PodRef("team", "p"), "uid-p", phase="Failed")
        node.living.add("uid-p")
        assert not await node.care.look()
        node.living.clear()
        assert await node.care.look()
        assert set(node.held()) == {"uid-q"}
        # One that is gone without a word: its container may be about to start.
        node.pods.clear()
        assert not await node.care.look()
        node.now += FALLEN_SECONDS - 1
        assert not await node.care.look()
        # Nor is it the kubelet's any more, which has killed what it had.
        node.listed.clear()
        assert await node.care.look()
        assert not node.held()
        assert not node.node.files

    on_node(act)


def test_a_pod_that_is_gone_has_five_seconds_where_the_kubelet_has_forgotten_it_and_thirty_where_it_has_not() -> None:
    async def act(node: PlacedNode) -> None:
        for name, unit in (("p", "share-1"), ("q", "share-2")):
            node.pod(name, unit, node.decided(gpu_memory="4Gi"))
            await node.handover.start([unit])
        node.pods.clear()
        del node.listed[0]  # the kubelet still lists q
        assert not await node.care.look()
        node.now += FORGOTTEN_SECONDS - 0.5
        assert not await node.care.look()
        node.now += 0.5
        assert await node.care.look()
        assert set(node.held()) == {"uid-q"}
        node.now += FALLEN_SECONDS - FORGOTTEN_SECONDS - 1
        assert not await node.care.look()
        node.now += 1
        assert await node.care.look()

    on_node(act)
