"""The chart's values that give the agent the options that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.chart_values import simulated_machines

# The options that the chart has a value for, since rights or mounts hang on them; it gets the rest word by word.
_VALUES: dict[str, tuple[str, ...]] = {
    "--mig-strategy": ("migStrategy",),
    "--device-list-strategy": ("deviceListStrategy",),
    "--plugin-config-map": ("config", "name"),
    "--layouts": ("migManager", "config", "name"),
    "--in-use": ("migManager", "inUse"),
    "--max-unavailable": ("rollout", "maxUnavailable"),
}
_PARTS = {"device-plugin": "devicePlugin", "mig-manager": "migManager", "feature-labels": "featureLabels"}


def values_of(cluster: Path, options: Sequence[str]) -> dict[str, Any]:
    """The chart's values for these options of `tranche agent`, each as `--name=value`, on the machines of a cluster's folder."""
    values = simulated_machines(cluster)
    others = []
    # The chart makes no agent without any part, so the last one is left out behind its back.
    left_out = [part for part in _PARTS if f"--without={part}" in options][: len(_PARTS) - 1]
    for option in options:
        name, _, value = option.partition("=")
        if name == "--without" and value in left_out:
            _put(values, (_PARTS[value], "enabled"), False)
        elif name == "--stand-by":  # the chart's word for it
            values["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        elif name == "--share-by-mps":  # no option of the agent's, but a value of the chart's
            values["shareByMps"] = True
        elif name == "--with-dra":
            _put(values, ("dra", "enabled"), True)
        elif name == "--vgpu":
            values |= {"shareByMps": True, "virtualGPUs": int(value)}
        elif name == "--vgpu-thread-percentage":
            values["virtualGPUThreadPercentage"] = int(value)
        elif name == "--vgpu-memory-limit":
            values["virtualGPUMemoryLimit"] = value == "true"
        elif name in _VALUES:
            _put(values, _VALUES[name], value)
        else:
            others.append(option)
    return {**values, "extraArgs": others}


def _put(values: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value
