"""The findings of a cluster's checks, also as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tranche.node.health.checkup import Status


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One finding about these nodes and pods. `check` is a stable word; `pods` are `namespace/name`."""

    check: str
    status: Status
    text: str
    hint: str = ""
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


def together(findings: Iterable[ClusterFinding]) -> Iterator[ClusterFinding]:
    """Merges findings that say the same about several nodes or pods, in the place of the first."""
    same: dict[tuple[str, Status, str, str], ClusterFinding] = {}
    for each in findings:
        key = (each.check, each.status, each.text, each.hint)
        before = same.get(key)
        same[key] = (
            each
            if before is None
            else replace(before, nodes=(*before.nodes, *each.nodes), pods=(*before.pods, *each.pods))
        )
    yield from same.values()


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
