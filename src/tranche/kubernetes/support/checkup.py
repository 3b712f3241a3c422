"""Is Tranche fit on this cluster? All checks on one survey's facts, and their findings as JSON data.

Here are the checks of layouts: are those that labels ask for in effect, is the shared ConfigMap of layouts readable, and do nodes
that take turns make progress?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from tranche.core.errors import LayoutInvalid
from tranche.core.layout_format import parse_layouts
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.mig_manager.state import CONDITION_TYPE, LAYOUT_LABEL, REASON_LABEL, STATE_LABEL, MigState
from tranche.kubernetes.rollout.ticket import GO_ON_ANNOTATION, TicketState, ticket_name
from tranche.kubernetes.support.checks.agents import check_access, check_agents, check_claims, check_controllers
from tranche.kubernetes.support.checks.nodes import (
    check_given_devices,
    check_neighbours,
    check_nodes,
    check_resources,
    gpu_nodes,
)
from tranche.kubernetes.support.facts import ClusterFacts, ClusterFinding
from tranche.node.files.files import parse_document
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
    yield from _check_layouts(facts, now)
    yield from _check_turns(facts)
    yield from check_resources(facts)
    yield from check_given_devices(facts)
    yield from check_neighbours(facts)
    yield from check_access(facts)


def _together(findings: Iterable[ClusterFinding]) -> Iterator[ClusterFinding]:
    """Merges findings that say the same about several nodes or pods, in the place of the first."""
    same: dict[tuple[str, Status, str, str], ClusterFinding] = {}
    for each in findings:
        key = (each.check, each.status, each.text, each.hint)
        before = same.get(key, replace(each, nodes=(), pods=()))
        same[key] = replace(before, nodes=(*before.nodes, *each.nodes), pods=(*before.pods, *each.pods))
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


LONG_SECONDS = 600
"""A layout that has been pending for longer is worth a look."""

_HINTS = {
    "GpuBusy": "end the pods or programs that the message names; with migManager.inUse=drain, the agent evicts pods",
    "ManagerConflict": "another MIG manager changes this node's GPUs: remove it, or set migManager.enabled=false here",
    "LayoutUnknown": "correct the label, or add the layout to the ConfigMap of layouts",
    "LayoutImpossible": "the layout does not fit this GPU; on the node, tranche layout plan shows why",
    "WaitingForOperands": "the cluster's own GPU pods that the message names must end first",
    "WaitingForTurn": "rollout.maxUnavailable limits how many nodes change at once; the message names the nodes ahead",
    "RebootForMigMode": "reboot the node, or set migManager.withReboot=true",
}


def _check_layouts(facts: ClusterFacts, now: datetime) -> Iterator[ClusterFinding]:
    """Each GPU node with a label that names a layout; and each ConfigMap of layouts."""
    for agents in facts.agents:
        if agents.layouts is not None:
            name = agents.daemon_set.option("--layouts", "tranche-layouts")
            yield from _config_map(f"{agents.daemon_set.namespace}/{name}", agents.layouts)
    for node in gpu_nodes(facts):
        if wanted := node.labels.get(LAYOUT_LABEL, ""):
            yield _layout(node, wanted, now)


def _config_map(name: str, text: str) -> Iterator[ClusterFinding]:
    try:
        names = parse_layouts(parse_document(text, name, LayoutInvalid)).names
    except LayoutInvalid as error:
        yield ClusterFinding("layouts", Status.FAIL, f"ConfigMap {name} is invalid: {error}", "fix its key config.yaml")
        return
    yield ClusterFinding("layouts", Status.PASS, f"ConfigMap {name} has {len(names)} layouts: {', '.join(names)}")


def _layout(node: KubeNode, wanted: str, now: datetime) -> ClusterFinding:
    state = node.labels.get(STATE_LABEL, "")
    reason = node.labels.get(REASON_LABEL, "")
    condition = node.condition(CONDITION_TYPE)
    said = f": {condition.message}" if condition is not None and condition.message else ""
    hint = _HINTS.get(reason, f"kubectl describe node {node.name} shows the condition {CONDITION_TYPE} and its events")
    nodes = (node.name,)
    if state == MigState.SUCCESS:
        return ClusterFinding("layout", Status.PASS, f"layout {wanted} is active", nodes=nodes)
    if state == MigState.FAILED:
        return ClusterFinding("layout", Status.FAIL, f"layout {wanted} failed ({reason}){said}", hint, nodes)
    if state in (MigState.PENDING, MigState.REBOOTING):
        since = condition.since if condition is not None else None
        seconds = (now - since).total_seconds() if since is not None else 0.0
        ago = f" for {_span(seconds)}" if seconds >= 1 else ""
        status = Status.FAIL if seconds > LONG_SECONDS else Status.WARN
        return ClusterFinding("layout", status, f"layout {wanted} is {state}{ago} ({reason}){said}", hint, nodes)
    return ClusterFinding(
        "layout",
        Status.FAIL,
        f"layout {wanted} is requested, but no agent has responded",
        "check the node's agent; with migManager.enabled=false, it ignores the label",
        nodes,
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _check_turns(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """A failed node holds up the others, until it succeeds or someone says go on."""
    # The agents of one namespace take turns with each other, across DaemonSets.
    for namespace, turns in {each.daemon_set.namespace: each.turns for each in facts.agents if each.turns}.items():
        waiting = sum(each.state == TicketState.WAITING for each in turns)
        failed = [each.node for each in turns if each.state == TicketState.FAILED and not each.go_on]
        for node in failed:
            lease = f"kubectl --namespace={namespace} annotate lease {ticket_name(node)}"
            yield ClusterFinding(
                "turns",
                Status.FAIL,
                f"its layout change failed; {waiting} other nodes wait until it succeeds",
                f"see its layout above; to continue without it: {lease} {GO_ON_ANNOTATION}=yes",
                (node,),
            )
        if not failed:
            text = f"{len(turns) - waiting} nodes are changing their layout, and {waiting} wait for their turn"
            yield ClusterFinding("turns", Status.PASS, text)
