"""Does somebody answer for annotations, and choose shares where the cluster has no claims?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.support.facts import ClusterFacts, ControllerFacts
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.health.checkup import Status

_WITHOUT = "pods that ask by annotations are refused, and nobody chooses shares in a cluster without claims"


def check_controllers(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Each controller that is installed; a cluster may do without one."""
    for each in facts.controllers:
        yield _check(each)


def _check(each: ControllerFacts) -> ClusterFinding:
    of = f"{each.ready} of {each.wanted}"
    logs = f"kubectl --namespace={each.namespace} describe deployment {each.name}, and logs deployment/{each.name}"
    if not each.wanted:
        scale = f"kubectl --namespace={each.namespace} scale deployment {each.name} --replicas=2"
        return ClusterFinding("controller", Status.FAIL, f"the controller {each} is scaled to 0: {_WITHOUT}", scale)
    if not each.ready:
        return ClusterFinding(
            "controller", Status.FAIL, f"no replica of the controller {each} is ready: {_WITHOUT}", logs
        )
    if each.ready < each.wanted:
        return ClusterFinding("controller", Status.WARN, f"{of} replicas of the controller {each} are ready", logs)
    return ClusterFinding("controller", Status.PASS, f"the controller {each} is ready, {of} replicas")
