"""Pods that hold devices, as allocations: what plans must leave alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tranche.core.allocation import Allocation, Grant, NodeView, Phase
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.core.state import NodeState
from tranche.kubernetes.api.objects import PodRef


def devices(node: NodeState) -> Mapping[str, Grant]:
    """Every device UUID of the node: each GPU, and each slice with the GPU instance that it is in."""
    found: dict[str, Grant] = {}
    for gpu in node:
        found[gpu.uuid] = Grant(gpu.uuid)
        for instance in gpu.instances:
            for compute in instance.compute_instances:
                found[compute.uuid] = Grant(gpu.uuid, instance.profile, instance.placement)
    return found


def view_with_pods(view: NodeView, holders: Mapping[str, PodRef]) -> NodeView:
    """The view with one more allocation for each pod that holds devices, `pod/<namespace>/<name>`.

    Devices that the node does not have are left out: the kubelet remembers slices that were taken from under it.
    """
    known = devices(view.node)
    grants: dict[PodRef, dict[Grant, None]] = {}
    for uuid, pod in sorted(holders.items()):
        if (grant := known.get(uuid)) is not None:
            grants.setdefault(pod, {})[grant] = None
    pods = tuple(
        Allocation(f"pod/{pod}", _request(tuple(held)), tuple(held), Phase.ACTIVE, created=0.0)
        for pod, held in sorted(grants.items())
    )
    return replace(view, allocations=view.allocations + pods)


def _request(held: tuple[Grant, ...]) -> Request:
    """The demand that comes nearest to what the pod holds; plans look at grants only."""
    whole = sum(grant.whole_gpu for grant in held)
    profile = next((grant.profile for grant in held if grant.profile is not None), None)
    return Request(WholeGpus(whole) if whole or profile is None else MigSlice(profile))
