"""Jobs and pods as a real API server would have them, on the stand-in."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.fake_api_server import FakeApiServer

JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"
PODS = "/api/v1/namespaces/team-a/pods"
LABELS = {"tranche.dev/job": "train"}


def put_job(server: FakeApiServer, *, status: dict[str, Any] | None = None, **spec: Any) -> None:
    meta = {"labels": LABELS, "annotations": {"tranche.dev/request": "--gpu-memory 4Gi"}, "uid": "u1"}
    meta["creationTimestamp"] = "2026-11-20T10:00:00Z"
    server.put(f"{JOBS}/train", {"metadata": meta, "spec": {"completions": 1, **spec}, "status": status or {}})


def put_pod(server: FakeApiServer, name: str = "train-0-abcde", *, phase: str = "Running", **state: Any) -> None:
    container = {"state": state or {"running": {}}, "ready": phase == "Running"}
    status: dict[str, Any] = {"phase": phase, "containerStatuses": [container]}
    content = {"metadata": {"labels": LABELS}, "spec": {"nodeName": "p4d", "containers": [{}]}, "status": status}
    server.put(f"{PODS}/{name}", content)


def ended(condition: str, **status: Any) -> dict[str, Any]:
    return {"conditions": [{"type": condition, "status": "True", "message": "because"}], **status}
