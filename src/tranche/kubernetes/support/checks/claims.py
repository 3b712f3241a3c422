"""Can this cluster give shares by demand, and how?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.claims.allocation_backend import (
    AllocationBackend,
    backend_by_word,
    claim_support,
    support_as_told,
)
from tranche.kubernetes.support.facts import ClusterFacts
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.health.checkup import Status

_MEANING = {
    AllocationBackend.CLAIMS: "shares by demand: by claims, which the scheduler serves",
    AllocationBackend.GUARDED: "shares by demand: by claims, with the agent as a guard",
    AllocationBackend.GATES: "shares by demand: by scheduling gates, with the choice of the controller",
    AllocationBackend.NONE: "no shares by demand; layouts and the device plugin serve static slices",
}


def check_claims(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """The backend of the cluster, and why."""
    if facts.claims is None:
        return
    words = {backend_by_word(each.daemon_set.option("--tier", "auto")) for each in facts.agents}
    said = words.pop() if len(words) == 1 else None
    support = support_as_told(claim_support(facts.server_version, facts.claims), said)
    status = (
        Status.PASS if support.backend is AllocationBackend.CLAIMS or (said and not support.remedy) else Status.WARN
    )
    yield ClusterFinding("claims", status, f"{_MEANING[support.backend]} ({support.why})", support.remedy)
