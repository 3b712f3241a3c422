"""Are the nodes with GPUs healthy, do their versions fit the API server's, and does each offer what it is cut into?

Does another program do the agent's work on the same nodes, and can a pod see devices that it was not given, by naming them in
its own environment?
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tranche.core.spelling import did_you_mean
from tranche.kubernetes.claims.node_mode import NodeMode, node_mode
from tranche.kubernetes.claims.vocabulary import MODE_LABEL
from tranche.kubernetes.device_plugin.config import DeviceListStrategy
from tranche.kubernetes.device_plugin.device_lists import why_no_cdi
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.support.checks.gpu_nodes import gpu_nodes
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts, SurveyedNode
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.kubernetes.support.programs import DEVICE_PLUGIN, FEATURE_LABELS, MIG_MANAGER
from tranche.node.health.checkup import Status

OLDEST_MINOR = 27
"""The oldest minor version of Kubernetes 1 that the chart takes."""

_SKEW = 3
_BAD_WHEN_TRUE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def check_nodes(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Conditions and cordons of the GPU nodes, and the versions of the API server and of their kubelets."""
    server = _minor(facts.server_version)
    if server is not None and server < OLDEST_MINOR:
        yield ClusterFinding(
            "versions",
            Status.FAIL,
            f"the API server is {facts.server_version}, and the chart needs 1.{OLDEST_MINOR}",
            "upgrade the cluster",
        )
    nodes = gpu_nodes(facts)
    if not nodes:
        yield ClusterFinding(
            "nodes",
            Status.WARN,
            "no node shows a GPU",
            "a node is known by its labels, its capacity or its instance type",
        )
    for node in nodes:
        yield from _conditions(node)
        yield from _skew(node, facts.server_version)


def _conditions(node: SurveyedNode) -> Iterator[ClusterFinding]:
    ready = node.condition("Ready")
    where = (node.name,)
    wrong = False
    if ready is None or ready.status != "True":
        wrong = True
        said = "it never reported" if ready is None else f"{ready.reason}: {ready.message}"
        yield ClusterFinding(
            "node", Status.FAIL, f"is not Ready ({said})", "its kubelet or its machine; running pods go on", where
        )
    for each in node.conditions:
        if each.type in _BAD_WHEN_TRUE and each.status == "True":
            wrong = True
            yield ClusterFinding(
                "node", Status.FAIL, f"{each.type}: {each.message}", "free what is short on the node", where
            )
    if CORDON_ANNOTATION in node.annotations:
        wrong = True
        yield ClusterFinding(
            "node",
            Status.WARN,
            "is cordoned by its agent, which makes room for a layout",
            "it ends with the layout; a failed one keeps it until the label is changed",
            where,
        )
    elif node.unschedulable:
        wrong = True
        yield ClusterFinding("node", Status.WARN, "is cordoned", f"kubectl uncordon {node.name}", where)
    if not wrong:
        yield ClusterFinding("node", Status.PASS, "is Ready", nodes=where)


def _skew(node: SurveyedNode, server: str) -> Iterator[ClusterFinding]:
    kubelet, api = _minor(node.kubelet_version), _minor(server)
    if kubelet is None or api is None:
        return
    if kubelet > api or api - kubelet > _SKEW:
        yield ClusterFinding(
            "versions",
            Status.FAIL,
            f"its kubelet is {node.kubelet_version}, and the API server {server}",
            f"Kubernetes allows a kubelet up to {_SKEW} minor versions older than its API server, and none newer",
            (node.name,),
        )


def _minor(version: str) -> int | None:
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


_CONSEQUENCE = {
    MIG_MANAGER: "each would undo the other's cuts",
    DEVICE_PLUGIN: "the kubelet takes the devices of whoever registered last",
    FEATURE_LABELS: "each overwrites the other's labels",
}
_VALUE = {
    MIG_MANAGER: ("migManager.enabled=false", "mig.manager: --set migManager.enabled=false"),
    DEVICE_PLUGIN: ("devicePlugin.enabled=false", "its plugin: --set devicePlugin.enabled=false"),
    FEATURE_LABELS: ("featureLabels.enabled=false", "its labels: --set gfd.enabled=false"),
}


def check_neighbours(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Other programs on nodes that an agent with the same part serves; and systems that partition GPUs by themselves."""
    found = False
    for other in facts.others:
        served = {
            pod.node for agents in facts.agents if other.part not in agents.daemon_set.left_out for pod in agents.pods
        }
        both = tuple(node for node in other.nodes if node in served)
        if both:
            found = True
            ours, theirs = _VALUE[other.part]
            yield ClusterFinding(
                "neighbours",
                Status.WARN if other.part == FEATURE_LABELS else Status.FAIL,
                f"{other.product} ({other.daemon_set}) runs beside the agent: {_CONSEQUENCE[other.part]}",
                f"leave the work to one: turn Tranche's part off with {ours}, or in the GPU Operator {theirs}",
                both,
            )
    for node in gpu_nodes(facts):
        if node.os_image.startswith("Bottlerocket"):
            found = True
            yield ClusterFinding(
                "neighbours",
                Status.WARN,
                "Bottlerocket partitions GPUs at boot and runs a device plugin of its own",
                "leave its GPUs to it: keep the agent away with nodeSelector, or turn Bottlerocket's settings off",
                (node.name,),
            )
    if not found and facts.agents:
        yield ClusterFinding(
            "neighbours", Status.PASS, "no other program known to doctor does the agent's work on its nodes"
        )


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


_PART = "device-plugin"
_OPTION = "--device-list-strategy"
_HINT = (
    "containerd 2.0 or CRI-O 1.28 with Kubernetes 1.31 take CDI; until then have the NVIDIA container toolkit refuse the "
    "variable: docs/reference/device-plugin.md says how"
)


def check_given_devices(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """The way by which the agents' device plugin tells containers of their devices, by what arguments and versions show."""
    nodes = {node.name: node for node in facts.nodes}
    for agents in facts.agents:
        if _PART in agents.daemon_set.left_out:
            continue
        for name in sorted({pod.node for pod in agents.pods} & nodes.keys()):
            if why := _why_exposed(agents, nodes[name]):
                yield ClusterFinding(
                    "devices",
                    Status.WARN,
                    f"a pod that sets NVIDIA_VISIBLE_DEVICES itself sees every GPU: {why}",
                    _HINT,
                    (name,),
                )


def _why_exposed(agents: AgentSetFacts, node: SurveyedNode) -> str:
    strategies = agents.daemon_set.option(_OPTION, DeviceListStrategy.AUTO).split(",")
    if strategies == [DeviceListStrategy.AUTO]:
        return why_no_cdi(node.container_runtime, node.kubelet_version)
    return f"{_OPTION} is envvar" if strategies == [DeviceListStrategy.ENVVAR] else ""
