"""A full description of a job: its pods, what they have, why they wait, and what happened to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import part
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.claims.vocabulary import JOB_LABEL, KUEUE
from tranche.kubernetes.fleet.explanation import FleetExplanation, device_text, explanation_document, given_document
from tranche.kubernetes.fleet.fleet import Fleet, HeldDevice
from tranche.kubernetes.fleet.objects import decode_fleet_pod
from tranche.kubernetes.fleet.reading import backend_in_force, read_fleet, with_refusal
from tranche.kubernetes.gated.explaining import chosen_text, explain_waiting
from tranche.kubernetes.gated.reading import read_gate_fleet
from tranche.kubernetes.jobs.client import JobClient
from tranche.kubernetes.jobs.job import JobPod, JobStatus, KubeJob, decode_job_pod, in_order, job_document

_EVENTS = 5
_OF_ONE_TRY = re.compile(r'"[^"]*"|\d+')


@dataclass(frozen=True, slots=True)
class JobSummary:
    """`waiting` explains each pod without a place. `events` are the last warnings about the pods, newest last.

    `chosen` is what a controller has chosen for pods, by name, in words. `unread` is what the caller may not read, so that what
    pods have may be missing.
    """

    job: KubeJob
    pods: tuple[JobPod, ...]
    holdings: Mapping[str, Sequence[HeldDevice]]
    waiting: tuple[FleetExplanation, ...] = ()
    events: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def has(self, pod: JobPod) -> tuple[str, ...]:
        """What the pod has, in words."""
        return tuple(map(device_text, self.holdings.get(pod.name, ()))) or self.chosen.get(pod.name, ())


async def describe_job(connection: ApiConnection, namespace: str, name: str) -> JobSummary:
    """All about that job; KubernetesNotFound when there is none."""
    job = await JobClient(connection).job(namespace, name)
    reader = ClusterReader(connection)
    if job.queue and job.status is JobStatus.SUSPENDED:
        job = replace(job, message=await _word_of_queue(reader, job))
    path = f"/api/v1/namespaces/{namespace}/pods"
    raw = await reader.objects("the job's pods", path, labelSelector=f"{JOB_LABEL}={name}") or ()
    pods, known = in_order(map(decode_job_pod, raw)), [decode_fleet_pod(each) for each in raw]
    warnings = await _warnings(reader, namespace, pods)
    waiting = [each for each in known if not each.node and each.phase == "Pending"]
    waiting = [await with_refusal(connection, each) for each in waiting[:1]] + waiting[1:]
    backend = await backend_in_force(connection) if waiting else AllocationBackend.NONE
    gated = [each for each in known if each.asks_at_gate]
    chosen: dict[str, tuple[str, ...]] = {}
    if gated:
        told = await read_gate_fleet(connection, gated[0])
        chosen = {each.name: (text,) for each in gated if (text := chosen_text(each, told))}
        explained = tuple(explain_waiting(each, told, backend) for each in waiting if each.asks_at_gate)
        fleet = told.fleet()
    else:
        fleet = await read_fleet(connection, namespace)
        explained = tuple(explain_waiting(each, fleet, backend) for each in waiting)
    unread = tuple(dict.fromkeys((*reader.unread, *fleet.unread)))
    return JobSummary(job, pods, _holdings(pods, fleet), explained, warnings, chosen, unread)


def description_document(found: JobSummary) -> dict[str, object]:
    """The description as JSON data."""
    return {
        "job": job_document(found.job, found.pods),
        "given": [given_document(each) for held in found.holdings.values() for each in held],
        "waiting": [explanation_document(each) for each in found.waiting],
        "events": list(found.events),
        "unread": list(found.unread),
    }


def _holdings(pods: Sequence[JobPod], fleet: Fleet) -> Mapping[str, Sequence[HeldDevice]]:
    """What the pods have, by claims or by a controller's choice."""
    owners = {(pod.namespace, claim): pod.name for pod in pods for claim in pod.claims.values()}
    names = {(pod.namespace, pod.name): pod.name for pod in pods}
    found: dict[str, list[HeldDevice]] = {}
    for room in fleet.rooms().values():
        for each in room.holdings:
            claim = each.claim
            known = (
                owners.get((claim.namespace, claim.name)) if claim.name else names.get((claim.namespace, claim.pods[0]))
            )
            if known is not None:
                found.setdefault(known, []).append(each)
    return found


async def _word_of_queue(reader: ClusterReader, job: KubeJob) -> str:
    """Why Kueue does not start the Job yet, as the condition of its Workload says."""
    within = f"{KUEUE}/namespaces/{job.namespace}"
    queues = await reader.names("Kueue's queues", f"{within}/localqueues")
    if queues is not None and job.queue not in queues:
        return f"it waits for the Kueue queue {job.queue}, which does not exist"
    own = {"labelSelector": f"kueue.x-k8s.io/job-uid={job.uid}"}
    workloads = await reader.objects("Kueue's workloads", f"{within}/workloads", **own)
    conditions = [each for workload in workloads or () for each in part(workload, "status").get("conditions") or ()]
    why = next((str(each.get("message") or "") for each in conditions if each.get("type") == "QuotaReserved"), "")
    return f"it waits in the Kueue queue {job.queue}" + (f": {why}" if why else "")


async def _warnings(reader: ClusterReader, namespace: str, pods: Sequence[JobPod]) -> tuple[str, ...]:
    """The last warnings about pods that do not run: why the node could not prepare a share, for example."""
    names = {each.name for each in pods if not each.started}
    if not names:
        return ()
    path = f"/api/v1/namespaces/{namespace}/events"
    events = await reader.objects("events", path, fieldSelector="type=Warning,involvedObject.kind=Pod") or ()
    ours = [each for each in events if (each.get("involvedObject") or {}).get("name") in names]
    ours.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
    # Each attempt to create a claim has a name and numbers of its own, and so an event of its own.
    alike = {_OF_ONE_TRY.sub("", text): text for text in map(_event_text, ours)}
    return tuple(alike.values())[-_EVENTS:]


def _event_text(event: Mapping[str, Any]) -> str:
    name = (event.get("involvedObject") or {}).get("name")
    message = str(event.get("message")).removeprefix("(combined from similar events): ")
    return f"{name}: {event.get('reason')}: {message}"
