"""What a container needs to use a GPU or a slice: device nodes, mounts, environment.

`DeviceFiles` is the seam: `DriverFiles` reads the NVIDIA driver's files on the host, `SimulatedDeviceFiles` stands in for them on
a simulated machine. The driver's libraries carry its version in their names, which distinguishes them from all other files in the
same folders.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from tranche.core.errors import FenceUnavailable
from tranche.core.quantity import MIB
from tranche.core.state import ComputeInstance, GpuInstance, GpuState
from tranche.hardware.driver import STATE_IN_CONTAINER
from tranche.hardware.host_facts import sysfs_address
from tranche.hardware.simulator_errors import simulator_errors

_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
HOOK_PATH = "/usr/bin/nvidia-ctk"
"""The host's nvidia-ctk or nvidia-cdi-hook, unless configured otherwise."""
_SHELL: Final = "/bin/sh"
_SEARCH_PATH: Final = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
_MIG_MINORS = "proc/driver/nvidia-caps/mig-minors"
_GPU_MAJOR: Final = 195
"""Linux assigns this number to the driver (Documentation/admin-guide/devices.txt); that of the capabilities changes."""
_CONTROL_MINORS: Final = (254, 255)


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device of the host and its path in the container; `permissions` of r, w, m."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host and its path in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class _CdiHook:
    """A command that the container runtime runs while it creates the container (an OCI hook).

    Without an `environment`, it has the runtime's.
    """

    path: str
    arguments: tuple[str, ...]
    name: str = "createContainer"
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """Additions to a container."""

    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    hooks: tuple[_CdiHook, ...] = ()


class DeviceTable(NamedTuple):
    """The kernel's numbers of the device files that open GPUs and slices.

    `gpus` and `capabilities` are major numbers; `capabilities` is None if the driver has no MIG capabilities. `mig_minors` maps
    the path of a capability, such as `gpu0/gi1/access`, to its minor number.
    """

    gpus: int
    capabilities: int | None
    mig_minors: Mapping[str, int]

    @property
    def majors(self) -> tuple[int, ...]:
        """The major numbers of all files that open a GPU or a slice."""
        return (self.gpus,) if self.capabilities is None else (self.gpus, self.capabilities)

    @property
    def control(self) -> frozenset[tuple[int, int]]:
        """The files with a GPU's major number that open no GPU: nvidia-modeset and nvidiactl."""
        return frozenset((self.gpus, minor) for minor in _CONTROL_MINORS)

    def of_gpu(self, gpu: GpuState) -> frozenset[tuple[int, int]]:
        """The file of a whole GPU."""
        return frozenset(((self.gpus, _minor(gpu)),))

    def of_slice(self, gpu: GpuState, instance: GpuInstance, piece: ComputeInstance) -> frozenset[tuple[int, int]]:
        """The files of a slice: its GPU's and its two capabilities. FenceUnavailable if the driver lacks one of those."""
        found = [self.mig_minors.get(name) for name in _capabilities(gpu, instance, piece)]
        minors = [each for each in found if each is not None]
        if self.capabilities is None or len(minors) != len(found):
            raise FenceUnavailable(
                f"{gpu.label}: the driver shows no capability files for GPU instance {instance.id}",
                hint=f"check whether /{_MIG_MINORS} lists them",
            )
        return self.of_gpu(gpu) | {(self.capabilities, minor) for minor in minors}


def merged(edits: Sequence[ContainerEdits]) -> ContainerEdits:
    """All these additions together, each once."""
    return ContainerEdits(
        tuple(dict.fromkeys(node for each in edits for node in each.device_nodes)),
        tuple(dict.fromkeys(mount for each in edits for mount in each.mounts)),
        tuple(dict.fromkeys(pair for each in edits for pair in each.environment)),
        tuple(dict.fromkeys(hook for each in edits for hook in each.hooks)),
    )


class DeviceFiles(ABC):
    """What containers of this machine need, by default nothing. Methods read files and may be called from several threads.

    `smi` is the host path of nvidia-smi, and `smi_environment` what it needs. This process sees the host's `/` at `root`.
    """

    def __init__(self, smi: str, smi_environment: tuple[str, ...] = (), root: Path = Path("/")) -> None:
        self._smi = smi
        self._smi_environment = smi_environment
        self._root = root

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        """The existing device nodes that every GPU container needs."""
        return ()

    def gpu_nodes(self, gpu: GpuState) -> tuple[DeviceNode, ...]:
        """The device nodes of one whole GPU."""
        return ()

    def slice_nodes(self, gpu: GpuState, instance: GpuInstance, piece: ComputeInstance) -> tuple[DeviceNode, ...]:
        """The device nodes of one slice: its GPU's and its capability files."""
        return ()

    def beside_runtime(self) -> ContainerEdits:
        """What a container needs beyond what the NVIDIA container runtime adds because of NVIDIA_VISIBLE_DEVICES."""
        return ContainerEdits()

    @abstractmethod
    def numbers(self) -> DeviceTable:
        """The numbers of the device files."""

    @abstractmethod
    def by_cdi(self, driver_version: str) -> ContainerEdits:
        """What a CDI specification adds to every container: all that the NVIDIA container runtime would add."""

    def device_by_cdi(self, uuid: str) -> ContainerEdits:
        """What a CDI specification adds for one device beside its device nodes."""
        return ContainerEdits()

    def why_no_cdi(self) -> str:
        """What a CDI specification would lack, so that a container would not find the driver; "" if nothing."""
        return ""

    def limit_hook(self, share: str, gpu_uuid: str, memory: int) -> _CdiHook:
        """The hook that has the driver limit a container's memory to that many bytes; the container fails if it cannot."""
        script = Path(__file__).with_name("limit_hook.sh").read_text()
        arguments = ("sh", "-c", script, "tranche", share, gpu_uuid, str(memory // MIB), self._smi)
        return _CdiHook(_SHELL, arguments, "createRuntime", (_SEARCH_PATH, *self._smi_environment))

    def why_no_limit_hook(self) -> str:
        """Why no such hook works on this host, in words; "" if nothing is missing."""
        if not os.path.lexists(self._root / "sys/fs/cgroup/cgroup.controllers"):
            return "the host's /sys/fs/cgroup is not cgroup v2"
        needed = (_SHELL, "/usr/bin/flock", self._smi)
        missing = (each for each in needed if not os.path.lexists(self._root / each.lstrip("/")))
        return next((f"the host lacks {each}" for each in missing), "")

    @abstractmethod
    def numa_node(self, gpu: GpuState) -> int | None:
        """The NUMA node of the GPU; None if there is none or it is unknown."""


class DriverFiles(DeviceFiles):
    """The files of the NVIDIA driver on this host.

    `driver_root` and `dev_root` are the host paths of the driver's files and its device nodes. This process sees `driver_root` at
    `seen_at`, and the host's `/`, for `/proc`, `/sys` and `/dev`, at `host`. `hook_path` is the host path of nvidia-ctk or
    nvidia-cdi-hook.
    """

    def __init__(
        self,
        *,
        driver_root: str = "/",
        dev_root: str = "/",
        seen_at: str = "/",
        hook_path: str = HOOK_PATH,
        host: Path = Path("/"),
    ) -> None:
        super().__init__("/usr/bin/nvidia-smi", root=Path(seen_at))
        self._driver_root = driver_root
        self._dev_root = dev_root
        self._seen_at = seen_at
        self._hook_path = hook_path
        self._host = host

    def control_nodes(self) -> tuple[DeviceNode, ...]:
        """The existing control, memory-management and mode-setting nodes."""
        return tuple(self._existing(_CONTROL_NODES))

    def gpu_nodes(self, gpu: GpuState) -> tuple[DeviceNode, ...]:
        """`/dev/nvidia<minor>`."""
        return (self._node(f"/dev/nvidia{_minor(gpu)}"),)

    def slice_nodes(self, gpu: GpuState, instance: GpuInstance, piece: ComputeInstance) -> tuple[DeviceNode, ...]:
        """The GPU's node and the capability files of the GPU instance and of the compute instance."""
        minors = parse_mig_minors(_read(self._host / _MIG_MINORS))
        wanted = _capabilities(gpu, instance, piece)
        caps = tuple(self._node(f"/dev/nvidia-caps/nvidia-cap{minors[name]}") for name in wanted if name in minors)
        return (*self.gpu_nodes(gpu), *caps)

    def numbers(self) -> DeviceTable:
        """The capabilities' major number is in `/proc/devices`, under the name `nvidia-caps`."""
        lines = (line.split() for line in _read(self._host / "proc/devices").splitlines())
        capabilities = next((int(line[0]) for line in lines if line[1:] == ["nvidia-caps"]), None)
        return DeviceTable(_GPU_MAJOR, capabilities, parse_mig_minors(_read(self._host / _MIG_MINORS)))

    def by_cdi(self, driver_version: str) -> ContainerEdits:
        """Control nodes, that version's libraries and programs, and the hooks by which programs find them.

        NVIDIA_VISIBLE_DEVICES=void keeps an NVIDIA container runtime, if there is one too, from adding devices of its own.
        """
        files = driver_files(Path(self._seen_at), driver_version)
        return ContainerEdits(
            device_nodes=self.control_nodes(),
            mounts=tuple(Mount(self._driver_root.rstrip("/") + path, path) for path in files),
            environment=(("NVIDIA_VISIBLE_DEVICES", "void"),),
            hooks=tuple(self._hooks(files)),
        )

    def why_no_cdi(self) -> str:
        """The driver's library and the hook program must be visible; if only the driver's root is, the hook must be named."""
        root = Path(self._seen_at)
        if not _has_driver(root):
            return f"the driver's libcuda.so is missing from {self._driver_root}"
        if self._driver_root.rstrip("/"):
            if self._hook_path != HOOK_PATH:
                return ""
            return f"the agent can see only {self._driver_root} on the host, and the path of nvidia-cdi-hook is not set"
        if not os.path.lexists(root / self._hook_path.lstrip("/")):
            return f"the host lacks {self._hook_path}, which CDI needs to set up the driver's libraries"
        return ""

    def why_no_limit_hook(self) -> str:
        """The driver's nvidia-smi must run on the host as it is."""
        if self._driver_root.rstrip("/"):
            return f"the driver is in {self._driver_root}, not in the host's /"
        return super().why_no_limit_hook()

    def numa_node(self, gpu: GpuState) -> int | None:
        """From sysfs; the kernel writes -1 if there is no NUMA."""
        text = _read(self._host / "sys/bus/pci/devices" / sysfs_address(gpu.pci_bus_id) / "numa_node").strip()
        return int(text) if text.isdecimal() else None

    def _hooks(self, files: Iterable[str]) -> Iterable[_CdiHook]:
        """Make both links inside: programs ask the dynamic linker for libcuda.so.1, compilers ask for libcuda.so."""
        name = Path(self._hook_path).name
        program = (name,) if name == "nvidia-cdi-hook" else (name, "hook")
        for folder in library_folders(files):
            if any(path.startswith(f"{folder}/libcuda.so.") for path in files):
                link = f"libcuda.so.1::{folder}/libcuda.so"
                yield _CdiHook(self._hook_path, (*program, "create-symlinks", "--link", link))
            yield _CdiHook(self._hook_path, (*program, "update-ldcache", "--folder", folder))

    def _existing(self, paths: Iterable[str]) -> Iterable[DeviceNode]:
        for path in paths:
            if (self._host / path.lstrip("/")).exists():
                yield self._node(path)

    def _node(self, path: str) -> DeviceNode:
        return DeviceNode(self._dev_root.rstrip("/") + path, path)


def device_files(environment: Mapping[str, str]) -> DeviceFiles:
    """The files of this machine, or of the simulated one that the environment names."""
    simulated = environment.get("TRANCHE_SIM_STATE")
    return SimulatedDeviceFiles(Path(simulated)) if simulated else DriverFiles()


def parse_mig_minors(text: str) -> Mapping[str, int]:
    """Capability path -> minor number of its device node, from `/proc/driver/nvidia-caps/mig-minors`.

    Lines read `gpu0/gi1/ci0/access 13`; the number after `gpu` is the GPU's minor number. The driver lists every possible path.
    """
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _capabilities(gpu: GpuState, instance: GpuInstance, piece: ComputeInstance) -> tuple[str, str]:
    """The capabilities of a slice's GPU instance and compute instance, as the driver names them."""
    place = f"gpu{_minor(gpu)}/gi{instance.id}"
    return f"{place}/access", f"{place}/ci{piece.id}/access"


def _minor(gpu: GpuState) -> int:
    return gpu.index if gpu.minor is None else gpu.minor


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_SUBFOLDERS = ("", "vdpau")
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_SOCKETS = ("run/nvidia-persistenced/socket",)


def driver_files(root: Path, version: str) -> tuple[str, ...]:
    """The existing driver files under `root`, as absolute paths on the host; sorted, each once."""
    if not version:
        return ()
    seen: set[Path] = set()
    found = []
    for path in _candidates(root, version):
        real = path.resolve()
        if real not in seen:
            seen.add(real)
            found.append("/" + str(path.relative_to(root)))
    return tuple(sorted(found))


def _has_driver(root: Path) -> bool:
    """Whether a driver's libcuda, of any version, is under `root`."""
    return any(any((root / folder).glob("libcuda.so.*.*")) for folder in _FOLDERS)


def library_folders(files: Iterable[str]) -> tuple[str, ...]:
    """The folders of the libraries among the files, sorted."""
    return tuple(sorted({str(PurePosixPath(path).parent) for path in files if ".so." in PurePosixPath(path).name}))


def _candidates(root: Path, version: str) -> Iterator[Path]:
    for folder in _FOLDERS:
        for sub in _SUBFOLDERS:
            yield from sorted((root / folder / sub).glob(f"lib*.so.{version}"))
    for program in _PROGRAMS:
        path = root / "usr/bin" / program
        if path.exists():
            yield path
    yield from sorted((root / "lib/firmware/nvidia" / version).glob("gsp_*.bin"))
    for socket in _SOCKETS:
        path = root / socket
        if path.exists():
            yield path


LIBRARIES_IN_CONTAINER = "/usr/local/nvidia/lib64"
PROGRAM_IN_CONTAINER = "/usr/bin/nvidia-smi"
SIMULATED_GPU_MAJOR: Final = 1195
SIMULATED_CAPABILITY_MAJOR: Final = 1196
_SIMULATED_GPUS: Final = 16
VISIBLE_DEVICES_FOLDER = "/var/run/nvidia-container-devices"


class SimulatedDeviceFiles(DeviceFiles):
    """The files of a simulated machine; `state` is its state file, on the host. SimulatorError if it cannot be compiled.

    There are no device nodes. A container gets the library, a statically linked nvidia-smi and the machine's state, which the
    library finds at the same path in every container. NVIDIA_VISIBLE_DEVICES tells the library what to show.
    """

    def __init__(self, state: Path) -> None:
        from tranche_simulator.build import ensure_built  # only a simulated machine needs the compiler

        self._state = state
        with simulator_errors():
            self._built = ensure_built()
        super().__init__(str(self._built.nvidia_smi), (f"TRANCHE_SIM_STATE={state}",))

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

    def numbers(self) -> DeviceTable:
        """Numbers that no device has: the kernel uses major numbers below 512.

        The minor numbers of the capabilities are the driver's: 135 for a GPU, 9 of them for a GPU instance.
        """
        minors = {}
        for gpu, instance in product(range(_SIMULATED_GPUS), range(15)):
            place, first = f"gpu{gpu}/gi{instance}", 3 + 135 * gpu + 9 * instance
            minors[f"{place}/access"] = first
            minors.update({f"{place}/ci{piece}/access": first + 1 + piece for piece in range(8)})
        return DeviceTable(SIMULATED_GPU_MAJOR, SIMULATED_CAPABILITY_MAJOR, minors)

    def numa_node(self, gpu: GpuState) -> int | None:
        """From the simulated machine: its bus addresses mean nothing to this host's sysfs."""
        return gpu.numa_node
