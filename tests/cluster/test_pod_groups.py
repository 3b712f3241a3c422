"""Gangs with claims of their own, on a real Kubernetes with the gates for them: a claim is kept while a pod of its gang lives.

Such a claim is reserved for the group, so nobody says which pods use it. TRANCHE_GANGS says how many gangs come and go.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from cluster.agents import AgentPod
from cluster.claims import claim_template, claims_in
from cluster.cluster import Cluster, remove_cluster, this_process
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import first_lines, pods_in
from release.image import MadeImage

from tests.cluster.competition.outages import PARTS, Outages
from tests.cluster.test_claim_kills import see_still_running, unsettled
from tests.cluster.test_claims_on_nodes import TRANCHE, claiming, claims_on, gone
from tests.support.length import rounds

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(4 * 3600)]

GATES = ("GenericWorkload", "GangScheduling", "DRAWorkloadResourceClaims")
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
GANGS = rounds(40, 12, "TRANCHE_GANGS")
MOST_GANGS, MOST_PODS = 12, 4
GANGS_PER_KILL = 4
CALM_SECONDS = 300.0
TEMPLATES = ("small", "part", "medium", "small", "whole", "small")


@pytest.fixture(scope="module")
def cluster(suitable_machine: None, agent_image: MadeImage) -> Iterator[Cluster]:
    """A cluster of its own, with the gates on in all its parts."""
    name = f"gangs-{os.getpid()}"
    try:
        yield Cluster.create(
            name,
            {"p4d": "p4d.24xlarge"},
            time_scale=0.1,
            owner=this_process(),
            gates=GATES,
            say=lambda line: print(line, file=sys.stderr),
        )
    finally:
        remove_cluster(name)


@pytest.fixture(scope="module")
def p4d(cluster: Cluster) -> Node:
    return cluster.node("p4d")


@dataclass(frozen=True, slots=True)
class Gang:
    """A group, and pods that share its claim; `own` pods of it have a claim of their own instead."""

    name: str
    template: str
    size: int
    own: int

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{number}" for number in range(self.size + self.own))

    def objects(self, namespace: str, node: Node) -> Iterator[dict[str, Any]]:
        claim = {"name": "gpu", "resourceClaimTemplateName": self.template}
        yield {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": {"schedulingPolicy": {"gang": {"minCount": self.size}}, "resourceClaims": [claim]},
        }
        for number, name in enumerate(self.pods):
            made = claiming(name, namespace, node, self.template if number < self.size else "small-own")
            made["spec"]["restartPolicy"] = "Always"
            made["spec"]["schedulingGroup"] = {"podGroupName": self.name}
            yield made


@dataclass(slots=True)
class Gangs:
    """Gangs that come and go, whole or in pieces; `alive` are the pods that nobody has deleted, by gang."""

    cluster: Cluster
    node: Node
    namespace: str
    rng: random.Random
    agent: Callable[[], AgentPod]
    made: int = 0
    gangs: dict[str, Gang] = field(default_factory=dict)
    alive: dict[str, set[str]] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def come(self) -> None:
        """One more gang, unless there are many."""
        if len(self.alive) >= MOST_GANGS:
            return
        size = self.rng.randint(1, MOST_PODS)
        name = f"g{self.made}"
        gang = Gang(name, TEMPLATES[self.made % len(TEMPLATES)], size, self.rng.randint(0, 1))
        self.made += 1
        self.gangs[name], self.alive[name] = gang, set(gang.pods)
        for each in gang.objects(self.namespace, self.node):
            self._insist(partial(self.cluster.apply, each))
        self.done["gangs"] += 1

    def go(self) -> None:
        """A pod goes, by force or not, or a gang's pods before its group, or its group before its pods."""
        if not self.alive:
            return
        name = self.rng.choice(sorted(self.alive))
        way = self.rng.choice(("pod", "pod by force", "group last", "group first"))
        self.done[way] += 1
        if way.startswith("pod"):
            self._delete(name, self.rng.choice(sorted(self.alive[name])), force=way == "pod by force")
            if self.alive[name]:
                return
            way = "group last"
        group = f"{GROUPS.format(self.namespace)}/{name}"
        if way == "group first":
            self._insist(lambda: self.cluster.api.delete(group))
            # The pods go on; only some of the gangs lose them at once.
            if self.rng.random() < 0.5:
                self.done["group alone"] += 1
                return
        for pod in sorted(self.alive[name]):
            self._delete(name, pod)
        self._insist(lambda: self.cluster.api.delete(group))
        del self.alive[name]

    def _delete(self, gang: str, pod: str, *, force: bool = False) -> None:
        self.alive[gang].discard(pod)
        self.running.pop(pod, None)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        self._insist(lambda: self.cluster.api.delete(f"{path}?gracePeriodSeconds=0" if force else path))

    @staticmethod
    def _insist(act: Callable[[], None]) -> None:
        """Do it once the API server answers; what was done though nobody answered is done again."""

        def done() -> bool:
            with suppress(OSError):
                act()
                return True
            return False

        wait_for("the API server takes it", done, timeout=60)

    def look(self) -> None:
        """Pods that ran still run in the same container, and the node holds the device that each sees."""
        with suppress(ClusterError, OSError):
            seen = first_lines(self.cluster, self.namespace)
            items = pods_in(self.cluster, self.namespace)
            every = {pod for pods in self.alive.values() for pod in pods}
            see_still_running(items, every, self.running)
            held = self._held()
            still = {each["metadata"]["name"] for each in pods_in(self.cluster, self.namespace)}
            for pod, line in seen.items():
                if _says_device(line) and pod in every & still:
                    assert line.removeprefix("UUID: ") in held, f"{pod} runs on {line}: {self._evidence(pod)}"
                    self.done["looks at running pods"] += 1

    def _evidence(self, pod: str) -> str:
        """What all parts say of a pod, whose share nobody holds, and of its claim."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        found = self.cluster.api.get(path)
        names = [each["resourceClaimName"] for each in found["status"].get("resourceClaimStatuses") or ()]
        claims = [each for each in claims_in(self.cluster, self.namespace) if each["metadata"]["name"] in names]
        uids = [each["metadata"]["uid"] for each in claims]
        log = [line for line in self.agent().log.splitlines() if any(each in line for each in (*names, *uids))]
        events = self.node.run(TRANCHE, "events", "-o", "json")
        told = [
            each for each in json.loads(events)["events"] if any(uid in json.dumps(each) for uid in (*names, *uids))
        ]
        group = self.cluster.kubectl("get", "podgroups", "--namespace", self.namespace)
        return "\n".join(map(str, (time.strftime("%H:%M:%S"), found, claims, *log, *told, group)))

    def _held(self) -> set[str]:
        """The UUIDs of what the node's shares hold, or have parts of."""
        gpus = json.loads(self.node.run(TRANCHE, "gpus", "-o", "json"))["gpus"]
        found = {gpu["uuid"] for gpu in gpus if gpu["allocationIds"]}
        taken = (each for gpu in gpus for each in gpu["slices"] if each["allocationIds"])
        return found | {device["uuid"] for each in taken for device in each["devices"]}

    def calm(self) -> None:
        """Every pod runs or waits; a gang's pods see one device, and two gangs see two, unless both have parts of it."""

        def explain() -> str:
            listed = self.cluster.kubectl("get", "podgroups,pods,resourceclaims", "--namespace", self.namespace)
            events = self.cluster.kubectl(
                "get", "events", "--namespace", self.namespace, "--field-selector=type=Warning"
            )
            return "\n".join([*unsettled(self.cluster, self.namespace), listed, events[-6000:]])

        wait_for(
            "every pod runs or waits",
            lambda: not unsettled(self.cluster, self.namespace),
            timeout=CALM_SECONDS,
            explain=explain,
        )
        self.look()
        wait_for("each running pod has said its device", lambda: all(map(_says_device, self._lines().values())))
        said = self._lines()
        users: dict[str, set[str]] = {}
        for pod, line in said.items():
            gang, number = pod.rsplit("-", 1)
            own = int(number) >= self.gangs[gang].size
            users.setdefault(line, set()).add(pod if own else gang)
        whole = {line: who for line, who in users.items() if not self._has_part(who)}
        assert all(len(who) == 1 for who in whole.values()), whole
        for each in self.gangs.values():
            lines = {said[pod] for pod in each.pods[: each.size] if pod in said}
            assert len(lines) <= 1, f"{each} sees {lines}"

    def _has_part(self, users: set[str]) -> bool:
        return all(who in self.gangs and self.gangs[who].template == "part" for who in users)

    def _lines(self) -> dict[str, str]:
        return first_lines(self.cluster, self.namespace)


def _says_device(line: str) -> bool:
    """A log that cannot be read for now has other words."""
    return line.startswith("UUID: ")


def test_no_claim_of_a_living_pod_of_a_gang_is_free_and_none_is_left(
    cluster: Cluster, p4d: Node, namespace: str, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("TRANCHE_GANG_SEED", str(random.randrange(10**6)))
    print(f"TRANCHE_GANG_SEED={seed}")
    rng = random.Random(seed)
    killed: Counter[str] = Counter()
    with claims_on(cluster, p4d, "mixed", "--share-by-mps") as agent:
        cluster.apply(
            claim_template("small", namespace, requests={"memory": "4Gi"}),
            claim_template("small-own", namespace, requests={"memory": "4Gi"}),
            claim_template("medium", namespace, device_class="2g-10gb.gpu.tranche.dev"),
            claim_template("whole", namespace, device_class="whole.gpu.tranche.dev"),
            claim_template("part", namespace, device_class="shared.gpu.tranche.dev", requests={"memory": "9Gi"}),
        )
        outages = Outages(cluster, p4d, agent)
        gangs = Gangs(cluster, p4d, namespace, rng, lambda: outages.agent)
        parts = cycle(rng.sample(PARTS, len(PARTS)))
        gangs.come()
        wait_for("a claim is reserved for its group", lambda: "podgroups" in _users(cluster, namespace))
        while gangs.made < GANGS:
            gangs.come()
            if killed.total() * GANGS_PER_KILL < gangs.made:
                part = next(parts)
                time.sleep(rng.uniform(0.0, 2.0))
                outages.kill(part)
                killed[part] += 1
                if outages.api_answers:
                    gangs.go()
                time.sleep(rng.uniform(0.0, 3.0))
                outages.end_all()
            while len(gangs.alive) > MOST_GANGS // 2 or (gangs.alive and rng.random() < 0.6):
                gangs.go()
            gangs.look()
        gangs.calm()
        cluster.api.delete_all(GROUPS.format(namespace))
        gangs.look()
        gangs.alive.clear()
        gone(cluster, p4d, namespace)
    did = ", ".join(f"{count} {what}" for what, count in sorted(gangs.done.items()))
    record_property("figure", f"gangs with claims through {killed.total()} kills: none shared, none lost; {did}")


def _users(cluster: Cluster, namespace: str) -> set[str]:
    """What the claims are reserved for."""
    claims = claims_in(cluster, namespace)
    return {user["resource"] for claim in claims for user in (claim.get("status") or {}).get("reservedFor") or ()}
