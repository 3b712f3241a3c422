"""What a container needs to see a simulated machine, and only its own part of it.

There are no device nodes. A container gets the library, a statically linked nvidia-smi and the machine's state, which the library
finds at the same path in every container. NVIDIA_VISIBLE_DEVICES tells the library what to show.
"""

from __future__ import annotations

from pathlib import Path

from tranche.core.state import GpuState
from tranche.hardware.driver import STATE_IN_CONTAINER
from tranche.hardware.nodes import ContainerEdits, DeviceFiles, Mount
from tranche.hardware.simulator_errors import simulator_errors
from tranche_simulator.build import ensure_built

LIBRARIES_IN_CONTAINER = "/usr/local/nvidia/lib64"
PROGRAM_IN_CONTAINER = "/usr/bin/nvidia-smi"
VISIBLE_DEVICES_FOLDER = "/var/run/nvidia-container-devices"


class SimulatedDeviceFiles(DeviceFiles):
    """DeviceFiles of a simulated machine; `state` is its state file, on the host.

    Raises:
        SimulatorError: the simulator cannot be compiled.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        with simulator_errors():
            self._built = ensure_built()

    def beside_runtime(self) -> ContainerEdits:
        """Library, program and state, which no container runtime knows. Every client of a GPU writes the state."""
        return ContainerEdits(
            mounts=(
                Mount(str(self._state), STATE_IN_CONTAINER, read_only=False),
                Mount(str(self._built.library.parent), LIBRARIES_IN_CONTAINER),
                Mount(str(self._built.nvidia_smi), PROGRAM_IN_CONTAINER),
            ),
            environment=(("LD_LIBRARY_PATH", LIBRARIES_IN_CONTAINER),),
        )

    def by_cdi(self, driver_version: str) -> ContainerEdits:
        """The same, and the folder with the names of the given devices: one file for each."""
        edits = self.beside_runtime()
        visible = ("NVIDIA_VISIBLE_DEVICES", VISIBLE_DEVICES_FOLDER)
        return ContainerEdits(mounts=edits.mounts, environment=(*edits.environment, visible))

    def device_by_cdi(self, uuid: str) -> ContainerEdits:
        """The file that names the device."""
        return ContainerEdits(mounts=(Mount("/dev/null", f"{VISIBLE_DEVICES_FOLDER}/{uuid}"),))

    def numa_node(self, gpu: GpuState) -> int | None:
        """From the simulated machine: its bus addresses mean nothing to this host's sysfs."""
        return gpu.numa_node
