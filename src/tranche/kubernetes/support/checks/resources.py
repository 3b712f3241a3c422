"""Does each node offer what it is cut into?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tranche.core.spelling import did_you_mean
from tranche.kubernetes.claims.node_mode import NodeMode, node_mode
from tranche.kubernetes.claims.vocabulary import MODE_LABEL
from tranche.kubernetes.support.checks.gpu_nodes import gpu_nodes
from tranche.kubernetes.support.facts import ClusterFacts, SurveyedNode
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.health.checkup import Status

_SLICES = re.compile(r"nvidia\.com/(mig-[0-9].*)\.count")
_STRATEGY_LABEL = "nvidia.com/mig.strategy"


def check_resources(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Capacity beside what can be had of it, and beside the slices that the feature labels count."""
    served = {pod.node for agents in facts.agents for pod in agents.pods}
    for node in gpu_nodes(facts):
        if node_mode(node.labels) is not NodeMode.STATIC:
            yield _by_mode(node)
            continue
        found = list(_of(node, served=node.name in served))
        yield from found
        offered = {key: count for key, count in node.allocatable.items() if count}
        if not found and offered:
            shown = ", ".join(f"{count} {key}" for key, count in sorted(offered.items()))
            yield ClusterFinding("resources", Status.PASS, f"offers {shown}", nodes=(node.name,))
        if not found and not offered:
            yield ClusterFinding(
                "resources",
                Status.WARN,
                "offers no GPU and no slice",
                "the node's agent or the strategy: under single, all GPUs must be cut alike",
                (node.name,),
            )


def _by_mode(node: SurveyedNode) -> ClusterFinding:
    """A node that the device plugin offers nothing of."""
    mode = node_mode(node.labels)
    if mode is None:
        word = node.labels.get(MODE_LABEL, "")
        text = f"gives nothing away: its label {MODE_LABEL} is '{word}', which is no mode"
        modes = ", ".join(NodeMode)
        return ClusterFinding(
            "resources",
            Status.WARN,
            text,
            f"{did_you_mean(word, map(str, NodeMode))}it is one of {modes}",
            (node.name,),
        )
    text = "gives nothing away" if mode is NodeMode.OFF else "gives its GPUs to whoever asks for shares"
    return ClusterFinding("resources", Status.PASS, f"{text}, by its mode {mode}", nodes=(node.name,))


def _of(node: SurveyedNode, *, served: bool) -> Iterator[ClusterFinding]:
    why = "the agent calls them unhealthy" if served else "no agent is there"
    hint = (
        "for half a minute after a change of the GPUs this is normal; if it lasts, "
        f"kubectl get events --field-selector=involvedObject.name={node.name} names the GPU and the XID"
        if served
        else "what an agent has offered stays named, and none of it allocatable, until the kubelet starts again"
    )
    for resource, capacity in sorted(node.capacity.items()):
        usable = node.allocatable.get(resource, 0)
        if usable < capacity:
            yield ClusterFinding(
                "resources",
                Status.FAIL,
                f"{capacity - usable} of {capacity} {resource} cannot be given to pods: {why}",
                hint,
                (node.name,),
            )
    for resource, labelled in _labelled(node):
        capacity = node.capacity.get(resource, 0)
        if capacity != labelled:
            yield ClusterFinding(
                "resources",
                Status.WARN,
                f"the feature labels count {labelled} {resource}, and the kubelet {capacity}",
                "the kubelet follows within seconds; if this lasts, see the agent's log for registration and withdrawn devices",
                (node.name,),
            )


def _labelled(node: SurveyedNode) -> Iterator[tuple[str, int]]:
    """The resources whose number the feature labels say; under no strategy they do not."""
    for key, value in sorted(node.labels.items()):
        slices = _SLICES.fullmatch(key)
        if slices is not None and value.isdigit():
            yield f"nvidia.com/{slices[1]}", int(value)
    count = node.labels.get("nvidia.com/gpu.count", "")
    if node.labels.get(_STRATEGY_LABEL) == "single" and count.isdigit():
        yield "nvidia.com/gpu", int(count)
