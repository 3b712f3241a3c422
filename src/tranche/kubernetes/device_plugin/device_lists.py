"""The device-list strategy `auto`: CDI where the node's kubelet and runtime are known to support it, else the variable. Pure.

A container's own NVIDIA_VISIBLE_DEVICES wins over the device plugin's, and an NVIDIA container runtime obeys it. A CDI
specification is applied after a container's own variables, so a pod cannot bypass it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tranche.kubernetes.device_plugin.config import DeviceIdStrategy, DeviceListStrategy, PluginConfig

_KUBELET = (1, 31)
"""From this version on, a kubelet passes CDI names on with any feature gates."""

_RUNTIMES = {"containerd": (2, 0), "cri-o": (1, 28)}
"""From this version on, CDI is on by default; CRI-O accepted names of CDI devices later than CDI itself."""


def why_no_cdi(runtime: str, kubelet: str) -> str:
    """Why a node's versions, as its status has them, do not show that it supports CDI; "" when they do."""
    name, _, version = runtime.partition("://")
    oldest = _RUNTIMES.get(name)
    if oldest is None:
        return f"its container runtime is {runtime or 'unknown'}"
    if not _at_least(version, oldest):
        return f"its container runtime is {name} {version or '(unknown version)'}, which may not have CDI enabled"
    if not _at_least(kubelet, _KUBELET):
        return f"its kubelet version is {kubelet or 'unknown'}, and kubelets before 1.31 may not pass CDI names on"
    return ""


def with_strategy(config: PluginConfig, obstacle: str) -> PluginConfig:
    """The configuration with the strategy that `auto` stands for; `obstacle` says why CDI is not known to work on the node."""
    chosen = DeviceListStrategy.ENVVAR if obstacle else DeviceListStrategy.CDI_CRI
    return replace(config, device_lists=(chosen,))


def why_not_by_cdi(config: PluginConfig) -> str:
    """What the configuration asks for that CDI cannot do; "" when nothing."""
    if config.features:
        return f"CDI does not support {config.features[0]}"
    if config.device_id_strategy is DeviceIdStrategy.INDEX:
        return "CDI names devices by UUID, but device-id-strategy is index"
    return ""


def exposed(obstacle: str) -> str:
    """The message for people where `auto` found no way but the variable."""
    return (
        "a container that sets NVIDIA_VISIBLE_DEVICES itself can see every GPU of this node: the agent passes "
        f"devices through that variable, because {obstacle}"
    )


def _at_least(version: str, oldest: tuple[int, int]) -> bool:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= oldest
