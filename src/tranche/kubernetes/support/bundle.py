"""The cluster's files in a support bundle.

Only these may leave a cluster: parts of nodes and pods, our ConfigMaps as parsed, our agents' logs, reduced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from tranche.core.errors import LayoutInvalid, PluginConfigInvalid
from tranche.core.layout_format import layouts_to_data, parse_layouts
from tranche.core.redaction import SHAPES, log_extract, reduced
from tranche.documents.envelope import document
from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.objects import DaemonSet, KubeNode
from tranche.kubernetes.claims.quantity import gpu_counts
from tranche.kubernetes.device_plugin.settings import SETTINGS
from tranche.kubernetes.support.checkup import check_cluster, cluster_finding_document
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts, PodFacts
from tranche.kubernetes.support.survey import survey
from tranche.node.files.archive import ArchiveFile
from tranche.node.files.files import parse_document

_LOG_LINES = "5000"
_LOGS_AT_MOST = 50


async def cluster_entries(connection: ApiConnection, *, now: datetime, own_version: str) -> tuple[ArchiveFile, ...]:
    """Everything of the cluster that the caller may read; errors as those of a survey."""
    facts = await survey(connection)
    reader = ClusterReader(connection)
    findings = check_cluster(facts, now=now, own_version=own_version)
    checkup = document("ClusterCheckup", findings=[cluster_finding_document(each) for each in findings])
    entries = [
        _entry(
            "cluster/doctor.json",
            "results of doctor's checks of the cluster",
            reduced(checkup, SHAPES["ClusterCheckup"]),
        ),
        _entry(
            "cluster/cluster.json",
            "excerpts of nodes, agents, other GPU software and policies",
            _cluster_extract(facts),
        ),
    ]
    for agents in facts.agents:
        entries += _config_maps(agents)
        entries += await _plugin_config(reader, agents)
        entries += await _logs(reader, agents)
    return tuple(entries)


def _config_maps(agents: AgentSetFacts) -> Iterator[ArchiveFile]:
    if agents.layouts is not None:
        name = f"cluster/{agents.daemon_set.namespace}/{agents.daemon_set.option('--layouts', 'tranche-layouts')}.json"
        yield _entry(name, "ConfigMap of layouts, as Tranche reads it", _layouts_extract(agents.layouts))


async def _plugin_config(reader: ClusterReader, agents: AgentSetFacts) -> list[ArchiveFile]:
    name, namespace = agents.daemon_set.option("--plugin-config-map", ""), agents.daemon_set.namespace
    if not name:
        return []
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
    found = await reader.object(f"the ConfigMap {namespace}/{name}", path)
    data = {str(key): str(text) for key, text in ((found or {}).get("data") or {}).items()}
    about = "recognised settings of the device plugin, by key"
    settings = {key: _settings(text) for key, text in sorted(data.items())}
    return [_entry(f"cluster/{namespace}/{name}.json", about, settings)]


async def _logs(reader: ClusterReader, agents: AgentSetFacts) -> list[ArchiveFile]:
    """Logs of the agents, first of those that are not ready."""
    entries = []
    for pod in sorted(agents.pods, key=lambda each: (each.ready, each.name))[:_LOGS_AT_MOST]:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
        for query, suffix in (({}, ""), ({"previous": "true"}, "-previous")):
            if suffix and not pod.restarts:
                continue
            text = await reader.text(f"the log of {pod}", path, tailLines=_LOG_LINES, **query)
            if text is not None:
                content = log_extract(text.splitlines()).encode()
                about = f"log of the agent on {pod.node}" + (", from its previous run" if suffix else "")
                entries.append(ArchiveFile(f"cluster/logs/{pod.name}{suffix}.log", about, content))
    return entries


def _entry(path: str, about: str, data: Any) -> ArchiveFile:
    return ArchiveFile(path, about, (json.dumps(data, indent=1) + "\n").encode())


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


def _cluster_extract(facts: ClusterFacts) -> dict[str, Any]:
    """Versions, nodes, agents, neighbours and policies as JSON data, without free-form messages."""
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


def _layouts_extract(text: str) -> Any:
    """A ConfigMap's layouts as parsed; for an invalid text only its length."""
    try:
        return layouts_to_data(parse_layouts(parse_document(text, "the ConfigMap", LayoutInvalid)))
    except LayoutInvalid:
        return {"invalid": True, "characters": len(text)}


def _settings(text: str) -> Any:
    """The settings that the device plugin knows, by their path."""
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


def _node(node: KubeNode) -> dict[str, Any]:
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
        "capacity": gpu_counts(node.capacity),
        "allocatable": gpu_counts(node.allocatable),
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


def _options(daemon_set: DaemonSet) -> list[str]:
    """The options whose values are Tranche's own words, and only the names of all others."""
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
