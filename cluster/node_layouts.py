"""A node's layout, asked for and awaited as an admin does it: by labels; and how long its cut takes, seen from outside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.agents import NAMESPACE
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for

LAYOUTS = f"/api/v1/namespaces/{NAMESPACE}/configmaps/tranche-layouts"
_LABEL, _STATE, _REASON = "nvidia.com/mig.config", "nvidia.com/mig.config.state", "tranche.dev/mig.config.reason"
_DOMAIN = "nvidia.com/"


def node_object(cluster: Cluster, node: Node) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cluster.api.get(f"/api/v1/nodes/{node.name}")
    return found


def labels(cluster: Cluster, node: Node) -> Mapping[str, str]:
    found: Mapping[str, str] = node_object(cluster, node)["metadata"].get("labels", {})
    return found


def label(cluster: Cluster, node: Node, layout: str | None) -> None:
    """Ask for a layout; None takes the wish back."""
    cluster.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {_LABEL: layout}}})


def write_layouts(cluster: Cluster, text: str) -> None:
    meta = {"name": "tranche-layouts", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": text}})


def remove_layouts(cluster: Cluster) -> None:
    cluster.kubectl("delete", "configmap", "tranche-layouts", "--namespace", NAMESPACE, "--ignore-not-found")


def condition(cluster: Cluster, node: Node) -> Mapping[str, str]:
    """The condition about the layout; empty when there is none."""
    conditions = node_object(cluster, node)["status"]["conditions"]
    return next((each for each in conditions if each["type"] == "MigLayoutApplied"), {})


def wait_for_state(cluster: Cluster, node: Node, state: str, reason: str | None = None) -> None:
    """Wait until the node shows state and reason; success must be about the layout that is wished now."""

    def shown() -> bool:
        now = labels(cluster, node)
        about_it = state != "success" or f"'{now.get(_LABEL)}'" in condition(cluster, node).get("message", "")
        return (now.get(_STATE), now.get(_REASON)) == (state, reason) and about_it

    wait_for(
        f"{node.name} shows {state}", shown, explain=lambda: f"{labels(cluster, node)}\n{condition(cluster, node)}"
    )


def slices(cluster: Cluster, node: Node) -> dict[str, int]:
    """What the node offers: allocatable devices by resource, without the domain and without resources that have none."""
    found = node_object(cluster, node)["status"]["allocatable"]
    return {
        name.partition("/")[2]: int(count) for name, count in found.items() if "nvidia.com/" in name and count != "0"
    }


def wait_for_slices(cluster: Cluster, node: Node, **offered: int) -> None:
    """Wait until the node offers exactly that; `mig_1g_5gb=56` stands for nvidia.com/mig-1g.5gb."""
    wanted = {name.replace("_", "-", 1).replace("_", "."): count for name, count in offered.items()}
    wait_for(
        f"{node.name} offers {wanted}",
        lambda: slices(cluster, node) == wanted,
        explain=lambda: f"{slices(cluster, node)}\n{condition(cluster, node)}",
    )


@dataclass(frozen=True, slots=True)
class CutTimes:
    """Spans of one cut, in seconds, one after the other.

    `before`: from the wish to the first call that asks the driver for a change. `driver`: from there until the last change has
    taken effect. `after`: from there until the effect is seen; below 0 when it was seen before the last change.
    """

    before: float
    driver: float
    after: float


def time_label(cluster: Cluster, node: Node, layout: str, offered: Mapping[str, int]) -> CutTimes:
    """Label a node, until it offers those slices (by resource, as `slices` gives them) and shows success.

    Raises:
        ClusterError: nothing was cut, or not these slices.
    """
    return _time_cut(
        node,
        lambda: label(cluster, node, layout),
        lambda: slices(cluster, node) == offered,
        lambda: wait_for_state(cluster, node, "success"),
    )


def time_command(node: Node, command: Sequence[str]) -> CutTimes:
    """Run a command on the node that cuts its GPUs, until it ends. How it ended is not known.

    Raises:
        ClusterError: it cut nothing.
    """
    unit = node.unit("timed")
    return _time_cut(node, lambda: node.start_program(unit.name, command), lambda: unit.pid is None, lambda: None)


def _time_cut(
    node: Node, wish: Callable[[], object], is_seen: Callable[[], bool], settle: Callable[[], None]
) -> CutTimes:
    machine = node.machine
    calls = machine.total_change_calls()
    wished_at = time.monotonic()
    wish()
    wait_for(f"{node.name} is cut", lambda: machine.total_change_calls() > calls, period=0.002)
    begun_at = time.monotonic()
    wait_for(f"the cut of {node.name} is seen", is_seen, period=0.01)
    seen_at = time.monotonic()
    settle()
    return CutTimes(begun_at - wished_at, machine.changed_at - begun_at, seen_at - machine.changed_at)


def forget_stale_counts(cluster: Cluster) -> dict[str, list[str]]:
    """Take off every node the devices that its status counts though its kubelet knows nothing of them: what was taken, by node.

    Five minutes after a plugin has gone, the kubelet forgets its resource and writes a count of zero, once. When no API server
    takes that write, the old count stays and is copied to what is allocatable; pods that name no node are placed there, and
    refused. On a node with an agent the agent mends it.
    """
    found = {node.name: names for node in cluster.nodes if (names := _stale(cluster, node))}
    for name, resources in found.items():
        none: dict[str, Any] = dict.fromkeys(resources)
        patch = {"status": {"capacity": none, "allocatable": none}}
        cluster.api.merge(f"/api/v1/nodes/{name}/status", patch)
    return found


def _stale(cluster: Cluster, node: Node) -> list[str]:
    status = cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]
    counted = {
        name
        for counts in (status["capacity"], status["allocatable"])
        for name, count in counts.items()
        if name.startswith(_DOMAIN) and count != "0"
    }
    return sorted(counted - _known(node)) if counted else []


def _known(node: Node) -> set[str]:
    """The resources that the kubelet has a plugin for, or had one within five minutes: it writes them down at each change."""
    try:
        checkpoint = json.loads((node.paths.device_plugins / "kubelet_internal_checkpoint").read_text())
    except FileNotFoundError:
        return set()
    return set(checkpoint["Data"]["RegisteredDevices"] or {})
