"""What a bundle says of a cluster, file by file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tranche.core.redaction import SHAPES, reduced
from tranche.documents.envelope import document
from tranche.documents.log_extract import log_extract
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.reader import ClusterReader
from tranche.kubernetes.support.checkup import check_cluster
from tranche.kubernetes.support.documents import cluster_finding_document
from tranche.kubernetes.support.extract import cluster_extract, layouts_extract, plugin_config_extract
from tranche.kubernetes.support.facts import AgentSetFacts
from tranche.kubernetes.support.survey import survey
from tranche.node.files.archive import ArchiveFile

_LOG_LINES = "5000"
_LOGS_AT_MOST = 50


async def cluster_entries(connection: ApiConnection, *, now: datetime, own_version: str) -> tuple[ArchiveFile, ...]:
    """Everything of the cluster that the caller may read; errors as those of a survey."""
    facts = await survey(connection)
    reader = ClusterReader(connection)
    findings = check_cluster(facts, now=now, own_version=own_version)
    checkup = document("ClusterCheckup", findings=[cluster_finding_document(each) for each in findings])
    entries = [
        _entry("cluster/doctor.json", "which checks of the cluster passed", reduced(checkup, SHAPES["ClusterCheckup"])),
        _entry("cluster/cluster.json", "nodes, agents, neighbours and policies, in parts", cluster_extract(facts)),
    ]
    for agents in facts.agents:
        entries += _config_maps(agents)
        entries += await _plugin_config(reader, agents)
        entries += await _logs(reader, agents)
    return tuple(entries)


def _config_maps(agents: AgentSetFacts) -> Iterator[ArchiveFile]:
    if agents.layouts is not None:
        name = f"cluster/{agents.daemon_set.namespace}/{agents.daemon_set.option('--layouts', 'tranche-layouts')}.json"
        yield _entry(name, "the ConfigMap of layouts, as it is understood", layouts_extract(agents.layouts))


async def _plugin_config(reader: ClusterReader, agents: AgentSetFacts) -> list[ArchiveFile]:
    name, namespace = agents.daemon_set.option("--plugin-config-map", ""), agents.daemon_set.namespace
    if not name:
        return []
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
    found = await reader.object(f"the ConfigMap {namespace}/{name}", path)
    data = {str(key): str(text) for key, text in ((found or {}).get("data") or {}).items()}
    about = "the device plugin's settings that are known, by key"
    return [_entry(f"cluster/{namespace}/{name}.json", about, plugin_config_extract(data))]


async def _logs(reader: ClusterReader, agents: AgentSetFacts) -> list[ArchiveFile]:
    """Logs of the agents, those of the ones that are not ready first."""
    entries = []
    for pod in sorted(agents.pods, key=lambda each: (each.ready, each.name))[:_LOGS_AT_MOST]:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
        for query, suffix in (({}, ""), ({"previous": "true"}, "-previous")):
            if suffix and not pod.restarts:
                continue
            text = await reader.text(f"the log of {pod}", path, tailLines=_LOG_LINES, **query)
            if text is not None:
                content = log_extract(text.splitlines()).encode()
                about = f"the log of the agent on {pod.node}" + (", of the run before" if suffix else "")
                entries.append(ArchiveFile(f"cluster/logs/{pod.name}{suffix}.log", about, content))
    return entries


def _entry(path: str, about: str, data: Any) -> ArchiveFile:
    return ArchiveFile(path, about, (json.dumps(data, indent=1) + "\n").encode())
