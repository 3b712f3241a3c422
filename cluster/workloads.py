"""Pods and Deployments of busybox as objects, and questions about what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cluster.cluster import Cluster
from cluster.images import BUSYBOX

FOREVER = "trap 'exit 0' TERM; sleep 1000000 & wait"


def pod(
    name: str, namespace: str, *, script: str = FOREVER, node: str = "", limits: Mapping[str, int | str] | None = None
) -> dict[str, Any]:
    """A pod that runs a shell script. On `node` if one is named; the scheduler still decides whether it fits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _spec(script, node, limits or {}, restart="Never"),
    }


def deployment(
    name: str,
    namespace: str,
    replicas: int,
    *,
    script: str = FOREVER,
    node: str = "",
    limits: Mapping[str, int | str] | None = None,
) -> dict[str, Any]:
    """A Deployment of such pods, labelled app=`name`."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": _spec(script, node, limits or {}, restart="Always"),
            },
        },
    }


def pods_in(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return items


def phases(cluster: Cluster, namespace: str) -> Counter[str]:
    return Counter(item["status"]["phase"] for item in pods_in(cluster, namespace))


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    return str(cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["phase"])


def log(cluster: Cluster, namespace: str, name: str) -> str:
    """What the container of a pod has printed.

    Raises:
        ClusterError: it has not begun, or its kubelet does not answer.
    """
    return cluster.api.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log")


SHOW_DEVICES = "env | sed -n 's/^TRANCHE_DEVICE_[^=]*=//p'"
"""A shell command that prints the UUIDs of what the device plugin gave its container, one a line."""


def first_lines(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The first line that each running pod has printed, by pod. Errors as for `log`."""
    running = [each["metadata"]["name"] for each in pods_in(cluster, namespace) if each["status"]["phase"] == "Running"]
    return {name: log(cluster, namespace, name).partition("\n")[0] for name in running}


def _spec(script: str, node: str, limits: Mapping[str, int | str], *, restart: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "resources": {"limits": {name: str(amount) for name, amount in limits.items()}},
            }
        ],
        "restartPolicy": restart,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return spec
