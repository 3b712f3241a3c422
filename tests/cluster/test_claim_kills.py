"""kill -9 of whatever keeps claims, while they come and go: nobody shares what is one's own, nobody loses it, nothing is left.

TRANCHE_CLAIM_KILLS and TRANCHE_CLAIM_CHURN say how many kills and claims: about five seconds for each kill.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, cycle
from math import ceil
from typing import Any

import pytest
from cluster.claims import claim_template, claims_in, devices_given, devices_published
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import first_lines, pods_in

from tests.cluster.competition.outages import PARTS, Outages
from tests.cluster.test_claims_on_nodes import claiming, claims_on, gone, shares
from tests.support.length import rounds

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(4 * 3600)]

KILLS = rounds(4, 1, "TRANCHE_CLAIM_KILLS")
CLAIMS = rounds(16, 8, "TRANCHE_CLAIM_CHURN")
MOST_PODS = 24
CALM_SECONDS = 240.0
TEMPLATES = ("small", "part", "medium", "small", "whole", "small", "part", "medium")
A100_BYTES = 40 << 30


@dataclass(slots=True)
class Churn:
    """Pods with claims that come and go; `lost` are pods that ended though nobody deleted them."""

    cluster: Cluster
    node: Node
    namespace: str
    rng: random.Random
    made: int = 0
    alive: list[str] = field(default_factory=list)
    running: dict[str, str] = field(default_factory=dict)

    def step(self, most: int) -> None:
        """Some pods come, as long as fewer than `most` were made, and some go."""
        with suppress(ClusterError, OSError):
            for _ in range(self.rng.randint(1, 4)):
                if len(self.alive) < MOST_PODS and self.made < most:
                    name = f"c{self.made}"
                    self.cluster.apply(self._pod(name))
                    self.made += 1
                    self.alive.append(name)
            if len(self.alive) > MOST_PODS // 2 or (self.alive and self.rng.random() < 0.5):
                name = self.rng.choice(self.alive)
                self.running.pop(name, None)
                self.alive.remove(name)
                self.cluster.kubectl("delete", "pod", name, "--namespace", self.namespace, "--wait=false")

    def _pod(self, name: str) -> dict[str, Any]:
        # The same at each try: it may have been made though nobody answered.
        made = claiming(name, self.namespace, self.node, TEMPLATES[self.made % len(TEMPLATES)])
        # A container that is being made when containerd is killed is made anew by the kubelet, where its pod says so.
        made["spec"]["restartPolicy"] = "Always"
        return made

    def look(self) -> None:
        """Who ran still runs, in the same container."""
        with suppress(ClusterError, OSError):
            see_still_running(pods_in(self.cluster, self.namespace), self.alive, self.running)


def see_still_running(pods: Iterable[Mapping[str, Any]], alive: Collection[str], running: dict[str, str]) -> None:
    """Those of the pods that are `alive` wait or run; who is `running`, in which container by pod, still runs in that one."""
    for item in pods:
        name, status = item["metadata"]["name"], item["status"]
        if name not in alive:
            continue
        assert status["phase"] in ("Pending", "Running"), f"{name}: {status}"
        for container in status.get("containerStatuses") or ():
            if "running" in container["state"]:
                before = running.setdefault(name, container["containerID"])
                assert before == container["containerID"], f"{name} was begun anew"


def unsettled(cluster: Cluster, namespace: str) -> list[str]:
    """The pods that neither run nor wait for room, with what is said of them."""
    found = []
    for item in pods_in(cluster, namespace):
        conditions = {each["type"]: each["status"] for each in item["status"].get("conditions") or ()}
        waits = conditions.get("PodScheduled") == "False"
        if item["metadata"].get("deletionTimestamp") or not (item["status"]["phase"] == "Running" or waits):
            found.append(f"{item['metadata']['name']}: {item['status']}")
    return found


def test_claims_survive_the_death_of_whatever_keeps_them(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("TRANCHE_CLAIM_SEED", str(random.randrange(10**6)))
    print(f"TRANCHE_CLAIM_SEED={seed}")
    rng = random.Random(seed)
    killed: Counter[str] = Counter()
    with claims_on(cluster, p4d, "mixed", "--share-by-mps") as agent:
        cluster.apply(
            claim_template("small", namespace, requests={"memory": "4Gi"}),
            claim_template("medium", namespace, device_class="2g-10gb.gpu.tranche.dev"),
            claim_template("whole", namespace, device_class="whole.gpu.tranche.dev"),
            claim_template("part", namespace, device_class="shared.gpu.tranche.dev", requests={"memory": "9Gi"}),
        )
        outages = Outages(cluster, p4d, agent)
        churn = Churn(cluster, p4d, namespace, rng)
        parts = cycle(rng.sample(PARTS, len(PARTS)))
        while killed.total() < KILLS or churn.made < CLAIMS:
            # Claims come for as long as there are kills to come.
            most = CLAIMS if killed.total() >= KILLS else ceil(CLAIMS * (killed.total() + 1) / KILLS)
            churn.step(most)
            if killed.total() * CLAIMS <= churn.made * KILLS and killed.total() < KILLS:
                part = next(parts)
                time.sleep(rng.uniform(0.0, 2.0))
                print(f"{time.strftime('%H:%M:%S')} kill {part}, {churn.made} claims so far")
                outages.kill(part)
                killed[part] += 1
                churn.step(most)
                time.sleep(rng.uniform(0.0, 3.0))
                outages.end_all()
            churn.look()
            time.sleep(rng.uniform(0.0, 1.0))
        _calm(cluster, p4d, namespace, churn)
        churn.alive.clear()
        gone(cluster, p4d, namespace)
    record_property(
        "figure",
        f"{churn.made} claims through {killed.total()} kills ({', '.join(sorted(killed))}): none shared, none lost",
    )


def _calm(cluster: Cluster, node: Node, namespace: str, churn: Churn) -> None:
    """Every claim is prepared or waits; no two pods see one device; what is allocated is shown."""

    def explain() -> str:
        events = cluster.kubectl("get", "events", "--namespace", namespace, "--field-selector=type=Warning")
        return "\n".join([*unsettled(cluster, namespace), events[-6000:]])

    wait_for(
        "every pod runs or waits for room",
        lambda: not unsettled(cluster, namespace),
        timeout=CALM_SECONDS,
        explain=explain,
    )
    churn.look()
    said = wait_for("each running pod has said its device", lambda: _said(cluster, namespace))
    claims = claims_in(cluster, namespace)
    parts_of = _parts_of(claims)
    for line, pods in said.items():
        devices = {parts_of.get(pod, pod) for pod in pods}
        assert len(devices) == 1, f"{line} is seen by {pods}, of which these have parts: {parts_of}"
    allocated = {device for claim in claims for device in devices_given(claim)}
    wait_for("what is allocated is shown", lambda: allocated <= devices_published(cluster, node).keys())
    given = {claim["metadata"]["uid"] for claim in claims if devices_given(claim)}
    filed = _filed(node)
    assert filed.keys() == given
    mounted = Counter(uuid for uuids, part in filed.values() if not part for uuid in uuids)
    assert set(mounted.values()) <= {1}, mounted
    held = [_Held.of(grant) for share in shares(node) for grant in share["grants"]]
    print(
        f"at the end there are {sum(not each.part for each in held)} devices and {sum(each.part > 0 for each in held)} parts"
    )
    clashes = [pair for pair in combinations(held, 2) if pair[0].clashes_with(pair[1])]
    assert not clashes
    taken: Counter[_Held] = Counter()
    for each in held:
        taken[replace(each, part=0)] += each.part
    assert all(memory <= device.memory for device, memory in taken.items()), taken


@dataclass(frozen=True, slots=True)
class _Held:
    """A device that a share has, or a `part` of it, in bytes: the memory slices from `start` to `end`, all of a whole GPU."""

    gpu: str
    start: int
    end: int
    memory: int
    part: int

    @classmethod
    def of(cls, grant: dict[str, Any]) -> _Held:
        """Of a grant as `tranche ps -o json` shows it."""
        place, profile = grant["placement"], grant["profile"]
        start, size = (0, 8) if place is None else (place["start"], place["size"])
        memory = A100_BYTES if place is None else int(profile.rpartition(".")[2].removesuffix("gb")) << 30
        return cls(grant["gpuUUID"], start, start + size, memory, grant.get("memoryBytes", 0))

    def clashes_with(self, other: _Held) -> bool:
        """Whether both cannot be had at once: they overlap, and are not parts of the same device."""
        parts_of_one = self.part and other.part and (self.start, self.end) == (other.start, other.end)
        return self.gpu == other.gpu and self.start < other.end and other.start < self.end and not parts_of_one


def _said(cluster: Cluster, namespace: str) -> dict[str, list[str]]:
    """The running pods by the device that each has said it sees, once all have."""
    lines = first_lines(cluster, namespace)
    if not all(lines.values()):
        return {}
    found: dict[str, list[str]] = {}
    for name, line in lines.items():
        found.setdefault(line, []).append(name)
    return found


def _parts_of(claims: list[dict[str, Any]]) -> dict[str, str]:
    """The device of which each pod has a part, by pod. A claim for any share may have got one, too, where no slice was left."""
    return {
        pod["name"]: result["device"]
        for claim in claims
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
        if result.get("shareID")
        for pod in claim["status"].get("reservedFor") or ()
    }


def _filed(node: Node) -> dict[str, tuple[list[str], bool]]:
    """The claims that have a CDI file, by uid, with the devices that it mounts, and whether it is for a part of one."""
    found = {}
    for path in node.paths.cdi.glob("tranche.dev-share_*.json"):
        data: dict[str, Any] = json.loads(path.read_text())
        edits = [device["containerEdits"] for device in data["devices"]]
        mounts = [mount["containerPath"].rpartition("/")[2] for each in edits for mount in each.get("mounts") or ()]
        part = any(word.startswith("CUDA_MPS_PIPE_DIRECTORY=") for each in edits for word in each["env"])
        found[path.stem.rpartition("_")[2]] = ([name for name in mounts if name.startswith(("MIG-", "GPU-"))], part)
    return found
