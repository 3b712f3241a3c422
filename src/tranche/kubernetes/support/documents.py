"""A checkup of a cluster as JSON data."""

from __future__ import annotations

from tranche.kubernetes.support.findings import ClusterFinding


def cluster_finding_document(found: ClusterFinding) -> dict[str, object]:
    """One finding; `check` and `status` are stable words."""
    return {
        "check": found.check,
        "status": str(found.status),
        "nodes": list(found.nodes),
        "pods": list(found.pods),
        "message": found.text,
        "hint": found.hint,
    }
