"""Looks at a cluster once, with the caller's rights, and changes nothing: its attempts are dry runs.

Only the fields of API objects named here leave this module: no environment, no secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tranche.core.errors import (
    KubernetesForbidden,
    KubernetesNotFound,
    KubernetesRejected,
    KubernetesUnavailable,
    TrancheError,
)
from tranche.kubernetes.api.client import ClusterReader
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json, decode_daemon_set, decode_node, part
from tranche.kubernetes.api.object_client import decode_lease
from tranche.kubernetes.api.objects import DaemonSet, KubeNode
from tranche.kubernetes.claims.allocation_backend import (
    PROBE_PATH,
    PROBE_QUERY,
    DryRunResult,
    kept_features,
    probe_slice,
)
from tranche.kubernetes.rollout.ticket import TICKET, TICKET_LABEL, RolloutTicket, read_ticket
from tranche.kubernetes.support.facts import (
    AgentSetFacts,
    ClusterFacts,
    ControllerFacts,
    OtherProgramFacts,
    PodFacts,
)
from tranche.kubernetes.support.programs import REVIEWS, known_product, needed_rights, review

LAYOUTS_KEY = "config.yaml"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_ASKED_AT_MOST = 20


async def survey(connection: ApiConnection) -> ClusterFacts:
    """What exists of Tranche, of nodes, and of programs that do the same work.

    Raises:
        KubernetesUnavailable: the API server does not answer.
        KubernetesForbidden: the caller may not even list nodes.
    """
    reader = ClusterReader(connection)
    version = await reader.object("the API server's version", "/version")
    nodes = await reader.objects("nodes", "/api/v1/nodes")
    if nodes is None:
        raise KubernetesForbidden(
            reader.unread.get("nodes", "use a kubeconfig for an account that may list nodes"),
            hint="use a kubeconfig for an account that may list nodes",
        )
    seen = tuple(_decode_node(raw) for raw in nodes)
    daemon_sets = tuple(map(decode_daemon_set, await reader.objects("DaemonSets", "/apis/apps/v1/daemonsets") or ()))
    deployments = await reader.objects("Deployments", "/apis/apps/v1/deployments") or ()
    release = str((version or {}).get("gitVersion", ""))
    return ClusterFacts(
        server_version=release,
        nodes=seen,
        agents=tuple([await _agents(reader, each, release) for each in daemon_sets if each.runs_agents]),
        others=await _others(reader, daemon_sets, seen),
        controllers=tuple(filter(None, map(_decode_controller, deployments))),
        policies=await _names(reader, "admission policies", _POLICIES),
        bindings=await _names(reader, "bindings of admission policies", _BINDINGS),
        unread=dict(reader.unread),
        claims=await _probe(connection),
    )


async def _probe(connection: ApiConnection) -> DryRunResult:
    """What the API server keeps of a resource slice. A dry run stores nothing."""
    answer = await connection.ask(
        "create a ResourceSlice as a dry run", "POST", PROBE_PATH, probe_slice(), query=PROBE_QUERY
    )
    if answer.status == 404:
        return DryRunResult(served=False)
    try:
        return DryRunResult(kept=kept_features(answer.accepted()))
    except TrancheError as error:
        return DryRunResult(why=error.message)


async def _agents(reader: ClusterReader, daemon_set: DaemonSet, release: str) -> AgentSetFacts:
    namespace = daemon_set.namespace
    raw = await reader.pods_of(f"pods in {namespace}", namespace, daemon_set.selector)
    pods = [_decode_pod(each) for each in raw]
    asked = 0
    for position, pod in enumerate(pods):
        if not pod.ready and pod.phase == "Running" and not pod.waiting and asked < _ASKED_AT_MOST:
            asked += 1
            pods[position] = replace(pod, ready_page=await _ready_page(reader.connection, daemon_set, pod))
    layouts = daemon_set.option("--layouts", "tranche-layouts")
    found = await reader.object(
        f"the ConfigMap {namespace}/{layouts}", f"/api/v1/namespaces/{namespace}/configmaps/{layouts}"
    )
    return AgentSetFacts(
        daemon_set=daemon_set,
        pods=tuple(pods),
        lacking=await _lacking(reader, daemon_set, release),
        layouts=None if found is None else str((found.get("data") or {}).get(LAYOUTS_KEY, "")),
        turns=await _turns(reader, daemon_set) if daemon_set.option("--max-unavailable", "") else (),
    )


async def _turns(reader: ClusterReader, daemon_set: DaemonSet) -> tuple[RolloutTicket, ...]:
    """The nodes that take turns, in order of arrival."""
    namespace = daemon_set.namespace
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    raw = await reader.objects(f"leases in {namespace}", path, labelSelector=f"{TICKET_LABEL}={TICKET}")
    tickets = filter(None, (read_ticket(decode_lease(each)) for each in raw or ()))
    return tuple(sorted(tickets, key=lambda each: each.order))


async def _ready_page(connection: ApiConnection, agent: DaemonSet, pod: PodFacts) -> Mapping[str, str] | None:
    """What the agent itself says; None if the API server does not reach it, or the caller may not ask through it."""
    port = agent.option("--health-port", "9440")
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/readyz"
    try:
        text = await connection.text(f"ask {pod}", path)
        components = json.loads(text or "")["components"]
        return {str(name): str(why) for name, why in components.items()}
    except (ValueError, KeyError, TypeError, AttributeError, KubernetesUnavailable):
        return None


async def _lacking(reader: ClusterReader, daemon_set: DaemonSet, release: str) -> tuple[str, ...] | None:
    lacking = []
    for right in needed_rights(daemon_set, release):
        try:
            answer = await reader.connection.ask("check the agent's rights", "POST", REVIEWS, review(daemon_set, right))
            status = answer.accepted().get("status") or {}
        except (KubernetesForbidden, KubernetesNotFound, KubernetesRejected) as error:
            reader.unread["the rights of other accounts"] = error.message
            return None
        if not status.get("allowed"):
            lacking.append(str(right))
    return tuple(lacking)


async def _others(
    reader: ClusterReader, daemon_sets: tuple[DaemonSet, ...], nodes: tuple[KubeNode, ...]
) -> tuple[OtherProgramFacts, ...]:
    found = []
    for each in daemon_sets:
        product = None if each.runs_agents else known_product(each)
        if product is not None and each.desired > 0:
            raw = await reader.pods_of(f"pods in {each.namespace}", each.namespace, each.selector)
            there = {_decode_pod(pod).node for pod in raw}
            on = tuple(node.name for node in nodes if node.name in there)
            found.append(OtherProgramFacts(each, product.name, product.part, on))
    return tuple(found)


async def _names(reader: ClusterReader, what: str, path: str) -> frozenset[str] | None:
    """The names of Tranche's own objects of a kind; None if the API server has no such kind."""
    found = await reader.objects(what, path)
    return None if found is None else frozenset(_name(raw) for raw in found if _is_ours(raw))


def _is_ours(raw: Json) -> bool:
    labels = (raw.get("metadata") or {}).get("labels") or {}
    return str(labels.get("helm.sh/chart", "")).startswith("tranche-")


def _name(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("name", ""))


_OUR_ANNOTATIONS = ("tranche.dev/", "mig-manager.tranche.dev/")


def _decode_node(raw: Json) -> KubeNode:
    """A `v1.Node`, with Tranche's annotations only."""
    node = decode_node(raw)
    ours = {key: value for key, value in node.annotations.items() if key.startswith(_OUR_ANNOTATIONS)}
    return replace(node, annotations=ours)


def _decode_controller(raw: Json) -> ControllerFacts | None:
    """An `apps/v1.Deployment` that runs `tranche controller`; None for another."""
    meta, status = part(raw, "metadata"), part(raw, "status")
    spec = part(raw, "spec")
    containers = part(part(spec, "template"), "spec").get("containers") or ()
    words = [
        str(each) for container in containers[:1] for key in ("command", "args") for each in container.get(key) or ()
    ]
    if not words or words[0].rpartition("/")[2] != "tranche" or words[1:2] != ["controller"]:
        return None
    wanted = spec.get("replicas")
    return ControllerFacts(
        _text(meta, "namespace"),
        _text(meta, "name"),
        1 if wanted is None else int(wanted),
        int(status.get("readyReplicas") or 0),
    )


def _decode_pod(raw: Json) -> PodFacts:
    """A `v1.Pod` of a DaemonSet."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    statuses = status.get("containerStatuses") or ()
    first = statuses[0] if statuses else {}
    waiting = part(part(first, "state"), "waiting")
    conditions = {_text(each, "type"): each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    return PodFacts(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        node=_text(spec, "nodeName") or _wanted_node(spec),
        phase=_text(status, "phase"),
        ready=_text(conditions.get("Ready", {}), "status") == "True",
        waiting=_text(waiting, "reason"),
        restarts=sum(int(each.get("restartCount") or 0) for each in statuses),
        image=_text(first, "image") or next((_text(each, "image") for each in spec.get("containers") or ()), ""),
        image_id=_text(first, "imageID"),
        terminating=meta.get("deletionTimestamp") is not None,
        unschedulable=_text(scheduled, "message") if _text(scheduled, "status") == "False" else "",
    )


def _wanted_node(spec: Json) -> str:
    """The node that a DaemonSet made its pod for: from an affinity, until the scheduler has bound it."""
    affinity = part(part(spec, "affinity"), "nodeAffinity")
    required = part(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.get("nodeSelectorTerms") or ():
        for wanted in term.get("matchFields") or ():
            if wanted.get("key") == "metadata.name" and wanted.get("values"):
                return str(wanted["values"][0])
    return ""


def _text(raw: Json, key: str) -> str:
    value: Any = raw.get(key)
    return "" if value is None else str(value)
