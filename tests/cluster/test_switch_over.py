"""A node goes over from NVIDIA's stack to Tranche and back, by the commands of the guide."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.agents import NAMESPACE, forget_rights
from cluster.chart_values import simulated_machines
from cluster.cluster import Cluster
from cluster.images import PAUSE
from cluster.node import Node
from cluster.node_layouts import label, labels, node_object, wait_for_slices
from cluster.waiting import wait_for
from release.helm import helm
from release.image import MadeImage

from tests.support.page_commands import executed

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
OPERATOR = "gpu-operator"
# The label that lets an operand on a node, to the label of its pods.
OPERANDS = {
    "mig-manager": "nvidia-mig-manager",
    "device-plugin": "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery": "gpu-feature-discovery",
}
_SWITCHES = [f"nvidia.com/gpu.deploy.{name}" for name in OPERANDS]
_GUIDE = "docs/guides/from-nvidia-stack.md"
EXECUTED = executed(_GUIDE)


def commands(title: str) -> str:
    """The commands of a section of the guide."""
    return "\n".join(command.text for command in EXECUTED if command.section == title)


@pytest.fixture
def nvidias_node(cluster: Cluster, p4d: Node) -> Iterator[Node]:
    """A node under the GPU Operator as far as labels, DaemonSets and ConfigMap go: the operands themselves only wait."""
    meta = {"name": "default-mig-parted-config", "namespace": OPERATOR}
    layouts = "version: v1\nmig-configs: {ours: [{devices: all, mig-enabled: true, mig-devices: {2g.10gb: 3}}]}"
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": layouts}},
        *(_operand(name, app) for name, app in OPERANDS.items()),
    )
    _remove_what_other_tests_installed(cluster)
    wished = {"nvidia.com/mig.config": "ours", "nvidia.com/gpu.present": "true", **dict.fromkeys(_SWITCHES, "true")}
    cluster.api.merge(f"/api/v1/nodes/{p4d.name}", {"metadata": {"labels": wished}})
    yield p4d
    cluster.api.merge(f"/api/v1/nodes/{p4d.name}", {"metadata": {"labels": dict.fromkeys(wished)}})
    cluster.kubectl("uncordon", p4d.name)
    cluster.kubectl("delete", "namespace", OPERATOR, "--timeout=120s")
    _remove_what_other_tests_installed(cluster)
    label(cluster, p4d, None)
    p4d.renew_machine()


@pytest.mark.long
def test_a_node_is_switched_over_and_back_by_the_commands_of_the_guide(
    cluster: Cluster, nvidias_node: Node, agent_image: MadeImage, tmp_path: Path
) -> None:
    node = nvidias_node
    for each in cluster.nodes:  # the uninstallation's job runs on any of them
        each.import_image(agent_image.archive, agent_image.name, agent_image.digest)
    repository, _, tag = agent_image.name.rpartition(":")
    image = {"repository": repository, "tag": tag}
    values = {**simulated_machines(cluster.folder), "image": image, "migStrategy": "single"}
    (tmp_path / "my-values.yaml").write_text(json.dumps(values))
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    wait_for("the operands run", lambda: running(cluster, node, OPERATOR) == len(OPERANDS))

    carry_out(commands("Switch a node over"), cluster, node, tmp_path)
    assert running(cluster, node, OPERATOR) == 0
    assert running(cluster, node, NAMESPACE) == 1
    assert not node_object(cluster, node)["spec"].get("unschedulable")
    wait_for_slices(cluster, node, gpu=24)

    carry_out(commands("Switch back"), cluster, node, tmp_path)
    wait_for("the operands run again", lambda: running(cluster, node, OPERATOR) == len(OPERANDS))
    assert running(cluster, node, NAMESPACE) == 0
    assert not node_object(cluster, node)["spec"].get("unschedulable")
    left = labels(cluster, node)
    assert {left[name] for name in _SWITCHES} == {"true"}
    assert (left["nvidia.com/mig.config"], left["nvidia.com/mig.config.state"]) == ("ours", "success")
    (last,) = re.findall(r"`(helm uninstall [^`]*)`", (ROOT / _GUIDE).read_text())
    carry_out(last, cluster, node, tmp_path)


def carry_out(script: str, cluster: Cluster, node: Node, folder: Path) -> None:
    """Run the commands in one shell, with the guide's NODE being that node."""
    assert script
    script = script.replace("NODE=gpu-1", f"NODE={node.name}")
    programs = [str(helm().parent), str(Path(cluster.binaries["kubectl"]).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(programs),
        "KUBECONFIG": str(cluster.kubeconfig),
        "NODE": node.name,
        "HELM_CACHE_HOME": str(folder / "helm"),
    }
    done = subprocess.run(
        ["bash", "-euxc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def running(cluster: Cluster, node: Node, namespace: str) -> int:
    """How many pods of the namespace run on the node."""
    items: list[dict[str, Any]] = cluster.api.get(
        f"/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName={node.name}"
    )["items"]
    return sum(item["status"]["phase"] == "Running" for item in items)


def _remove_what_other_tests_installed(cluster: Cluster) -> None:
    forget_rights(cluster)
    ours = "--selector=app.kubernetes.io/name=tranche-agent"
    kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    cluster.kubectl("delete", kinds, ours)
    cluster.kubectl("delete", "roles,rolebindings", ours, "--namespace=default")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def _operand(name: str, app: str) -> dict[str, Any]:
    labels = {"app": app}
    container = {"name": "operand", "image": PAUSE, "imagePullPolicy": "Never"}
    spec = {"nodeSelector": {f"nvidia.com/gpu.deploy.{name}": "true"}, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": app, "namespace": OPERATOR},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
