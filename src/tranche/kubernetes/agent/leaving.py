"""Removes the agents from a cluster for good: ends them, then takes back what they wrote on the nodes.

The signal that ends an agent does not tell it an uninstallation from an upgrade, and after an uninstallation it has no rights
left. So the agents' DaemonSet is deleted first, while everything else is still there; an agent with a deleted DaemonSet removes
its files. Pods that still have GPUs by claims are listed, as no agent can take these back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tranche.core.errors import CdiUnavailable, KubernetesForbidden, KubernetesNotFound, TrancheError
from tranche.hardware.cdi import CdiSpec, write_spec
from tranche.hardware.nodes import ContainerEdits
from tranche.kubernetes.api.client import ClusterClient, ClusterReader, KubeClient
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.api.object_client import Lease, LeaseClient
from tranche.kubernetes.api.objects import DaemonSet, KubeNode
from tranche.kubernetes.claims.vocabulary import FREE_LABELS, KEEP_ANNOTATION, PLACING_LABEL
from tranche.kubernetes.device_plugin.allocate import CDI_KIND
from tranche.kubernetes.dra.registration import socket_folder
from tranche.kubernetes.feature_labels.labels import changed_labels
from tranche.kubernetes.fleet.objects import FleetClaim, decode_fleet_claim
from tranche.kubernetes.gated.leases import CHOICES
from tranche.kubernetes.mig_manager import operands
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.mig_manager.exclusion import CLAIM_PREFIX
from tranche.kubernetes.mig_manager.state import CONDITION_TYPE, NOTHING_ASKED
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.rollout.ticket import TICKET_LABEL, ticket_name
from tranche.kubernetes.telling.told_view import REPORT, TOLD_LABEL, lease_name
from tranche.node.host import Host

MIG_MANAGER, FEATURE_LABELS = "mig-manager", "feature-labels"
"""The parts of an agent that another program may replace on the node object; no other reports what claims can have."""

_ANNOTATION_PREFIXES = (CLAIM_PREFIX, "tranche.dev/")


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """How to take back the traces: parts of a metadata patch, a condition to remove, and whether to uncordon."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    condition: str | None = None
    uncordon: bool = False

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.condition or self.uncordon)


def is_marked(node: KubeNode) -> bool:
    """Whether the node has a mark that only agents write."""
    return bool(_annotations(node) or _free_labels(node)) or node.condition(CONDITION_TYPE) is not None


def cleaning(node: KubeNode, parts: Collection[str]) -> CleanupPlan:
    """How to take back what these parts of an agent wrote on the node.

    What people set stays, such as the wanted layout and the room to keep. Paused operands run again; a cordon goes if it
    was an agent's.
    """
    labels = changed_labels(node.labels, {}, 0.0) if FEATURE_LABELS in parts else {}
    labels |= dict.fromkeys(_free_labels(node))
    if MIG_MANAGER not in parts:
        return CleanupPlan(labels=labels)
    labels |= {key: None for key in NOTHING_ASKED if key in node.labels}
    if operands.paused_here(node):
        labels |= operands.restore(node)
    return CleanupPlan(
        labels,
        dict.fromkeys(_annotations(node)),
        CONDITION_TYPE if node.condition(CONDITION_TYPE) is not None else None,
        node.unschedulable and CORDON_ANNOTATION in node.annotations,
    )


def _free_labels(node: KubeNode) -> list[str]:
    return [key for key in FREE_LABELS if key in node.labels]


def _annotations(node: KubeNode) -> list[str]:
    return [key for key in node.annotations if key.startswith(_ANNOTATION_PREFIXES) and key != KEEP_ANNOTATION]


_LOOK_SECONDS = 0.5
_ASK_SECONDS = 1.0
_DAEMONS_END_SECONDS = 6.0

_log = logging.getLogger(__name__)

Say = Callable[[str], None]


def leave(
    kubeconfig: str | None,
    environ: Mapping[str, str],
    namespace: str,
    daemon_set: str,
    parts: Collection[str],
    patience: float,
    say: Say,
) -> None:
    """Remove that DaemonSet's agents from the cluster.

    Waits `patience` seconds for the agents to end. Agents on nodes that do not answer never end; their nodes are cleaned too.
    Nodes that run agents of another DaemonSet stay as they are.
    Raises KubeconfigInvalid when no API server is known, and what `KubeClient` says.
    """

    async def run() -> None:
        async with aclosing(ApiConnection(find_api_server(kubeconfig, environ))) as connection:
            cluster, leases = ClusterClient(connection), LeaseClient(connection, namespace)
            nodes = await _end_agents(cluster, namespace, daemon_set, patience, say)
            nodes |= {node.name async for node in cluster.nodes() if is_marked(node)}
            others = await _nodes_of_other_agents(cluster, namespace, daemon_set, say)
            nodes -= others
            if others:
                for name in sorted(nodes):
                    for lease in (ticket_name(name), lease_name(REPORT, name), lease_name(CHOICES, name)):
                        await leases.delete(Lease(lease))
            else:
                for label in (TICKET_LABEL, PLACING_LABEL, TOLD_LABEL):
                    await leases.delete_all(label)
            for name in sorted(nodes):
                await _clean(cluster, name, parts, say)

    asyncio.run(run())


async def _end_agents(cluster: ClusterClient, namespace: str, name: str, patience: float, say: Say) -> set[str]:
    """Delete the DaemonSet and wait for its pods to end; returns the nodes that they ran on."""
    found = await cluster.daemon_set(namespace, name)
    if found is None:
        say(f"DaemonSet {namespace}/{name} does not exist")
        return set()
    pods = await cluster.nodes_of_pods(namespace, found.selector)
    await cluster.delete_daemon_set(namespace, name)
    left = pods
    try:
        async with asyncio.timeout(patience):
            while left := await cluster.nodes_of_pods(namespace, found.selector):
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        nodes = ", ".join(sorted(set(left.values())))
        say(f"agents are still running on these nodes after {patience:.0f} s and could leave files there: {nodes}")
    say(f"told the agents on {len(set(pods.values()))} nodes to exit")
    return {*pods.values(), *left.values()}


async def _nodes_of_other_agents(cluster: ClusterClient, namespace: str, name: str, say: Say) -> set[str]:
    """The nodes of agents that stay, which own what is written there. None where this account may not ask."""
    nodes: set[str] = set()
    try:
        for each in await cluster.daemon_sets():
            if each.runs_agents and not each.deleting and (each.namespace, each.name) != (namespace, name):
                found = set((await cluster.nodes_of_pods(each.namespace, each.selector)).values())
                say(
                    f"DaemonSet {each.namespace}/{each.name} also runs agents, so these nodes are left unchanged: "
                    f"{', '.join(sorted(found))}"
                )
                nodes |= found
    except KubernetesForbidden as error:
        say(f"cannot tell whether other agents exist: {error.message}")
    return nodes


async def _clean(cluster: ClusterClient, name: str, parts: Collection[str], say: Say) -> None:
    try:
        found = cleaning(await cluster.get_node(name), parts)
        if found.uncordon:
            await cluster.set_unschedulable(name, False)
        if found.condition is not None:
            await cluster.remove_node_condition(name, found.condition)
        # Last: an annotation marks the node as not yet clean.
        if found.labels or found.annotations:
            await cluster.patch_node_metadata(name, labels=found.labels, annotations=found.annotations)
    except KubernetesNotFound:
        return  # the node has left the cluster in the meantime
    counts = f"{len(found.labels)} labels, {len(found.annotations)} annotations"
    say(
        f"node {name}: {counts}{' and a condition' if found.condition else ''} cleaned up"
        if found
        else f"node {name}: clean"
    )


async def last_look_at(connection: ApiConnection, namespace: str, daemon_set: str) -> DaemonSet | None:
    """The DaemonSet as an ending agent finds it; None when it does not exist or the API server does not show it within a second.

    A missing DaemonSet proves nothing: this agent may run without one.
    """
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            return await KubeClient(connection).daemon_set(namespace, daemon_set)
    except (TimeoutError, TrancheError):
        return None


def take_files_along(cdi_folder: Path, kubelet_folder: Path) -> None:
    """Remove the files that the agent left for new containers, and its folder in the kubelet's if that is empty.

    The state folder stays: it records who holds what. So does a file that cannot be removed, and the agent goes on cleaning up.
    """
    try:
        write_spec(CdiSpec(CDI_KIND, (), ContainerEdits()), cdi_folder)
    except CdiUnavailable as error:
        _log.warning("containers' CDI files remain", extra={"error": error.message})
    with suppress(OSError):  # another agent's socket is in it, or it was never made
        socket_folder(kubelet_folder).rmdir()


async def give_gpus_back(host: Host, pods: PodRegister, say: Callable[[str], Awaitable[None]]) -> None:
    """End unused MPS daemons and restore their GPUs' compute modes; say which daemons programs still use.

    No agent looks after the remaining ones until another agent runs here.
    """
    try:
        async with asyncio.timeout(_DAEMONS_END_SECONDS):
            with suppress(TrancheError):  # on failure, the pods that ended just now keep what they have
                await pods.look()
            left = await asyncio.to_thread(_end_idle_daemons, host)
            if left:
                await say(
                    f"programs still share {', '.join(left)} through MPS. The MPS daemons keep running until another "
                    "agent runs on this node. To clean up manually after the programs exit: stop "
                    "nvidia-cuda-mps-control, then run nvidia-smi -c DEFAULT"
                )
    except (TrancheError, TimeoutError) as error:
        _log.warning("cannot stop unused MPS daemons", extra={"error": str(error) or "out of time"})


def _end_idle_daemons(host: Host) -> tuple[str, ...]:
    """End unused daemons; returns the devices of those that stay."""
    host.daemons.records.expire()
    view = host.view(seconds=_DAEMONS_END_SECONDS, thorough=True)
    return tuple(daemon.device_uuid for gpu in view.node for daemon in gpu.daemons)


_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_NAMED = 20


def say_claims_left(kubeconfig: str | None, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Name the pods that cannot end until an agent runs again. Says nothing where the cluster has no claims.

    Raises KubeconfigInvalid when no API server is known, and KubernetesUnavailable when it does not answer.
    """

    async def read() -> tuple[ClusterReader, tuple[FleetClaim, ...] | None]:
        async with aclosing(ApiConnection(find_api_server(kubeconfig, environ))) as connection:
            reader = ClusterReader(connection)
            return reader, await reader.decoded("claims", _CLAIMS, decode_fleet_claim)

    reader, found = asyncio.run(read())
    if reader.unread:
        say("cannot tell which pods have GPUs through claims: this account has no permission to read claims")
    pods = sorted({f"{each.namespace}/{name}" for each in found or () if each.given for name in each.pods})
    if pods:
        more = f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
        say(
            f"{len(pods)} pods have GPUs through claims and keep running. If you delete one, it stays Terminating "
            f"until an agent runs on its node again: {', '.join(pods[:_NAMED])}{more}"
        )
