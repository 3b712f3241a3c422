"""The values of the agent's chart that a test cluster needs beside a user's own: they lead its pods to the simulated machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from release.image import MadeImage

from cluster.node import Node
from tranche_simulator import ensure_built
from tranche_simulator.build import BUILD_VARIABLE

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


def simulated_machines(cluster: Path) -> dict[str, Any]:
    """Values for the cluster in this folder: agents run where a machine is, each with the machine of its node.

    What the NVIDIA container runtime does on hardware, these mounts do: library, programs, and the machine's state instead of
    device nodes. The folders lie in the pod where they lie on the host, because the agent names them to the container runtime.
    """
    built = ensure_built()
    programs = (built.nvidia_smi, built.mps_control, built.mps_server)
    machines = cluster / "machines"
    folders = {"simulated-machines": machines, "simulator": built.directory}
    has_machine = {"key": "node.kubernetes.io/instance-type", "operator": "Exists"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [has_machine]}]}
    mounts: list[dict[str, Any]] = [
        {"name": name, "mountPath": str(path), "readOnly": name == "simulator"} for name, path in folders.items()
    ]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "extraEnv": [
            {"name": "TRANCHE_SIM_STATE", "value": f"{machines}/$(NODE_NAME)/state"},
            {"name": BUILD_VARIABLE, "value": str(built.directory)},
            {"name": "LD_LIBRARY_PATH", "value": str(built.library.parent)},
        ],
        "extraVolumes": [
            *({"name": name, "hostPath": {"path": str(path), "type": "Directory"}} for name, path in folders.items()),
            *({"name": each.name, "hostPath": {"path": str(each), "type": "File"}} for each in programs),
        ],
        "extraVolumeMounts": [
            *mounts,
            *({"name": each.name, "mountPath": f"/usr/bin/{each.name}", "readOnly": True} for each in programs),
        ],
    }


def give_image(nodes: Sequence[Node], image: MadeImage | None) -> str:
    """Put the agent's image onto the nodes, if there is one; in words what was done. Without it the chart's pods never start."""
    if image is None:
        return "no node has the agent's image: `make image` has not made it of the sources as they are now"
    for each in nodes:
        each.import_image(image.archive, image.name, image.digest)
    return f"every node has the image {image.name}"
