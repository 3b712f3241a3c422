"""Do the nodes that take turns to change their layout get on?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.rollout.ticket import GO_ON_ANNOTATION, TicketState, ticket_name
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.health.checkup import Status


def check_turns(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """A node that failed holds up the others, until it succeeds or somebody says go on."""
    # The agents of one namespace take turns with each other, whichever DaemonSet they are of.
    for agents in {each.daemon_set.namespace: each for each in facts.agents if each.turns}.values():
        yield from _turns(agents)


def _turns(agents: AgentSetFacts) -> Iterator[ClusterFinding]:
    waiting = sum(each.state == TicketState.WAITING for each in agents.turns)
    held_up = False
    for each in agents.turns:
        if each.state == TicketState.FAILED and not each.go_on:
            held_up = True
            lease = f"kubectl --namespace={agents.daemon_set.namespace} annotate lease {ticket_name(each.node)}"
            yield ClusterFinding(
                "turns",
                Status.FAIL,
                f"failed in its turn to change its layout; {waiting} other nodes wait until it succeeds",
                f"see its layout above; to go on without it: {lease} {GO_ON_ANNOTATION}=yes",
                (each.node,),
            )
    if not held_up:
        text = f"{len(agents.turns) - waiting} nodes change their layout, and {waiting} wait for their turn"
        yield ClusterFinding("turns", Status.PASS, text)
