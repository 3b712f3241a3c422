"""What of a cluster may leave it: parts of nodes and pods, our ConfigMaps as they are understood, our agents' logs reduced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tranche.core.errors import LayoutInvalid, PluginConfigInvalid
from tranche.core.layout_format import layouts_to_data, parse_layouts
from tranche.kubernetes.device_plugin.settings import SETTINGS
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts, DaemonSetFacts, PodFacts, SurveyedNode
from tranche.node.files.files import parse_document

_LABELS = (
    "nvidia.com/",
    "tranche.dev/",
    "k8s.amazonaws.com/accelerator",
    "feature.node.kubernetes.io/pci-",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "topology.kubernetes.io/",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
)
_OPTIONS = (
    "--without",
    "--layouts",
    "--in-use",
    "--mig-strategy",
    "--device-list-strategy",
    "--device-id-strategy",
    "--plugin-config-map",
    "--default-config",
    "--fallback-strategies",
    "--health-port",
    "--metrics-port",
    "--max-unavailable",
    "--daemon-set",
    "--refresh-seconds",
    "--log-format",
    "--with-reboot",
    "--verbose",
    "--pass-device-specs",
    "--driver-root",
    "--dev-root",
    "--kubelet-socket",
    "--pod-resources-socket",
)


def cluster_extract(facts: ClusterFacts) -> dict[str, Any]:
    """Versions, nodes, agents, neighbours and policies as JSON data, without a message that somebody wrote."""
    return {
        "serverVersion": facts.server_version,
        "nodes": [_node(each) for each in facts.nodes],
        "agents": [_agents(each) for each in facts.agents],
        "others": [
            {"daemonSet": str(each.daemon_set), "product": each.product, "part": each.part, "nodes": list(each.nodes)}
            for each in facts.others
        ],
        "policies": None if facts.policies is None else sorted(facts.policies),
        "bindings": None if facts.bindings is None else sorted(facts.bindings),
        "unread": sorted(facts.unread),
    }


def layouts_extract(text: str) -> Any:
    """A ConfigMap's layouts as they are understood; of a text that is none, only how long it is."""
    try:
        return layouts_to_data(parse_layouts(parse_document(text, "the ConfigMap", LayoutInvalid)))
    except LayoutInvalid:
        return {"invalid": True, "characters": len(text)}


def plugin_config_extract(data: Mapping[str, str]) -> dict[str, Any]:
    """The settings that the device plugin knows, of each key of its ConfigMap, by their path."""
    return {key: _settings(text) for key, text in sorted(data.items())}


def _settings(text: str) -> Any:
    try:
        document = parse_document(text, "the configuration", PluginConfigInvalid)
    except PluginConfigInvalid:
        return {"invalid": True, "characters": len(text)}
    found = {}
    for setting in SETTINGS:
        value: Any = document if setting.place else None
        for key in setting.place:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str | int | bool):
            found[".".join(setting.place)] = value
    return found


def _node(node: SurveyedNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "labels": {key: value for key, value in sorted(node.labels.items()) if key.startswith(_LABELS)},
        "annotations": sorted(node.annotations),
        "taints": [{"key": each.key, "effect": each.effect} for each in node.taints],
        "conditions": [
            {
                "type": each.type,
                "status": each.status,
                "reason": each.reason,
                "since": None if each.since is None else each.since.isoformat(),
            }
            for each in node.conditions
        ],
        "capacity": dict(node.capacity),
        "allocatable": dict(node.allocatable),
        "unschedulable": node.unschedulable,
        "kubelet": node.kubelet_version,
        "kernel": node.kernel_version,
        "osImage": node.os_image,
        "containerRuntime": node.container_runtime,
        "architecture": node.architecture,
    }


def _agents(agents: AgentSetFacts) -> dict[str, Any]:
    return {
        "daemonSet": str(agents.daemon_set),
        "version": agents.daemon_set.version,
        "images": list(agents.daemon_set.images),
        "options": _options(agents.daemon_set),
        "desired": agents.daemon_set.desired,
        "lackingRights": None if agents.lacking is None else list(agents.lacking),
        "pods": [_pod(each) for each in agents.pods],
        "turns": [{"node": each.node, "state": each.state, "goOn": each.go_on} for each in agents.turns],
    }


def _options(daemon_set: DaemonSetFacts) -> list[str]:
    """The options whose values are Tranche's own words, and the names of all others."""
    found = []
    for argument in daemon_set.arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            found.append(f"{name}{equals}{value}" if name in _OPTIONS else name)
    return found


def _pod(pod: PodFacts) -> dict[str, Any]:
    return {
        "name": str(pod),
        "node": pod.node,
        "phase": pod.phase,
        "ready": pod.ready,
        "waiting": pod.waiting,
        "restarts": pod.restarts,
        "image": pod.image,
        "imageId": pod.image_id,
        "terminating": pod.terminating,
        "notReadyComponents": None
        if pod.ready_page is None
        else sorted(name for name, why in pod.ready_page.items() if why != "ready"),
    }
