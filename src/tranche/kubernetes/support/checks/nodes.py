"""Which nodes have GPUs? Are they healthy, do their versions fit the API server's, and does each offer what it is cut into?

Does another program do the agent's work on the same nodes, and can a pod see devices that it was not given, by naming them in its
own environment?
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tranche.core.spelling import did_you_mean
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.claims.node_mode import NodeMode, node_mode
from tranche.kubernetes.claims.quantity import gpu_counts
from tranche.kubernetes.claims.vocabulary import MODE_LABEL
from tranche.kubernetes.device_plugin.config import why_no_cdi
from tranche.kubernetes.device_plugin.settings import DeviceListStrategy
from tranche.kubernetes.mig_manager.drain import CORDON_ANNOTATION
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts, ClusterFinding
from tranche.kubernetes.support.programs import DEVICE_PLUGIN, FEATURE_LABELS, MIG_MANAGER
from tranche.node.health.checkup import Status

AGENT_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present", "tranche.dev/gpu")
"""Any of these, as `true`, makes the chart's affinity put an agent on the node."""

_OTHER_LABELS = (
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "k8s.amazonaws.com/accelerator",
    "cloud.google.com/gke-accelerator",
)
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# AWS's families with NVIDIA GPUs; g4ad has AMD's.
_AWS = re.compile(r"(p[2-9][a-z]*|g[3-9](?!ad)[a-z]*)(-[a-z0-9]+)?\.[a-z0-9-]+")


def why_gpu(node: KubeNode) -> str:
    """What shows that the node has NVIDIA GPUs; "" if nothing does."""
    for label in (*AGENT_LABELS, *_OTHER_LABELS):
        value = node.labels.get(label, "")
        if value and value != "false":
            return f"label {label}={value}"
    counted = sorted(key for key, count in gpu_counts(node.capacity).items() if count > 0)
    if counted:
        return f"capacity {counted[0]}"
    kind = node.labels.get(_INSTANCE_TYPE, "")
    return f"instance type {kind}" if _AWS.fullmatch(kind) else ""


def gpu_nodes(facts: ClusterFacts) -> tuple[KubeNode, ...]:
    """The nodes with GPUs, and those with an agent's pod."""
    with_agent = {pod.node for each in facts.agents for pod in each.pods}
    return tuple(node for node in facts.nodes if node.name in with_agent or why_gpu(node))


OLDEST_MINOR = 27
"""The oldest minor version of Kubernetes 1 that the chart supports."""

_SKEW = 3
_BAD_WHEN_TRUE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def check_nodes(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Conditions and cordons of the GPU nodes, and the versions of the API server and of their kubelets."""
    server = _minor(facts.server_version)
    if server is not None and server < OLDEST_MINOR:
        yield ClusterFinding(
            "versions",
            Status.FAIL,
            f"the API server has version {facts.server_version}, but the chart needs 1.{OLDEST_MINOR} or newer",
            "upgrade the cluster",
        )
    nodes = gpu_nodes(facts)
    if not nodes:
        yield ClusterFinding(
            "nodes",
            Status.WARN,
            "found no node with GPUs",
            "doctor recognises GPU nodes by labels, capacity or instance type",
        )
    for node in nodes:
        yield from _conditions(node)
        yield from _skew(node, facts.server_version)


def _conditions(node: KubeNode) -> Iterator[ClusterFinding]:
    wrong = []
    ready = node.condition("Ready")
    if ready is None or ready.status != "True":
        said = "it never reported" if ready is None else f"{ready.reason}: {ready.message}"
        hint = "check its kubelet and its machine; running pods continue"
        wrong.append((Status.FAIL, f"is not Ready ({said})", hint))
    for each in node.conditions:
        if each.type in _BAD_WHEN_TRUE and each.status == "True":
            wrong.append((Status.FAIL, f"{each.type}: {each.message}", "free the resource that the node lacks"))
    if CORDON_ANNOTATION in node.annotations:
        hint = "the agent uncordons it when the layout is active or, after a failure, when the label changes"
        wrong.append((Status.WARN, "is cordoned by its agent to make room for a layout", hint))
    elif node.unschedulable:
        wrong.append((Status.WARN, "is cordoned", f"kubectl uncordon {node.name}"))
    for found in wrong or [(Status.PASS, "is Ready", "")]:
        yield ClusterFinding("node", *found, (node.name,))


def _skew(node: KubeNode, server: str) -> Iterator[ClusterFinding]:
    kubelet, api = _minor(node.kubelet_version), _minor(server)
    if kubelet is None or api is None:
        return
    if kubelet > api or api - kubelet > _SKEW:
        yield ClusterFinding(
            "versions",
            Status.FAIL,
            f"its kubelet has version {node.kubelet_version}, and the API server {server}",
            f"Kubernetes supports kubelets up to {_SKEW} minor versions older than the API server, but none newer",
            (node.name,),
        )


def _minor(version: str) -> int | None:
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


_CONSEQUENCE = {
    MIG_MANAGER: "each would undo the other's changes",
    DEVICE_PLUGIN: "the kubelet uses the one that registered last",
    FEATURE_LABELS: "each overwrites the other's labels",
}
_VALUE = {
    MIG_MANAGER: ("migManager.enabled=false", "mig.manager: --set migManager.enabled=false"),
    DEVICE_PLUGIN: ("devicePlugin.enabled=false", "its plugin: --set devicePlugin.enabled=false"),
    FEATURE_LABELS: ("featureLabels.enabled=false", "its labels: --set gfd.enabled=false"),
}


def check_neighbours(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Other programs on nodes where an agent has the same part; and systems that partition GPUs themselves."""
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
                f"keep only one: turn off Tranche's part with {ours}, or in the GPU Operator {theirs}",
                both,
            )
    for node in gpu_nodes(facts):
        if node.os_image.startswith("Bottlerocket"):
            found = True
            yield ClusterFinding(
                "neighbours",
                Status.WARN,
                "Bottlerocket partitions GPUs at boot and runs its own device plugin",
                "exclude the node from the agent with nodeSelector, or turn off Bottlerocket's settings",
                (node.name,),
            )
    if not found and facts.agents:
        yield ClusterFinding("neighbours", Status.PASS, "no known program on the agent's nodes does the same work")


_SLICES = re.compile(r"nvidia\.com/(mig-[0-9].*)\.count")
_STRATEGY_LABEL = "nvidia.com/mig.strategy"


def check_resources(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Capacity compared with what is allocatable, and with the slices that the feature labels count."""
    served = {pod.node for agents in facts.agents for pod in agents.pods}
    for node in gpu_nodes(facts):
        static = node_mode(node.labels) is NodeMode.STATIC
        for found in _static(node, served=node.name in served) if static else [_by_mode(node)]:
            yield ClusterFinding("resources", *found, (node.name,))


def _static(node: KubeNode, *, served: bool) -> Sequence[tuple[Status, str, str]]:
    """What a node with layouts offers, as status, text and hint."""
    if wrong := list(_of(node, served=served)):
        return wrong
    offered = {key: count for key, count in gpu_counts(node.allocatable).items() if count}
    if offered:
        return [(Status.PASS, f"offers {', '.join(f'{count} {key}' for key, count in sorted(offered.items()))}", "")]
    hint = "check the node's agent and the MIG strategy: single needs the same slices on all GPUs"
    return [(Status.WARN, "offers no GPUs or slices", hint)]


def _by_mode(node: KubeNode) -> tuple[Status, str, str]:
    """A node whose device plugin offers nothing."""
    mode = node_mode(node.labels)
    if mode is None:
        word = node.labels.get(MODE_LABEL, "")
        text = f"offers nothing: its label {MODE_LABEL} is '{word}', which is not a mode"
        return Status.WARN, text, f"{did_you_mean(word, map(str, NodeMode))}use one of {', '.join(NodeMode)}"
    return Status.PASS, f"{'offers nothing' if mode is NodeMode.OFF else 'offers its GPUs on demand'} (mode {mode})", ""


def _of(node: KubeNode, *, served: bool) -> Iterator[tuple[Status, str, str]]:
    why = "the agent reports them as unhealthy" if served else "the node has no agent"
    hint = (
        "this is normal for half a minute after the GPUs change; after that, kubectl get events "
        f"--field-selector=involvedObject.name={node.name} shows the GPU and the XID"
        if served
        else "until it restarts, the kubelet lists a removed agent's resources with 0 allocatable"
    )
    counted, allocatable = gpu_counts(node.capacity), gpu_counts(node.allocatable)
    for resource, capacity in sorted(counted.items()):
        usable = allocatable.get(resource, 0)
        if usable < capacity:
            yield Status.FAIL, f"{capacity - usable} of {capacity} {resource} are not allocatable: {why}", hint
    for resource, labelled in _labelled(node):
        capacity = counted.get(resource, 0)
        if capacity != labelled:
            text = f"the feature labels count {labelled} {resource}, but the kubelet counts {capacity}"
            yield Status.WARN, text, _FOLLOWS


_FOLLOWS = "the kubelet normally catches up within seconds; if not, search the agent's log for registration and withdrawn devices"


def _labelled(node: KubeNode) -> Iterator[tuple[str, int]]:
    """The resources whose number the feature labels state; without a strategy they state none."""
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
    "upgrade to containerd 2.0 or CRI-O 1.28 and Kubernetes 1.31, which support CDI; until then, make the NVIDIA "
    "container toolkit ignore the variable: see docs/reference/device-plugin.md"
)


def check_given_devices(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """How the agents' device plugin tells containers of their devices, judged by arguments and versions."""
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


def _why_exposed(agents: AgentSetFacts, node: KubeNode) -> str:
    strategies = agents.daemon_set.option(_OPTION, DeviceListStrategy.AUTO).split(",")
    if strategies == [DeviceListStrategy.AUTO]:
        return why_no_cdi(node.container_runtime, node.kubelet_version)
    return f"{_OPTION} is envvar" if strategies == [DeviceListStrategy.ENVVAR] else ""
