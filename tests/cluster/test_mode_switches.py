"""A node's mode changes at random while pods come and go: a GPU is given away one way at a time, and nobody loses what they have.

TRANCHE_MODE_SWITCHES asks for more switches, TRANCHE_MODE_SEED for the same choices once more.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from cluster.agents import agent_on, install_rights, remove_device_classes
from cluster.claims import claim_template, claims_in, devices_given, devices_published, give_by_claims, with_claim
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import log, pod, pods_in

from tests.cluster.competition.witness import Hardware
from tests.cluster.test_claims_on_nodes import LOOK, gone, shares

SWITCHES = int(os.environ.get("TRANCHE_MODE_SWITCHES", "4"))
MODES = ("static", "dynamic", "shared", "mixed", "off")
MOST_PODS = 12
SETTLED_SECONDS = 60.0
RESOURCES = {"old-gpu": "nvidia.com/gpu", "old-slice": "nvidia.com/mig-1g.5gb"}
TEMPLATES = ("small", "small", "whole")

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600 + 60 * SWITCHES)]


@contextmanager
def either_way_on(cluster: Cluster, node: Node, namespace: str) -> Iterator[None]:
    """The agent on a node whose GPUs go by the device plugin or by claims; they are new afterwards."""
    try:
        with agent_on(cluster, node, "--mig-strategy=mixed", "--with-dra", "--share-by-mps", "--refresh-seconds=0.3"):
            try:
                yield
            finally:
                # A kubelet ends no pod with a claim without the driver.
                cluster.kubectl("delete", "pods", "--all", f"--namespace={namespace}", "--timeout=120s")
    finally:
        give_by_claims(cluster, node, None)
        cluster.kubectl("delete", "resourceslices", "--all")
        remove_device_classes(cluster)
        node.renew_machine()
        install_rights(cluster)


@dataclass(slots=True)
class Offer:
    """What the two ways offer of each GPU at one time, by UUID. `left` is what the kubelet counts and no pod has."""

    left: frozenset[str]
    by_claims: frozenset[str]


@dataclass(slots=True)
class Switching:
    """One node, its pods, and what has become of them."""

    cluster: Cluster
    node: Node
    namespace: str
    rng: random.Random
    mode: str = "static"
    counts: Counter[str] = field(default_factory=Counter)
    running: dict[str, str] = field(default_factory=dict)
    saw: dict[str, str] = field(default_factory=dict)
    _number: int = 0

    def switch(self) -> None:
        """Another mode; often the next one follows before all have heard of this one."""
        self.mode = self.rng.choice([each for each in MODES if each != self.mode])
        print(f"{time.strftime('%H:%M:%S')} {self.mode}")
        give_by_claims(self.cluster, self.node, self.mode)
        self.counts[self.mode] += 1

    def pods_come_and_go(self) -> None:
        """Some pods of either way come, and one goes."""
        items = pods_in(self.cluster, self.namespace)
        there = [each["metadata"]["name"] for each in items if not each["metadata"].get("deletionTimestamp")]
        for _ in range(self.rng.randint(1, 3)):
            if len(there) < MOST_PODS:
                there.append(self._make())
        if len(there) > MOST_PODS // 2:
            self._delete(self.rng.choice(there))

    def look(self) -> None:
        """Who ran runs on in the same container, and no two have the same device. What was refused says why, and goes.

        No whole GPU is offered both ways, not even for a moment.
        """
        self._no_gpu_is_offered_both_ways()
        for item in pods_in(self.cluster, self.namespace):
            name, status = item["metadata"]["name"], item["status"]
            if item["metadata"].get("deletionTimestamp"):
                self._forget(name)
                continue
            if status["phase"] == "Failed":
                assert name not in self.running, f"{name}: {status}"
                assert status.get("reason") == "UnexpectedAdmissionError", f"{name}: {status}"
                assert "mode" in status["message"] or "device" in status["message"], status
                print(f"{name}: {status['message']}")
                self.counts["refused"] += 1
                self._delete(name)
                continue
            if name not in self.running:
                for container in status.get("containerStatuses") or ():
                    if "running" in container["state"]:
                        self.running[name] = container["containerID"]
            if name in self.running:
                (container,) = status["containerStatuses"]
                assert "running" in container["state"], f"{name}: {status}"
                assert container["containerID"] == self.running[name], f"{name} was begun anew"
        for name in self.running.keys() - self.saw.keys():
            if line := log(self.cluster, self.namespace, name).partition("\n")[0].removeprefix("UUID: "):
                self.saw[name] = line
        self._nobody_has_what_another_has()

    def settled(self) -> str:
        """What is not yet as the mode wants it; "" when everything is. No GPU may be offered both ways then."""
        self.look()
        offer = self._offer()
        if both := offer.left & offer.by_claims:
            return f"both ways offer {sorted(both)}"
        if self.mode != "static" and offer.left:
            return f"the kubelet still gives {sorted(offer.left)}"
        if self.mode in ("static", "off") and offer.by_claims:
            return f"claims are still given {sorted(offer.by_claims)}"
        return ""

    def not_offered(self) -> str:
        """The GPUs that nobody has anything of and that are not offered as the mode wants; "" when all are."""
        if unsettled := self.settled():
            return unsettled
        offer, hardware = self._offer(), self._hardware()
        taken = {grant["gpuUUID"] for share in shares(self.node) for grant in share["grants"]}
        modes = self.node.run("nvidia-smi", "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader").splitlines()
        # In MIG mode and without a slice: a device plugin has nothing to list.
        uncut = {line.partition(",")[0] for line in modes if line.endswith("Enabled")}
        uncut -= {gpu for _, gpu in hardware.slices.values()}
        given = offer.left | uncut if self.mode == "static" else offer.by_claims
        missing = set(hardware.gpus) - taken - given if self.mode != "off" else set()
        return f"{sorted(missing)} are offered to nobody" if missing else ""

    def wait(self, *, begun: bool) -> None:
        """Wait until the mode is in force, and with `begun` until all that it offers is offered."""
        missing = self.not_offered if begun else self.settled
        what = f"{self.mode} is in force"
        wait_for(what, lambda: not missing(), timeout=SETTLED_SECONDS, explain=self.described)

    def unsettled(self) -> list[str]:
        """The pods that neither run nor wait for room, with what is said of them."""
        found = []
        for item in pods_in(self.cluster, self.namespace):
            waits = any(
                each["type"] == "PodScheduled" and each["status"] == "False"
                for each in item["status"].get("conditions") or ()
            )
            if item["metadata"].get("deletionTimestamp") or not (item["status"]["phase"] == "Running" or waits):
                found.append(f"{item['metadata']['name']}: {item['status']}")
        return found

    def described(self) -> str:
        """What a failure is read by."""
        listed = (self.node.paths.device_plugins / "kubelet_internal_checkpoint").read_text()
        shown = devices_published(self.cluster, self.node)
        free = sorted(name for name, each in shown.items() if not each.get("taints"))
        lines = [self.settled(), *self.unsettled(), f"given to pods by what they saw: {self.saw}", f"kubelet: {listed}"]
        lines += [f"register: {shares(self.node)}", f"shown without taints: {free}", self.node.run("nvidia-smi", "-L")]
        return "\n".join([*lines, self.cluster.kubectl("get", "pods,resourceclaims", "--namespace", self.namespace)])

    def _make(self) -> str:
        self._number += 1
        way = self.rng.choice(("old-gpu", "old-slice", "claim", "claim"))
        name = f"{way}-{self._number}"
        limits = {RESOURCES[way]: 1} if way in RESOURCES else {}
        made = pod(name, self.namespace, script=LOOK, node=self.node.name, limits=limits)
        self.cluster.apply(made if limits else with_claim(made, self.rng.choice(TEMPLATES)))
        return name

    def _delete(self, name: str) -> None:
        self._forget(name)
        self.cluster.kubectl(
            "delete", "pod", name, f"--namespace={self.namespace}", "--wait=false", "--ignore-not-found"
        )

    def _forget(self, name: str) -> None:
        self.running.pop(name, None)
        self.saw.pop(name, None)

    def _no_gpu_is_offered_both_ways(self) -> None:
        """What claims are shown before and after the kubelet was asked, they were shown while it was."""
        before = self._free_for_claims()
        listed = json.loads((self.node.paths.device_plugins / "kubelet_internal_checkpoint").read_text())["Data"]
        counted = {uuid for ids in (listed["RegisteredDevices"] or {}).values() for uuid in ids}
        both = counted & before & self._free_for_claims()
        assert not both, f"the kubelet counts {sorted(both)}, of which claims are shown something free"
        self.counts["looks"] += 1

    def _nobody_has_what_another_has(self) -> None:
        """By what each pod itself saw of its device when it began; parts of a GPU are for several."""
        parts = self._with_parts()
        places = {uuid: gpu for uuid, (_, gpu) in self._hardware().slices.items()}
        whole = {uuid: name for name, uuid in self.saw.items() if uuid.startswith("GPU-")}
        alone = Counter(uuid for name, uuid in self.saw.items() if name not in parts)
        assert set(alone.values()) <= {1}, self.saw
        for name, uuid in self.saw.items():
            assert uuid in places or uuid.startswith("GPU-"), f"{name} has {uuid}, which is gone"
            assert places.get(uuid) not in whole, f"{name} has a slice of the GPU of {whole[places[uuid]]}"

    def _with_parts(self) -> set[str]:
        """The pods whose claims are for parts of a device."""
        claims = claims_in(self.cluster, self.namespace)
        return {
            user["name"]
            for claim in claims
            if any(device.endswith("-shared") for device in devices_given(claim))
            for user in claim["status"].get("reservedFor") or ()
        }

    def _hardware(self) -> Hardware:
        return Hardware.parse(self.node.run("nvidia-smi", "-L"))

    def _offer(self) -> Offer:
        listed = json.loads((self.node.paths.device_plugins / "kubelet_internal_checkpoint").read_text())["Data"]
        hardware = self._hardware()
        counted = {uuid for ids in (listed["RegisteredDevices"] or {}).values() for uuid in ids}
        gpus = {hardware.slices[uuid][1] if uuid in hardware.slices else uuid for uuid in counted - self._held(listed)}
        return Offer(frozenset(gpus), self._free_for_claims())

    def _free_for_claims(self) -> frozenset[str]:
        shown = devices_published(self.cluster, self.node).values()
        return frozenset(str(each["attributes"]["uuid"]["string"]) for each in shown if not each.get("taints"))

    def _held(self, listed: dict[str, Any]) -> set[str]:
        """The devices of pods: by what the kubelet has written down, which may be older, and by what they saw themselves."""
        lists = [each["DeviceIDs"].values() for each in listed["PodDeviceEntries"] or ()]
        return {uuid for of_nodes in lists for ids in of_nodes for uuid in ids} | set(self.saw.values())


@pytest.mark.long
def test_modes_change_at_random_while_pods_come_and_go(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("TRANCHE_MODE_SEED", str(random.randrange(10**6)))
    print(f"TRANCHE_MODE_SEED={seed}")
    with either_way_on(cluster, p4d, namespace):
        cluster.apply(
            claim_template("small", namespace, requests={"memory": "4Gi"}),
            claim_template("whole", namespace, device_class="whole.gpu.tranche.dev"),
        )
        switching = Switching(cluster, p4d, namespace, random.Random(seed))
        for _ in range(SWITCHES):
            switching.pods_come_and_go()
            switching.switch()
            if (patience := switching.rng.random()) < 0.6:
                # Half of these wait until the other way is over, and half until this one has begun as well.
                switching.wait(begun=patience < 0.3)
            switching.look()
        switching.mode = "mixed"
        give_by_claims(cluster, p4d, "mixed")

        def calm() -> bool:
            return not switching.settled() and not switching.unsettled()

        wait_for(
            "every pod runs or waits for room",
            calm,
            # Who was refused while another mode was in force is tried again by the kubelet after more than a minute.
            timeout=300,
            explain=switching.described,
        )
        ran = len(switching.running)
        gone(cluster, p4d, namespace)
    done = ", ".join(f"{count} {name}" for name, count in sorted(switching.counts.items()))
    record_property("figure", f"{SWITCHES} switches of a node's mode, seed {seed} ({done}): {ran} pods ran at the end")
