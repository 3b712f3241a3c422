"""The cluster's part of a bundle: what helps is in it, what is planted in environments, annotations and ConfigMaps is not."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import yaml

from tests.kubernetes.fake_api_server import api_server
from tests.kubernetes.support.test_survey import cluster, daemon_set
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.support.bundle import cluster_entries
from tranche.node.files.archive import ArchiveFile

SECRET = "hunter2-planted"
LAYOUTS = {"version": "v1", "mig-configs": {"mine": [{"devices": "all", "mig-enabled": False, "mig-devices": {}}]}}
ENVIRONMENT = [{"name": "TOKEN", "value": SECRET}, {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": SECRET}}}]


def log_lines() -> str:
    own = {
        "time": "t",
        "level": "warning",
        "logger": "tranche.x",
        "message": "cannot apply the layout",
        "reason": "GpuBusy",
    }
    foreign = {"time": "t", "level": "warning", "logger": "httpx", "message": f"GET {SECRET}"}
    return "\n".join([json.dumps({**own, "error": SECRET}), json.dumps(foreign), f"Traceback {SECRET}"])


def planted_metadata(**more: Any) -> dict[str, Any]:
    return {"annotations": {"a": SECRET, f"{SECRET}/x": "1", "tranche.dev/mig.config.attempt": SECRET}, **more}


async def gathered() -> dict[str, ArchiveFile]:
    async with api_server() as server:
        cluster(server)
        agent = daemon_set(
            "sys", "agent", "tranche-agent:1", "tranche", "agent",
            args=["--layouts=mine", "--plugin-config-map=settings", f"--own={SECRET}", "--mig-strategy=mixed", SECRET],
        )  # fmt: skip
        agent["spec"]["template"]["spec"]["containers"][0]["env"] = ENVIRONMENT
        agent["spec"]["template"]["metadata"] = planted_metadata()
        agent["metadata"] |= planted_metadata()
        server.refusals[("GET", "/daemonsets")] = (200, {"items": [agent]})
        condition = {"type": "MigLayoutApplied", "status": "Unknown", "reason": "GpuBusy", "message": SECRET}
        status = {"conditions": [condition], "images": [{"names": [SECRET]}], "capacity": {"nvidia.com/gpu": "8"}}
        labels = {"team": SECRET, "nvidia.com/mig.config": "mine"}
        server.put("/api/v1/nodes/n1", {"metadata": planted_metadata(labels=labels), "status": status})
        pod = {
            "metadata": planted_metadata(labels={"app": "agent", "own": SECRET}),
            "spec": {"nodeName": "n1", "containers": [{"image": "tranche-agent:1", "env": ENVIRONMENT}]},
            "status": {"phase": "Running", "message": SECRET, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        server.put("/api/v1/namespaces/sys/pods/agent-1", pod)
        mine = {"config.yaml": f"# {SECRET}\n{yaml.safe_dump(LAYOUTS)}", "password": SECRET}
        server.put("/api/v1/namespaces/sys/configmaps/mine", {"data": mine})
        settings = {"version": "v1", "flags": {"migStrategy": "mixed", "own": SECRET}, "token": SECRET}
        server.put(
            "/api/v1/namespaces/sys/configmaps/settings", {"data": {"a": yaml.safe_dump(settings), "b": f"{{{SECRET}"}}
        )
        connection = ApiConnection(ApiServer(server.url))
        try:
            now = datetime(2026, 11, 21, tzinfo=UTC)
            return {each.path: each for each in await cluster_entries(connection, now=now, own_version="0.1.0")}
        finally:
            await connection.aclose()


def test_no_secret_and_all_that_helps() -> None:
    entries = asyncio.run(gathered())
    assert [path for path, each in entries.items() if SECRET.encode() in each.content] == []
    facts = json.loads(entries["cluster/cluster.json"].content)
    (node,), (agents,) = facts["nodes"], facts["agents"]
    assert node["labels"] == {"nvidia.com/mig.config": "mine"}
    assert node["annotations"] == ["tranche.dev/mig.config.attempt"]
    assert node["conditions"][0]["reason"] == "GpuBusy"
    assert agents["options"] == ["--layouts=mine", "--plugin-config-map=settings", "--own", "--mig-strategy=mixed"]
    assert [pod["name"] for pod in agents["pods"]] == ["sys/agent-1"]
    assert json.loads(entries["cluster/sys/mine.json"].content) == LAYOUTS
    settings = json.loads(entries["cluster/sys/settings.json"].content)
    assert settings["a"] == {"version": "v1", "flags.migStrategy": "mixed"} or settings["a"] == {
        "flags.migStrategy": "mixed"
    }
    assert settings["b"]["invalid"] is True
    checks = json.loads(entries["cluster/doctor.json"].content)["findings"]
    assert {"check", "status", "nodes", "pods"} == set(checks[0])
