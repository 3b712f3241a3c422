"""Can this cluster give shares by demand, and how?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.claims.tier import Tier, claim_support
from tranche.kubernetes.support.facts import ClusterFacts
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.checkup import Status

_MEANING = {
    Tier.CLAIMS: "shares by demand: by claims, which the scheduler serves",
    Tier.GUARDED: "shares by demand: by claims, with the agent as a guard",
    Tier.GATES: "shares by demand: by scheduling gates, with the choice of the controller",
    Tier.NONE: "no shares by demand; layouts and the device plugin serve static slices",
}


def check_claims(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """The tier of the cluster, and why."""
    if facts.claims is None:
        return
    support = claim_support(facts.server_version, facts.claims)
    status = Status.PASS if support.tier is Tier.CLAIMS else Status.WARN
    yield ClusterFinding("claims", status, f"{_MEANING[support.tier]} ({support.why})", support.remedy)
