"""Is Tranche fit on this cluster? All checks on one survey's facts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tranche.kubernetes.support.checks.agents import check_access, check_agents, check_claims, check_controllers
from tranche.kubernetes.support.checks.layouts import check_layouts, check_turns
from tranche.kubernetes.support.checks.nodes import check_given_devices, check_neighbours, check_nodes, check_resources
from tranche.kubernetes.support.facts import ClusterFacts
from tranche.kubernetes.support.findings import ClusterFinding, together
from tranche.node.health.checkup import Status


def check_cluster(facts: ClusterFacts, *, now: datetime, own_version: str) -> tuple[ClusterFinding, ...]:
    """All findings, good ones included; `now` has a time zone."""
    return tuple(together(_all(facts, now, own_version)))


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
