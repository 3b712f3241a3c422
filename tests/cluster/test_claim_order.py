"""What a real scheduler makes of the devices of a node: the smallest slices first, and nothing of a GPU twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster.agents import remove_device_classes
from cluster.claims import NODES, SLICES, add_paper_node, claim, pod_with_claim, publish_on_paper
from cluster.cluster import Cluster
from cluster.waiting import wait_for
from release.chart import render

from tests.strategies import gpu_on, view_of
from tranche.core.board import board_by_key
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import MigMode

pytestmark = pytest.mark.cluster

NODE = "paper"
DYNAMIC = {"namespace": {"create": True}, "dra": {"enabled": True}}
FOUR = {
    "name": "gpu",
    "exactly": {
        "deviceClassName": "gpu.tranche.dev",
        "capacity": {"requests": {"memory": "4Gi"}},
        "selectors": [{"cel": {"expression": 'device.attributes["gpu.tranche.dev"].isolation == "hard"'}}],
    },
}
WHOLE = {"name": "gpu", "exactly": {"deviceClassName": "whole.gpu.tranche.dev"}}
SHARED = {
    "name": "gpu",
    "exactly": {
        "deviceClassName": "shared.gpu.tranche.dev",
        "capacity": {"requests": {"memory": "4Gi", "compute": "10"}},
    },
}


class Claimants:
    """Pods with a claim each, in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.api = cluster.api
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"

    def add(self, name: str, request: dict[str, Any]) -> None:
        self.api.request("POST", self.claims, claim(name, [request]))
        self.api.request("POST", self.pods, pod_with_claim(name, name))

    def remove(self, name: str) -> None:
        self.api.delete(f"{self.pods}/{name}")
        self.api.delete(f"{self.claims}/{name}")

    def remove_all(self) -> None:
        for every in (self.pods, self.claims):
            self.api.delete_all(every, grace_seconds=0)

    def bound(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.api.get(self.pods)["items"] if "nodeName" in each["spec"]]

    def refused(self, name: str) -> bool:
        conditions = self.api.get(f"{self.pods}/{name}").get("status", {}).get("conditions", [])
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    def devices(self) -> dict[str, str]:
        """The device of each claim that has one."""
        allocations = {
            each["metadata"]["name"]: (each.get("status") or {}).get("allocation")
            for each in self.api.get(self.claims)["items"]
        }
        return {name: each["devices"]["results"][0]["device"] for name, each in allocations.items() if each}


@pytest.fixture
def claimants(cluster: Cluster, namespace: str, request: pytest.FixtureRequest) -> Iterator[Claimants]:
    """The right to claim what a node with eight A100 has that is an object alone; its parameter is what the node keeps."""
    board = board_by_key("A100-40GB")
    assert board is not None
    classes = [item for item in render(DYNAMIC) if item["kind"] == "DeviceClass"]
    means = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), mps_clients=48)
    view = view_of(*(gpu_on(board, index, mode=MigMode.DISABLED) for index in range(8)))
    view = replace(view, node=replace(view.node, sharing=means, driver_version="580.65.06", cuda_version=(13, 0)))
    found = Claimants(cluster, namespace)
    try:
        # A kubelet keeps the slices of an agent that has just ended for half a minute.
        cluster.api.delete_all(SLICES)
        cluster.apply(*classes)
        keep = getattr(request, "param", "")
        publish_on_paper(cluster.api, NODE, add_paper_node(cluster.api, NODE), view, keep=keep)
        yield found
    finally:
        found.remove_all()
        cluster.api.delete_all(SLICES)
        cluster.api.delete(f"{NODES}/{NODE}")
        remove_device_classes(cluster)


@pytest.mark.timeout(1200)
def test_claims_of_4gi_are_the_56_smallest_slices_and_a_whole_gpu_waits_for_one_that_nobody_uses(
    claimants: Claimants,
) -> None:
    for number in range(57):
        claimants.add(f"four-{number}", FOUR)
    wait_for("56 pods are bound", lambda: len(claimants.bound()) == 56)
    (waiting,) = {f"four-{number}" for number in range(57)} - set(claimants.bound())
    devices = claimants.devices()
    assert len(set(devices.values())) == 56
    assert Counter(device[len("gpu-0-") : -len("-0")] for device in devices.values()) == {"1g-5gb": 56}

    claimants.remove(waiting)
    claimants.add("whole", WHOLE)
    claimants.add("shared", SHARED)
    wait_for("the GPU finds no room", lambda: claimants.refused("whole") and claimants.refused("shared"))

    of_last = [name for name, device in devices.items() if device.startswith("gpu-7-")]
    claimants.remove("shared")
    for name in of_last[1:]:
        claimants.remove(name)
    claimants.add("small", FOUR)
    wait_for("the room of one is given again", lambda: "small" in claimants.bound())
    assert claimants.refused("whole")
    claimants.remove("small")
    claimants.remove(of_last[0])
    wait_for("the GPU is given whole", lambda: "whole" in claimants.bound())
    assert claimants.devices()["whole"] == "gpu-7"
    claimants.add("late", FOUR)
    wait_for("a slice of it finds no room", lambda: claimants.refused("late"))


@pytest.mark.long
@pytest.mark.parametrize("claimants", ["7g.40gb"], indirect=True)
def test_room_that_is_kept_for_large_claims_is_theirs_however_many_small_ones_come(claimants: Claimants) -> None:
    for number in range(57):
        claimants.add(f"four-{number}", FOUR)
    wait_for("seven GPUs are cut", lambda: len(claimants.bound()) == 7 * 7)
    waiting = {f"four-{number}" for number in range(57)} - set(claimants.bound())
    wait_for("the others find no room", lambda: all(map(claimants.refused, waiting)))
    claimants.add("large", {"name": "gpu", "exactly": {"deviceClassName": "7g-40gb.gpu.tranche.dev"}})
    wait_for("whoever names the size has the place", lambda: "large" in claimants.bound())
    assert claimants.devices()["large"].endswith("-7g-40gb-0")


@pytest.mark.long
def test_parts_fill_one_gpu_before_another_and_keep_slices_off_it(claimants: Claimants) -> None:
    for number in range(10):
        claimants.add(f"part-{number}", SHARED)
    wait_for("all have a part", lambda: len(claimants.bound()) == 10)
    # 40320 MiB, less what MPS takes: nine parts by memory, ten by their ceilings of compute.
    assert Counter(claimants.devices().values()).most_common(1) == [("gpu-7-shared", 9)]
    for number in range(57):
        claimants.add(f"four-{number}", FOUR)
    wait_for("six GPUs are cut", lambda: len(claimants.bound()) == 10 + 6 * 7)
    assert not any(device.startswith("gpu-7-1g") for device in claimants.devices().values())
