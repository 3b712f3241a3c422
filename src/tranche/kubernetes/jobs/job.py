"""Jobs and their pods, decoded from API objects, and as JSON data. Only fields named here are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tranche.kubernetes.api.decoding import moment, part
from tranche.kubernetes.claims.vocabulary import QUEUE_LABEL
from tranche.kubernetes.jobs.manifest import REQUEST_ANNOTATION


class JobStatus(StrEnum):
    """PENDING: no pod runs yet. RUNNING: at least one does. DELETING: its pods are being ended."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETING = "Deleting"

    @property
    def over(self) -> bool:
        """Whether the status is final."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED)


@dataclass(frozen=True, slots=True)
class KubeJob:
    """A Job. `request` is what `tranche submit` was asked for; `message` says why it failed, or why its `queue` holds it back."""

    namespace: str
    name: str
    status: JobStatus
    request: str = ""
    uid: str = ""
    created: datetime | None = None
    completions: int = 1
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    message: str = ""
    queue: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod of a job. `waiting` is why its container waits, `ending` why it ended; `exit_code` is None until then.

    `message` is what the kubelet says of either.

    `interactive` says that it has a terminal. `claims` are the names of its resource claims, by the pod's own names for them.
    """

    namespace: str
    name: str
    phase: str = "Pending"
    node: str = ""
    index: str = ""
    ready: bool = False
    started: bool = False
    waiting: str = ""
    ending: str = ""
    message: str = ""
    exit_code: int | None = None
    created: str = ""
    interactive: bool = False
    claims: Mapping[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def kubelets_word(self) -> str:
        """Why its command never ran, was ended, or waits, as the kubelet says it; "" where the command speaks for itself."""
        reason = self.waiting or (self.ending if self.ending not in _OWN_ENDINGS else "")
        if self.waiting in _USUAL_WAITS or not (reason or self.message):
            return ""
        return f"{reason}: {self.message}" if reason and self.message else reason or self.message


_OWN_ENDINGS = ("Completed", "Error")
_USUAL_WAITS = ("ContainerCreating", "PodInitializing")


def decode_job(raw: Mapping[str, Any]) -> KubeJob:
    """A `batch/v1.Job`."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    conditions = {each.get("type"): each for each in status.get("conditions") or () if each.get("status") == "True"}
    failed = conditions.get("Failed") or conditions.get("FailureTarget") or {}
    parallelism = spec.get("parallelism")
    return KubeJob(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        status=_status(meta, spec, status, conditions),
        request=str(part(meta, "annotations").get(REQUEST_ANNOTATION) or ""),
        uid=str(meta.get("uid") or ""),
        created=moment(meta.get("creationTimestamp")),
        completions=int(spec.get("completions") or (1 if parallelism is None else parallelism)),
        active=int(status.get("active") or 0),
        ready=int(status.get("ready") or 0),
        succeeded=int(status.get("succeeded") or 0),
        failed=int(status.get("failed") or 0),
        message=str(failed.get("message") or ""),
        queue=str(part(meta, "labels").get(QUEUE_LABEL) or ""),
    )


def decode_job_pod(raw: Mapping[str, Any]) -> JobPod:
    """A `v1.Pod` of a Job."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    state = part(container, "state")
    ended, waiting = part(state, "terminated"), part(state, "waiting")
    given = {each.get("name"): each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
    named = {each.get("name"): each.get("resourceClaimName") for each in spec.get("resourceClaims") or ()}
    return JobPod(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        phase=str(status.get("phase") or "Pending"),
        node=str(spec.get("nodeName") or ""),
        index=str(part(meta, "annotations").get("batch.kubernetes.io/job-completion-index") or ""),
        ready=bool(container.get("ready")),
        started=bool(state) and not waiting,
        waiting=str(waiting.get("reason") or ""),
        ending=str(ended.get("reason") or status.get("reason") or ""),
        message=str(waiting.get("message") or ended.get("message") or status.get("message") or ""),
        exit_code=int(ended["exitCode"]) if "exitCode" in ended else None,
        created=str(meta.get("creationTimestamp") or ""),
        interactive=any(each.get("tty") for each in spec.get("containers") or ()),
        claims={str(name): str(claim) for name, claim in {**named, **given}.items() if name and claim},
    )


def in_order(pods: Iterable[JobPod]) -> tuple[JobPod, ...]:
    """Pods by index, then oldest first."""
    return tuple(sorted(pods, key=lambda each: (len(each.index), each.index, each.created, each.name)))


def _status(
    meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any], conditions: Mapping[Any, Any]
) -> JobStatus:
    if meta.get("deletionTimestamp"):
        return JobStatus.DELETING
    if "Complete" in conditions:
        return JobStatus.SUCCEEDED
    if "Failed" in conditions:
        return JobStatus.FAILED
    if spec.get("suspend"):
        return JobStatus.SUSPENDED
    return JobStatus.RUNNING if status.get("ready") else JobStatus.PENDING


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
