"""What a scheduler with a defect, or somebody with its rights, does to claims: the node refuses it, says why, harms nobody."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from cluster.claims import DRIVER, SLICES, claim_template, claims_in, devices_given, devices_published
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import log, phase, phases, pod, pods_in

from tests.cluster.test_claims_on_nodes import LOOK, TRANCHE, claiming, claims_on, gone, shares, wait_for_phases

pytestmark = pytest.mark.cluster

GROUP = "/apis/resource.k8s.io/v1"


@dataclass(frozen=True)
class Planter:
    """Does what a scheduler with a defect might do, with pods that no other scheduler looks at."""

    cluster: Cluster
    node: Node
    namespace: str
    script: str = LOOK

    @property
    def claims(self) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/resourceclaims"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def plant(self, name: str, device: str, *, pool: str = "", consumed: Mapping[str, str] | None = None) -> None:
        """Give a claim that device, and bind its pod to the node."""
        self.make_claim(name)
        user = self.make_pod(name, name)
        self.allocate(name, device, {name: user}, pool=pool, consumed=consumed)
        self.bind(name)

    def make_claim(self, name: str) -> None:
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.tranche.dev"}}]
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        self.cluster.api.request("POST", self.claims, {**claim, "spec": {"devices": {"requests": requests}}})

    def make_pod(self, name: str, claim: str) -> str:
        """Its uid. Nobody schedules it."""
        body = pod(name, self.namespace, script=self.script)
        body["spec"] |= {"schedulerName": "nobody", "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        return str(self.cluster.api.request("POST", self.pods, body)["metadata"]["uid"])

    def allocate(
        self,
        claim: str,
        device: str,
        users: Mapping[str, str],
        *,
        pool: str = "",
        consumed: Mapping[str, str] | None = None,
    ) -> None:
        """Write what the claim is given, for pods by name and uid."""
        result: dict[str, Any] = {"request": "gpu", "driver": DRIVER, "pool": pool or self.node.name, "device": device}
        if consumed is not None:
            result |= {"consumedCapacity": dict(consumed), "shareID": str(uuid.uuid4())}
        reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in users.items()]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
        self.cluster.api.merge(f"{self.claims}/{claim}/status", {"status": status})

    def bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node.name}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.cluster.api.request("POST", f"{self.pods}/{name}/binding", binding)

    def delete(self, *names: str) -> None:
        """Delete pods and their claims of the same names."""
        for name in names:
            self.cluster.api.delete(f"{self.pods}/{name}")
            self.cluster.api.delete(f"{self.claims}/{name}")

    def wait_for_reason(self, name: str, reason: str) -> None:
        """Wait until the events of the pod say why it cannot start."""
        wait_for(
            f"the events of {name} say: {reason}",
            lambda: reason in self._warnings(name),
            explain=lambda: self.cluster.kubectl("describe", "pod", name, "--namespace", self.namespace),
        )

    def saw(self, name: str) -> str:
        """The device that a running pod has said it sees."""
        return str(wait_for(f"{name} has looked", lambda: log(self.cluster, self.namespace, name).partition("\n")[0]))

    def _warnings(self, name: str) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name={name}"
        items = self.cluster.api.get(path)["items"]
        return "\n".join(each["message"] for each in items if each["reason"] == "FailedPrepareDynamicResources")


@dataclass(frozen=True)
class Neighbour:
    """A pod that has a slice by the book: `unharmed` says whether it is as it was, and nothing was changed on any GPU."""

    planter: Planter
    claim: str
    device: str
    gpu: str
    container: str
    calls: int

    @classmethod
    def begin(cls, planter: Planter) -> Neighbour:
        cluster, namespace = planter.cluster, planter.namespace
        cluster.apply(claim_template("gpu", namespace, requests={"memory": "4Gi"}))
        cluster.apply(claiming("neighbour", namespace, planter.node))
        wait_for_phases(cluster, namespace, Running=1)
        (claim,) = claims_in(cluster, namespace)
        (device,) = devices_given(claim)
        made = cls(planter, claim["metadata"]["name"], device, device.rpartition("-1g")[0], "", 0)
        return replace(made, container=made._container(), calls=planter.node.machine.total_change_calls())

    def unharmed(self) -> bool:
        now = (self._container(), self.planter.node.machine.total_change_calls())
        return now == (self.container, self.calls)

    def _container(self) -> str:
        (item,) = [
            each
            for each in pods_in(self.planter.cluster, self.planter.namespace)
            if each["metadata"]["name"] == "neighbour"
        ]
        (status,) = item["status"]["containerStatuses"]
        return str(status["containerID"]) if "running" in status["state"] else str(status["state"])


@pytest.mark.long
def test_what_a_scheduler_got_wrong_is_refused_in_the_pods_events(cluster: Cluster, p4d: Node, namespace: str) -> None:
    planter = Planter(cluster, p4d, namespace)
    with claims_on(cluster, p4d):
        neighbour = Neighbour.begin(planter)
        other = "gpu-1" if neighbour.gpu == "gpu-0" else "gpu-0"
        planter.plant("overlap", neighbour.gpu)
        planter.plant("unknown", f"{other}-1g-5gb-9")
        planter.plant("elsewhere", other, pool="another")
        planter.plant("too-much", f"{other}-shared", consumed={"memory": "900Gi"})
        planter.wait_for_reason("overlap", f"overlaps what claim {namespace}/{neighbour.claim} holds")
        planter.wait_for_reason("unknown", "which this node does not have")
        planter.wait_for_reason("elsewhere", "was allocated in pool another")
        planter.wait_for_reason("too-much", f"of memory on {other}-shared: the device has only")
        explained = p4d.run(TRANCHE, "explain", "pod/overlap", "--namespace", namespace)
        assert f"node {p4d.name} refuses to prepare them: claim overlap: GpuBusy: " in explained
        assert p4d.run(TRANCHE, "explain", "pod/neighbour", "--namespace", namespace).startswith(
            "Has: it has its devices"
        )
        assert neighbour.unharmed()
        assert phases(cluster, namespace)["Running"] == 1
        # The neighbour ends, and the kubelet asks again: after more than a minute, or when it begins anew.
        cluster.kubectl("delete", "pod", "neighbour", "--namespace", namespace)
        p4d.restart_kubelet()
        wait_for("the refused pod runs", lambda: phase(cluster, namespace, "overlap") == "Running", timeout=240)
        planter.delete("overlap", "unknown", "elsewhere", "too-much")
        gone(cluster, p4d, namespace)


@pytest.mark.long
def test_a_pool_without_an_allocated_device_is_whole_again_and_what_was_given_meanwhile_is_refused(
    cluster: Cluster, p4d: Node, namespace: str
) -> None:
    planter = Planter(cluster, p4d, namespace)
    with claims_on(cluster, p4d):
        neighbour = Neighbour.begin(planter)
        device = devices_published(cluster, p4d)[neighbour.device]

        def whole() -> bool:
            return devices_published(cluster, p4d).get(neighbour.device) == device

        slices = cluster.api.get(f"{GROUP}/resourceslices?fieldSelector=spec.nodeName={p4d.name}")["items"]
        (shown,) = [
            each
            for each in slices
            if any(item["name"] == neighbour.device for item in each["spec"].get("devices") or ())
        ]
        rest = [item for item in shown["spec"]["devices"] if item["name"] != neighbour.device]
        cluster.api.merge(f"{GROUP}/resourceslices/{shown['metadata']['name']}", {"spec": {"devices": rest}})
        # For a moment a scheduler finds the whole GPU free.
        planter.plant("late", neighbour.gpu)
        wait_for("the device is shown as before", whole)
        planter.wait_for_reason("late", f"overlaps what claim {namespace}/{neighbour.claim} holds")

        cluster.api.delete_all(SLICES)
        wait_for("all is shown again", lambda: whole() and len(devices_published(cluster, p4d)) > 300)
        assert neighbour.unharmed()
        planter.delete("late")
        gone(cluster, p4d, namespace)


def test_a_claim_that_was_deleted_made_anew_or_has_two_pods(cluster: Cluster, p4d: Node, namespace: str) -> None:
    planter = Planter(cluster, p4d, namespace)
    with claims_on(cluster, p4d):
        neighbour = Neighbour.begin(planter)
        number = 1 if neighbour.gpu == "gpu-0" else 0
        given = f"gpu-{number}-2g-10gb-0"

        # Its claim was deleted before the kubelet heard of the pod.
        planter.make_claim("deleted")
        planter.make_pod("deleted", "deleted")
        planter.cluster.api.delete(f"{planter.claims}/deleted")
        planter.bind("deleted")
        planter.wait_for_reason("deleted", '"deleted" not found')

        # Two pods have one claim, which the kubelet asks for twice: they have the same slice.
        planter.make_claim("both")
        users = {name: planter.make_pod(name, "both") for name in ("one", "two")}
        planter.allocate("both", given, users)
        planter.bind("one")
        wait_for("the first runs", lambda: phase(cluster, namespace, "one") == "Running")
        p4d.kill9("kubelet")
        p4d.start_component("kubelet")
        planter.bind("two")
        wait_for("the second runs", lambda: phase(cluster, namespace, "two") == "Running")
        assert planter.saw("one") == planter.saw("two")
        assert len(shares(p4d)) == 2
        before = neighbour.planter.node.machine.total_change_calls()

        # The claim is made anew under the same name while its pods run, and given what they have.
        planter.cluster.api.delete(f"{planter.claims}/both")
        planter.make_claim("both")
        late = planter.make_pod("late", "both")
        planter.allocate("both", given, {"late": late})
        planter.bind("late")
        planter.wait_for_reason("late", "both")
        assert {name: phase(cluster, namespace, name) for name in ("one", "two")} == dict.fromkeys(
            ("one", "two"), "Running"
        )
        assert p4d.machine.total_change_calls() == before
        planter.delete("one", "two", "late", "deleted", "both")
        gone(cluster, p4d, namespace)
