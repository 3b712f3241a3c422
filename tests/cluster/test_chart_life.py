"""The life of the chart's release under 56 running pods: none of them notices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from cluster.chart_values import simulated_machines
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.helm_release import HelmRelease
from cluster.node import Node
from cluster.node_layouts import label, node_object, wait_for_slices, wait_for_state
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, deployment, first_lines, phase, phases, pod, pods_in
from release.image import MadeImage

pytestmark = pytest.mark.cluster

SLICE = "nvidia.com/mig-1g.5gb"
# Each pod says which slice it has.
SAY = f"nvidia-smi -L | grep MIG; {FOREVER}"
# What an administrator can do wrong, and what the agent's pod then says.
BROKEN: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({"image": {"tag": "none"}}, {"ErrImagePull", "ImagePullBackOff"}),
    ({"extraArgs": ["--config-file=/nowhere"]}, {"Error", "CrashLoopBackOff"}),
)


@dataclass(frozen=True)
class NodeTraces:
    """What an agent can leave on a node object and in a node's folders."""

    labels: Mapping[str, str]
    annotations: frozenset[str]
    conditions: frozenset[str]
    taints: str
    unschedulable: bool
    files: frozenset[str]

    @classmethod
    def now(cls, cluster: Cluster, node: Node) -> NodeTraces:
        found = node_object(cluster, node)
        meta, spec = found["metadata"], found["spec"]
        folders = (node.paths.device_plugins, node.paths.cdi)
        files = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
        return cls(
            meta["labels"],
            frozenset(meta.get("annotations", {})),
            frozenset(each["type"] for each in found["status"]["conditions"]),
            str(spec.get("taints", [])),
            spec.get("unschedulable", False),
            # The kubelet's own: its socket, and what it remembers of devices.
            frozenset(files - {"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"}),
        )

    def assert_no_more_than(self, before: NodeTraces, *, asked: Mapping[str, str]) -> None:
        """Nothing is there beside what was before, when agents of other tests may have left something, and what was asked for."""
        assert self.labels.items() - before.labels.items() == asked.items()
        assert self.annotations <= before.annotations
        assert self.conditions <= before.conditions
        assert self.files <= before.files
        assert (self.taints, self.unschedulable) == (before.taints, before.unschedulable)


@dataclass(frozen=True)
class Workload:
    """The pods of a namespace, each with its slice, and one pod too many for the node."""

    cluster: Cluster
    node: Node
    namespace: str

    @classmethod
    def of_56(cls, cluster: Cluster, node: Node, namespace: str) -> Workload:
        cluster.apply(deployment("work", namespace, 56, script=SAY, limits={SLICE: 1}))
        wait_for("56 pods run", lambda: phases(cluster, namespace) == {"Running": 56}, timeout=300)
        cluster.apply(pod("too-many", namespace, script=SAY, limits={SLICE: 1}))
        return cls(cluster, node, namespace)

    def now(self) -> dict[str, tuple[Any, ...]]:
        """Each running pod with its container, how often that was started again, and its slice; the slices of the machine."""
        given = self.given()
        found: dict[str, tuple[Any, ...]] = {
            "machine": tuple(line for line in self.node.run("nvidia-smi", "-L").splitlines() if "MIG" in line)
        }
        for each in pods_in(self.cluster, self.namespace):
            name = each["metadata"]["name"]
            if name != "too-many":
                (status,) = each["status"]["containerStatuses"]
                container = (status["containerID"], status["restartCount"])
                found[name] = (each["metadata"]["uid"], each["status"]["phase"], *container, given[name])
        return found

    def given(self) -> dict[str, str]:
        return first_lines(self.cluster, self.namespace)

    def waits(self) -> bool:
        return phase(self.cluster, self.namespace, "too-many") == "Pending"


def objects_of(cluster: Cluster, release: HelmRelease) -> list[str]:
    """Every object of the release, by what the chart labels its objects with, and what is in its namespace."""
    kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    selector = f"--selector=app.kubernetes.io/instance={release.name}"
    wide = cluster.kubectl("get", kinds, "--output=name", selector)
    events = cluster.kubectl("get", "roles,rolebindings", "--output=name", "--namespace=default", selector)
    inside = "daemonsets,pods,jobs,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,leases,secrets"
    named = cluster.kubectl("get", inside, "--output=name", "--namespace", release.namespace)
    kubernetes = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
    return sorted({*wide.split(), *events.split(), *named.split()} - kubernetes)


def pods_of_agents(cluster: Cluster, release: HelmRelease) -> list[str]:
    return [each["metadata"]["uid"] for each in pods_in(cluster, release.namespace)]


def why_not_ready(cluster: Cluster, release: HelmRelease) -> set[str]:
    """Why containers of agents' pods do not run, in the kubelet's words."""
    statuses = [
        each for item in pods_in(cluster, release.namespace) for each in item["status"].get("containerStatuses", ())
    ]
    states = [state for each in statuses for state in (*each["state"].values(), *each["lastState"].values())]
    return {state["reason"] for state in states if "reason" in state}


def blames(cluster: Cluster, release: HelmRelease, reasons: set[str]) -> bool:
    return bool(why_not_ready(cluster, release) & reasons)


@pytest.mark.long
def test_56_pods_run_through_upgrades_rollbacks_an_uninstallation_and_a_reinstallation(
    cluster: Cluster, p4d: Node, namespace: str, agent_image: MadeImage
) -> None:
    agents = f"{namespace}-agents"
    cluster.kubectl("create", "namespace", agents)
    cluster.kubectl("label", "namespace", agents, "pod-security.kubernetes.io/enforce=privileged")
    values = {
        **simulated_machines(cluster.folder),
        "nodeSelector": {"kubernetes.io/hostname": p4d.name},
        "migStrategy": "mixed",
        "deviceListStrategy": "cdi-cri",
    }
    release = HelmRelease(cluster, "life", agents, agent_image, values)
    before = NodeTraces.now(cluster, p4d)
    try:
        release.install()
        label(cluster, p4d, "all-1g.5gb")
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        workload = Workload.of_56(cluster, p4d, namespace)
        undisturbed = workload.now()
        assert len(set(workload.given().values())) == 56
        assert NodeTraces.now(cluster, p4d).files >= {"k8s.device-plugin.nvidia.com-gpu.json"}

        # An upgrade, with another pod of the agent.
        first = pods_of_agents(cluster, release)
        release.upgrade(podAnnotations={"example.com/revision": "2"})
        release.wait_until_ready()
        assert pods_of_agents(cluster, release) != first
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        assert workload.now() == undisturbed

        # Values that the chart refuses: Helm changes nothing.
        served = pods_of_agents(cluster, release)
        for wrong in ({"migStrategy": "several"}, {"mig": {"strategy": "mixed"}}, {"image": {"tga": "1"}}):
            with pytest.raises(ClusterError):
                release.upgrade(**wrong)
        assert pods_of_agents(cluster, release) == served

        # An image that does not exist, and an agent that ends at once.
        for broken, reasons in BROKEN:
            release.upgrade(**broken)
            wait_for(f"the agent's pod says one of {reasons}", partial(blames, cluster, release, reasons))
            assert workload.now() == undisturbed
            release.rollback()
            release.wait_until_ready()
            wait_for_slices(cluster, p4d, mig_1g_5gb=56)
            assert workload.now() == undisturbed
            assert workload.waits()

        release.uninstall()
        assert objects_of(cluster, release) == []
        NodeTraces.now(cluster, p4d).assert_no_more_than(before, asked={"nvidia.com/mig.config": "all-1g.5gb"})
        assert workload.now() == undisturbed
        assert workload.waits()

        release.install()
        wait_for_slices(cluster, p4d, mig_1g_5gb=56)
        wait_for_state(cluster, p4d, "success")
        assert workload.now() == undisturbed
        assert workload.waits()

        # What becomes free is given once: to the pod that waited, or to the one that came for the one that went.
        gone = next(name for name in undisturbed if name.startswith("work"))
        cluster.kubectl("delete", "pod", gone, "--namespace", namespace)
        wait_for(
            "56 pods run again and one waits",
            lambda: phases(cluster, namespace) == {"Running": 56, "Pending": 1},
            explain=lambda: str(phases(cluster, namespace)),
        )
        assert len(set(workload.given().values())) == 56
        release.uninstall()
        assert objects_of(cluster, release) == []
    finally:
        label(cluster, p4d, None)
        cluster.kubectl("delete", "namespace", agents, "--wait=false")
        p4d.renew_machine()
