"""Pods that hold devices, as allocations: what plans must leave alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tranche.core.allocation import Allocation, Grant, NodeView, Phase, WholeGpu
from tranche.core.devices import devices
from tranche.core.keeper import PodKeeper
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.kubernetes.api.objects import PodRef


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
        Allocation(
            f"pod/{pod}",
            _request(tuple(held)),
            tuple(held),
            Phase.ACTIVE,
            created=0.0,
            keeper=PodKeeper("", pod.namespace, pod.name) if pod.namespace else PodKeeper(""),
        )
        for pod, held in sorted(grants.items())
    )
    return replace(view, allocations=view.allocations + pods)


def _request(held: tuple[Grant, ...]) -> Request:
    """The demand that comes nearest to what the pod holds; plans look at grants only."""
    whole = sum(isinstance(grant, WholeGpu) for grant in held)
    profile = next((grant.slot.profile for grant in held if grant.slot is not None), None)
    return Request(WholeGpus(whole) if whole or profile is None else MigSlice(profile))
