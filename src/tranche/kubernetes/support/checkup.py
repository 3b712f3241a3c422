"""Is Tranche fit on this cluster? All checks on one survey's facts, and their findings as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from tranche.kubernetes.support.checks.agents import check_access, check_agents, check_claims, check_controllers
from tranche.kubernetes.support.checks.layouts import check_layouts, check_turns
from tranche.kubernetes.support.checks.nodes import check_given_devices, check_neighbours, check_nodes, check_resources
from tranche.kubernetes.support.facts import ClusterFacts, ClusterFinding
from tranche.node.health.checkup import Status


def check_cluster(facts: ClusterFacts, *, now: datetime, own_version: str) -> tuple[ClusterFinding, ...]:
    """All findings, good ones included; `now` has a time zone."""
    return tuple(_together(_all(facts, now, own_version)))


def _all(facts: ClusterFacts, now: datetime, own_version: str) -> Iterator[ClusterFinding]:
    yield ClusterFinding("api-server", Status.PASS, f"the API server responds; Kubernetes {facts.server_version}")
    for what, why in facts.unread.items():
        yield ClusterFinding("not-read", Status.WARN, f"skipped: {what}", f"your account may not: {why}")
    yield from check_claims(facts)
    yield from check_agents(facts, own_version)
    yield from check_controllers(facts)
    yield from check_nodes(facts)
    yield from check_layouts(facts, now)
    yield from check_turns(facts)
    yield from check_resources(facts)
    yield from check_given_devices(facts)
    yield from check_neighbours(facts)
    yield from check_access(facts)


def _together(findings: Iterable[ClusterFinding]) -> Iterator[ClusterFinding]:
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
