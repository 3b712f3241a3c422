"""Can a pod see devices that it was not given, by naming them in its own environment?"""

from __future__ import annotations

from collections.abc import Iterator

from tranche.kubernetes.device_plugin.config import DeviceListStrategy
from tranche.kubernetes.device_plugin.device_lists import why_no_cdi
from tranche.kubernetes.support.facts import AgentSetFacts, ClusterFacts, SurveyedNode
from tranche.kubernetes.support.findings import ClusterFinding
from tranche.node.health.checkup import Status

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
