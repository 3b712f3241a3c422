"""The GPU Operator's operands: node labels that start and stop its DaemonSets while GPUs are cut. Pure.

NVIDIA's MIG manager sets `nvidia.com/gpu.deploy.*` to `paused-for-mig-change` during a change, and to `true` after it. This
manager does the same, with two differences: it adds no missing label, and leaves no label paused however a change ends. An
annotation says since when the labels are paused, and that this manager paused them.

Anyone who may create pods in some namespace can write what a pod says of itself. So a pod counts as an operand, or as NVIDIA's
manager, only in a namespace that the agent was told to trust.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tranche.kubernetes.api.objects import KubeNode, KubePod
from tranche.kubernetes.mig_manager.state import Moment, parse_moment

PAUSED = "paused-for-mig-change"
SINCE_ANNOTATION = "tranche.dev/mig.config.operands-paused"
PATIENCE_SECONDS = 300.0
"""How long operands may take to stop; as in NVIDIA's manager."""

_RUN, _DO_NOT_RUN = "true", "false"
_PREFIX = "nvidia.com/gpu.deploy."
# Operand label -> the `app` label of the pods that it starts, "" where they have none of their own.
_APPS = {
    f"{_PREFIX}device-plugin": "nvidia-device-plugin-daemonset",
    f"{_PREFIX}gpu-feature-discovery": "gpu-feature-discovery",
    f"{_PREFIX}dcgm-exporter": "nvidia-dcgm-exporter",
    f"{_PREFIX}dcgm": "nvidia-dcgm",
    f"{_PREFIX}nvsm": "",
    f"{_PREFIX}client": "",
}
_MANAGER_APP = "nvidia-mig-manager"


def pause(node: KubeNode) -> dict[str, str | None]:
    """The labels that pause every operand that may run; what an admin has set to `false` stays."""
    return {key: PAUSED for key in _APPS if node.labels.get(key, _DO_NOT_RUN) not in (_DO_NOT_RUN, PAUSED)}


def restore(node: KubeNode) -> dict[str, str | None]:
    """The labels that let every paused operand run again, regardless of who paused it."""
    return {key: _RUN for key in _APPS if node.labels.get(key) == PAUSED}


def paused_here(node: KubeNode) -> bool:
    """Whether this manager paused operands."""
    return SINCE_ANNOTATION in node.annotations


def paused_for(node: KubeNode, now: Moment) -> float | None:
    """For how many seconds this manager has paused operands; None if it has not, or if that is unknown."""
    text = node.annotations.get(SINCE_ANNOTATION)
    return None if text is None else parse_moment(text).until(now)


def still_running(labels: Mapping[str, str], pods: Iterable[KubePod], trusted: Collection[str]) -> tuple[KubePod, ...]:
    """The pods of paused operands in the trusted namespaces that have not ended yet.

    They match by their `app` label, or as pods of any DaemonSet whose node selector names a paused label. The latter covers
    clients of GPUs, under `nvidia.com/gpu.deploy.client`, and device plugins that the GPU Operator did not install.
    """
    paused = {key for key in _APPS if labels.get(key) == PAUSED}
    apps = {_APPS[key] for key in paused} - {""}
    return tuple(
        pod
        for pod in pods
        if not pod.finished
        and pod.ref.namespace in trusted
        and (pod.labels.get("app") in apps or (pod.owner_kind == "DaemonSet" and paused & pod.node_selector.keys()))
    )


def other_managers(pods: Iterable[KubePod], trusted: Collection[str]) -> tuple[KubePod, ...]:
    """The pods of NVIDIA's own MIG manager on the node, in the trusted namespaces."""
    return tuple(
        pod
        for pod in pods
        if not pod.finished and pod.ref.namespace in trusted and pod.labels.get("app") == _MANAGER_APP
    )
