"""Jobs as JSON data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tranche.kubernetes.jobs.job import JobPod, KubeJob


def job_document(job: KubeJob, pods: Sequence[JobPod] = ()) -> dict[str, object]:
    """A job with its pods."""
    return {
        "namespace": job.namespace,
        "name": job.name,
        "request": job.request,
        "status": str(job.status),
        "message": job.message,
        "created": _time(job.created),
        "completions": job.completions,
        "active": job.active,
        "ready": job.ready,
        "succeeded": job.succeeded,
        "failed": job.failed,
        "pods": [pod_document(each) for each in pods],
    }


def pod_document(pod: JobPod) -> dict[str, object]:
    """A pod of a job."""
    return {
        "name": pod.name,
        "index": int(pod.index) if pod.index.isdigit() else None,
        "phase": pod.phase,
        "node": pod.node or None,
        "ready": pod.ready,
        "waiting": pod.waiting or None,
        "message": pod.message,
        "exitCode": pod.exit_code,
        "claims": dict(pod.claims),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
