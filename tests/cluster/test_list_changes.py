"""A real kubelet is told other devices again and again while pods are admitted: it never crashes.

The plugin's servers are the real ones; the devices are invented, so that the list can change many times a second.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.workloads import pod, pods_in

from tests.node.processes import Child
from tranche.core.errors import GpuBusy
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.device_plugin.device_list import ListedDevice
from tranche.kubernetes.device_plugin.endpoints import ResourceServerManager

pytestmark = pytest.mark.cluster

CHANGES = int(os.environ.get("TRANCHE_LIST_CHANGES", "150"))
"""How many lists the kubelet is sent; TRANCHE_LIST_CHANGES asks for more."""

RESOURCE = "tranche.dev/list-changes"
DEVICES = tuple(f"device-{number}" for number in range(40))
CONTAINERS = 6
PODS = 3
FASTER = 6.0
"""The servers' clock runs so much faster, so that devices leave for good while the test lasts."""


class Changes:
    """Offers devices and takes them back at random, most of all in the moment in which one is given away."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.offered = set(DEVICES)
        self.asked: Counter[str] = Counter()
        self.lists = 0
        self._last: list[ListedDevice] = []
        self._answered = asyncio.Event()
        self._endpoints = ResourceServerManager(
            folder, folder / "kubelet.sock", self, lambda: time.monotonic() * FASTER
        )

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> ContainerResponse:
        await asyncio.sleep(self.rng.choice((0.0, 0.0, self.rng.uniform(0, 0.02))))
        if not self.offered.issuperset(device_ids):
            self.asked["refused"] += 1
            raise GpuBusy("the device was withdrawn")
        self.asked["given"] += 1
        if self.rng.random() < 0.4:
            self.offered.difference_update(device_ids)
        self._answered.set()
        return ContainerResponse(environment={"DEVICES": ",".join(device_ids)})

    async def prefer(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        free = [each for each in available if each in self.offered]
        return self.rng.sample(free, min(size, len(free)))

    async def run(self, count: int, alive: Callable[[], bool]) -> Counter[str]:
        """Change the list so many times, while the kubelet is alive; what was asked meanwhile."""
        try:
            while (self.lists < count or self.asked["given"] < CONTAINERS) and alive():
                await self._settle()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.rng.choice((0.0, 0.005, 0.05))):
                        await self._answered.wait()
                    self._answered.clear()
                    continue  # what was just given away leaves the list at once
                for device in self.rng.sample(DEVICES, self.rng.randrange(6)):
                    (self.offered.add if self.rng.random() < 0.7 else self.offered.discard)(device)
            return self.asked
        finally:
            await self._endpoints.close()

    async def _settle(self) -> None:
        offered = [ListedDevice(each, numa_node=0) for each in sorted(self.offered)]
        self.lists += self._endpoints.listened_to and offered != self._last
        self._last = offered
        await self._endpoints.settle({RESOURCE: offered})


class Pods(threading.Thread):
    """Has pods admitted that ask for devices, and deletes them. They wait for a volume, so that nothing else is done for them."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        super().__init__(daemon=True)
        self.ended: Counter[str] = Counter()
        self.over = threading.Event()
        self._cluster, self._node, self._namespace = cluster, node, namespace

    def run(self) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        number = 0
        while not self.over.is_set():
            known = {each["metadata"]["name"]: each["status"] for each in pods_in(self._cluster, self._namespace)}
            for name, status in known.items():
                if "startTime" in status or status["phase"] == "Failed":
                    self.ended[status.get("reason", "admitted")] += 1
                    with suppress(ClusterError):
                        self._cluster.api.request("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})
            for _ in range(PODS - len(known)):
                number += 1
                self._cluster.api.request("POST", path, self._pod(f"pod-{number}"))

    def _pod(self, name: str) -> dict[str, object]:
        made = pod(name, self._namespace, limits={RESOURCE: 1})
        spec = made["spec"]
        spec["nodeName"] = self._node.name
        mounts = [{"name": "never", "mountPath": "/never"}]
        spec["containers"] = [
            {**spec["containers"][0], "name": f"c{number}", "volumeMounts": mounts} for number in range(CONTAINERS)
        ]
        spec["volumes"] = [{"name": "never", "configMap": {"name": "is-not-there"}}]
        return made


def test_a_kubelet_lives_through_changes_of_the_list_while_it_gives_devices_away(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # pytest shows it with a failure
    kubelet = p4d.unit("kubelet")
    pid = kubelet.pid
    folder = p4d.paths.device_plugins
    rng = random.Random(seed)
    changes = Child(lambda: asyncio.run(Changes(folder, rng).run(CHANGES, lambda: kubelet.pid == pid)))
    pods = Pods(cluster, p4d, namespace)
    pods.start()
    try:
        asked = changes.result()
    finally:
        changes.end()
        pods.over.set()
        pods.join()
        last = kubelet.pid
        p4d.start_component("kubelet")
    print(asked, pods.ended)
    assert last == pid, "the kubelet crashed"
    assert asked["given"] > asked["refused"], asked
    record_property("list_changes", CHANGES)
