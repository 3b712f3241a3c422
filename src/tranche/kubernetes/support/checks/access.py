"""Have the agents their rights, and do the admission policies hold them to what they need?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.kubernetes.support.programs import CLAIM_DRIVER
from tranche.node.health.checkup import Status

_EVENTS = " events in default"


def check_access(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Rights of each agent's account; policies of the cluster."""
    for agents in facts.agents:
        yield from _rights(agents)
    if facts.agents:
        yield from _policies(facts)


def _rights(agents: AgentSetFacts) -> Iterator[ClusterFinding]:
    account = f"{agents.daemon_set.namespace}/{agents.daemon_set.service_account}"
    if agents.lacking is None:
        return  # what the caller may not ask is reported for itself
    needed = [each for each in agents.lacking if not each.endswith(_EVENTS)]
    if needed:
        yield ClusterFinding(
            "rights",
            Status.FAIL,
            f"the agent's account {account} may not: {'; '.join(needed)}",
            "upgrade the chart with rbac.create=true, or grant it these; the options of the DaemonSet need them",
        )
    if len(needed) < len(agents.lacking):
        yield ClusterFinding(
            "rights",
            Status.WARN,
            f"the agent's account {account} may not record events about nodes",
            "everything else works; the chart's Role in the namespace default grants it",
        )
    if not agents.lacking:
        yield ClusterFinding(
            "rights", Status.PASS, f"the agent's account {account} has the rights that its options need"
        )


def _policies(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    if any("admission policies" in each for each in facts.unread):
        return
    if facts.policies is None or facts.bindings is None:
        yield ClusterFinding(
            "policies",
            Status.WARN,
            f"this API server ({facts.server_version}) has no ValidatingAdmissionPolicy: an agent may change every node",
            "Kubernetes 1.30 and newer has them",
        )
        return
    names = {f"{agents.daemon_set.name}-own-{what}" for agents in facts.agents for what in ("node", "leases")}
    by_claims = (agents.daemon_set for agents in facts.agents if CLAIM_DRIVER not in agents.daemon_set.left_out)
    names |= {f"{each.name}-own-slices" for each in by_claims}
    missing = sorted((names - facts.policies) | (names - facts.bindings))
    if missing:
        yield ClusterFinding(
            "policies",
            Status.WARN,
            f"no admission policy with a binding holds the agents to their own nodes: {', '.join(missing)}",
            "upgrade the chart with admissionPolicy.enabled=true",
        )
    else:
        yield ClusterFinding("policies", Status.PASS, "admission policies hold each agent to its own node")
