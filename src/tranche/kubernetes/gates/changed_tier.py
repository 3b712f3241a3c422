"""Pods that wait for shares in a way that their cluster has left. Pure."""

from __future__ import annotations

from dataclasses import replace

from tranche.kubernetes.claims.tier import BY_CLAIMS, Tier
from tranche.kubernetes.fleet.explanation import FleetExplanation, WaitStatus
from tranche.kubernetes.fleet.objects import FleetPod

LEFT_AT_GATE = (
    "it waits at the gate tranche.dev/share, and this cluster gives shares by claims now: nobody chooses one for it"
)
AT_GATE_ADVICE = (
    "delete the pod: what makes it anew gets a claim; a job of tranche submit is to be deleted and submitted again"
)
_LEFT_WITH_CLAIM = (
    "it waits for a claim, and this cluster gives shares by scheduling gates now: no node serves its claim"
)
_WITH_CLAIM_ADVICE = (
    "delete the pod: what makes it anew by its annotations waits at the gate; a job of tranche submit is to be deleted "
    "and submitted again"
)
_WAITS = frozenset((WaitStatus.PREPARING, WaitStatus.STARTABLE, WaitStatus.WAITING, WaitStatus.IMPOSSIBLE))


def as_in_tier(found: FleetExplanation, pod: FleetPod, tier: Tier) -> FleetExplanation:
    """The explanation, unless the pod waits in another way than the cluster gives shares: then what it waits for never comes."""
    if found.status not in _WAITS or pod.node:
        return found
    by_gate = pod.by_gate is not None or bool(pod.gate_problem)
    if by_gate and pod.gated and tier in BY_CLAIMS:
        return _for_ever(found, LEFT_AT_GATE, AT_GATE_ADVICE)
    if not by_gate and (pod.claims or pod.templates) and tier is Tier.GATES:
        return _for_ever(found, _LEFT_WITH_CLAIM, _WITH_CLAIM_ADVICE)
    return found


def _for_ever(found: FleetExplanation, message: str, advice: str) -> FleetExplanation:
    return replace(
        found,
        status=WaitStatus.IMPOSSIBLE,
        message=message,
        get=None,
        groups=(),
        unnamed=0,
        remedies=(advice,),
        notes=(),
    )
