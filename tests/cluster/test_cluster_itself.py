"""The test cluster: what it offers works, and its parts can be killed and come back."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.images import write_busybox
from cluster.node import Node
from cluster.node_layouts import forget_stale_counts
from cluster.registry import registry_of
from cluster.units import Unit
from cluster.waiting import wait_for
from cluster.workloads import deployment, phase, phases, pod, pods_in
from release.image import MadeImage

from tests.support.length import some_of

pytestmark = pytest.mark.cluster

_ASK = """
import os, urllib.request
from tranche.kubernetes.api.kubeconfig import find_api_server
server = find_api_server(None, os.environ)
asked = urllib.request.Request(f"{server.url}/version", headers={"Authorization": f"Bearer {server.token()}"})
with urllib.request.urlopen(asked, context=server.tls) as answer:
    assert answer.status == 200
print(server.url, server.namespace)
"""


def test_a_pod_runs_and_can_be_looked_at(cluster: Cluster, p4d: Node, namespace: str) -> None:
    cluster.apply(pod("one", namespace, script="echo from inside; sleep 1000", node=p4d.name))

    wait_for("the pod runs", lambda: phase(cluster, namespace, "one") == "Running")

    assert cluster.kubectl("logs", "one", "--namespace", namespace) == "from inside\n"
    assert cluster.kubectl("exec", "one", "--namespace", namespace, "--", "hostname") == "one\n"


def test_nodes_are_of_the_pinned_release_and_report_no_gpus_by_themselves(cluster: Cluster, p4d: Node) -> None:
    status = cluster.api.get(f"/api/v1/nodes/{p4d.name}")["status"]

    assert status["nodeInfo"]["kubeletVersion"].startswith("v1.")
    assert tuple(map(int, status["nodeInfo"]["kubeletVersion"][1:].split(".")[:2])) >= (1, 36)
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
    # The kubelet remembers what an agent of another test has offered, as none.
    assert not {
        name for name, count in status["allocatable"].items() if name.startswith("nvidia.com/") and count != "0"
    }


def test_a_count_that_the_kubelet_knows_nothing_of_is_taken_off_the_node(cluster: Cluster, p4d: Node) -> None:
    left, path = f"nvidia.com/mig-9g.{os.getpid()}gb", f"/api/v1/nodes/{p4d.name}"

    def allocatable() -> dict[str, str]:
        return dict(cluster.api.get(path)["status"]["allocatable"])

    cluster.api.merge(f"{path}/status", {"status": {"capacity": {left: "8"}}})
    wait_for("the kubelet makes it allocatable", lambda: allocatable().get(left) == "8")

    assert left in forget_stale_counts(cluster)[p4d.name]
    wait_for("it is counted no more", lambda: left not in allocatable())
    assert forget_stale_counts(cluster) == {}


def test_each_node_has_its_own_machine_and_the_kubelet_in_its_usual_place(p4d: Node, g4dn: Node) -> None:
    p4d_gpus, g4dn_gpus = p4d.run("nvidia-smi", "-L"), g4dn.run("nvidia-smi", "-L")

    assert p4d_gpus.count("A100") == 8
    assert g4dn_gpus.count("T4") == 1
    for node in (p4d, g4dn):
        inside = node.run("stat", "--format=%i", "/var/lib/kubelet/device-plugins/kubelet.sock")
        assert int(inside) == (node.paths.device_plugins / "kubelet.sock").stat().st_ino
        assert node.paths.pod_resources_socket.is_socket()


@pytest.mark.parametrize("own_network", [True, False])
def test_a_pod_reaches_the_api_server_with_what_the_kubelet_gives_it(
    cluster: Cluster, p4d: Node, agent_image: MadeImage, namespace: str, own_network: bool
) -> None:
    """The agent's own way: the Service's address, the account's token, the cluster's authority."""
    p4d.import_image(agent_image.archive, agent_image.name, agent_image.digest)
    asking = pod("asks", namespace, node=p4d.name)
    asking["spec"] |= {"hostNetwork": not own_network}
    asking["spec"]["containers"][0] |= {"image": agent_image.name, "command": ["python", "-c", _ASK]}
    cluster.apply(asking)

    wait_for("the pod has ended", lambda: phase(cluster, namespace, "asks") in ("Succeeded", "Failed"))

    address = cluster.record.service_address
    assert cluster.kubectl("logs", "asks", "--namespace", namespace).split() == [f"https://{address}:443", namespace]


def test_nodes_say_which_instances_they_are(cluster: Cluster, p4d: Node, g4dn: Node) -> None:
    for node, instance in ((p4d, "p4d.24xlarge"), (g4dn, "g4dn.xlarge")):
        labels = cluster.api.get(f"/api/v1/nodes/{node.name}")["metadata"]["labels"]
        assert labels["node.kubernetes.io/instance-type"] == instance


def test_an_image_is_pulled_from_a_registry_on_loopback_and_one_that_is_not_there_is_named(
    cluster: Cluster, g4dn: Node, namespace: str, tmp_path: Path
) -> None:
    image = tmp_path / "image.tar"
    write_busybox(image, "tools/busybox:1", note=namespace)
    with registry_of(cluster) as registry:
        there, missing = pod("there", namespace, node=g4dn.name), pod("missing", namespace, node=g4dn.name)
        name = registry.push(image, "tools/busybox", "1")
        nothing = f"{name}-of-another-name"
        for each, named in ((there, name), (missing, nothing)):
            each["spec"]["containers"][0] |= {"image": named, "imagePullPolicy": "Always"}
        cluster.apply(there, missing)

        wait_for("the pod runs", lambda: phase(cluster, namespace, "there") == "Running")
        described = partial(cluster.kubectl, "describe", "pod", "missing", "--namespace", namespace)
        wait_for("the refusal is visible", lambda: f"{nothing}: not found" in described(), explain=described)


def test_a_program_in_the_background_of_a_node_is_ended_by_name_or_with_the_node(cluster: Cluster, g4dn: Node) -> None:
    first = g4dn.start_program("first", ["sleep", "1000"])
    second = g4dn.start_program("second", ["sleep", "1000"])
    assert [_runs(first), _runs(second)] == [True, True]

    first.stop()
    assert [_runs(first), _runs(second)] == [False, True]

    g4dn.power_off()
    assert not g4dn.cgroup.running()
    assert [_runs(first), _runs(second)] == [False, False]
    g4dn.start(cluster.api)


def test_a_service_accounts_kubeconfig_has_its_rights_and_no_more(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", "--namespace", namespace)
    cluster.kubectl("create", "role", "reader", "--verb=get", "--resource=configmaps", "--namespace", namespace)
    binding = ("rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader")
    cluster.kubectl("create", *binding, "--namespace", namespace)
    file = cluster.account_kubeconfig(namespace, "reader")
    ask = ("auth", "can-i", "--kubeconfig", str(file), "--namespace", namespace)

    wait_for("the role is known", lambda: cluster.kubectl(*ask, "get", "configmaps") == "yes\n")
    with pytest.raises(ClusterError):
        cluster.kubectl(*ask, "get", "secrets")


def test_an_object_is_made_and_changed_and_a_field_that_nobody_knows_is_refused(
    cluster: Cluster, namespace: str
) -> None:
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": namespace}}
    for data in ({"first": "1", "both": "1"}, {"both": "2"}):
        cluster.apply({**made, "data": data})
        assert cluster.api.get(f"/api/v1/namespaces/{namespace}/configmaps/one")["data"] == data

    with pytest.raises(ClusterError, match="dates"):
        cluster.apply({**made, "dates": {}})
    with pytest.raises(ClusterError, match="no Confusion"):
        cluster.apply({**made, "kind": "Confusion"})


@pytest.mark.long
def test_pods_run_on_while_kubelet_and_containerd_are_killed(cluster: Cluster, p4d: Node, namespace: str) -> None:
    cluster.apply(deployment("steady", namespace, 2, node=p4d.name))
    wait_for("both pods run", lambda: phases(cluster, namespace) == {"Running": 2})
    before = _containers(cluster, namespace)

    p4d.kill9("kubelet")
    p4d.kill9("containerd")
    assert p4d.unit("kubelet").pid is None
    p4d.start(cluster.api)

    assert phases(cluster, namespace) == {"Running": 2}
    wait_for("their status is known again", lambda: _containers(cluster, namespace) == before)
    cluster.apply(pod("after", namespace, node=p4d.name))
    wait_for("a new pod runs", lambda: phase(cluster, namespace, "after") == "Running")


@pytest.mark.long
@pytest.mark.parametrize(
    # With the API server, those that follow it are started anew.
    "component",
    some_of(["kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler"], 2),
)
def test_a_killed_part_of_the_control_plane_comes_back_with_what_was_stored(
    cluster: Cluster, namespace: str, component: str
) -> None:
    cluster.kill9(component)
    assert cluster.control_plane.unit(component).pid is None
    cluster.start_component(component)

    found = wait_for("the namespace is there", lambda: cluster.api.get(f"/api/v1/namespaces/{namespace}"))
    assert found["metadata"]["name"] == namespace


def test_a_renewed_machine_has_its_first_state_and_its_old_uuids(p4d: Node) -> None:
    new = p4d.run("nvidia-smi", "-L")
    p4d.run("nvidia-smi", "--id=0", "--multi-instance-gpu=1")
    assert p4d.machine.gpus()[0].mig_pending

    p4d.renew_machine()

    assert not p4d.machine.gpus()[0].mig_pending
    assert p4d.run("nvidia-smi", "-L") == new


@pytest.mark.long
def test_a_node_that_lost_power_boots_with_its_pods(cluster: Cluster, g4dn: Node, namespace: str) -> None:
    cluster.apply(deployment("back", namespace, 1, node=g4dn.name))
    wait_for("the pod runs", lambda: phases(cluster, namespace) == {"Running": 1})
    before = _containers(cluster, namespace)

    boots = g4dn.machine.boots
    g4dn.reboot(cluster.api)

    assert g4dn.machine.boots == boots + 1
    wait_for("the pod's container was started anew", lambda: _containers(cluster, namespace) - before)


def _runs(unit: Unit) -> bool:
    return unit.pid is not None


def _containers(cluster: Cluster, namespace: str) -> set[str]:
    """The container ids of running pods."""
    statuses = [
        status for item in pods_in(cluster, namespace) for status in item["status"].get("containerStatuses", [])
    ]
    return {status["containerID"] for status in statuses if "running" in status["state"]}
