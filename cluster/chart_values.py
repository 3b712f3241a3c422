"""The values of the agent's chart that a test cluster needs beside a user's own: they lead its pods to the simulated machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tranche_simulator import ensure_built
from tranche_simulator.build import BUILD_VARIABLE


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
