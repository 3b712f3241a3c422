"""Everything said to NVML, through nvidia-ml-py. Nothing above this package knows NVML.

Each operation looks up MIG device handles and instance handles again: they do not survive a reset, nor the instance that they
name.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import Any

import pynvml

from tranche.core.board import board_of, family_of_architecture
from tranche.core.errors import GpuNotFound, HardwareError, LayoutImpossible
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.sharing import Timeslice
from tranche.core.state import ComputeMode, GpuInstance, GpuState, MigMode, NodeState
from tranche.hardware.driver import VARIABLE, scope_of
from tranche.hardware.nvml_errors import NVML_ERRORS, explained
from tranche.hardware.nvml_instances import GpuProfileTable, InstanceReader, read_processes, read_profiles
from tranche.hardware.sharing_means import read_machine_facts, sharing_means

_COMPUTE_MODES = {
    ComputeMode.DEFAULT: pynvml.NVML_COMPUTEMODE_DEFAULT,
    ComputeMode.EXCLUSIVE: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    ComputeMode.PROHIBITED: pynvml.NVML_COMPUTEMODE_PROHIBITED,
}
_TIMESLICE = rf"Timeslice\W+({'|'.join(Timeslice)})\b"
"""Fits both forms that nvidia-smi is known to print: `GPU  0: Timeslice: Default`, and a line of a table."""
# NVML's errors for one GPU that cannot be reached while the others can: nvml.h names the first four for
# nvmlDeviceGetHandleByIndex, and a GPU that fell off the bus often answers with an unknown error.
_ONE_GPU_FAILED = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
    pynvml.NVML_ERROR_IRQ_ISSUE,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)


class NvmlDriver:
    """The GPUs on this machine through libnvidia-ml.so.1, as the dynamic linker finds it.

    `scope` says how much of the machine this process sees: hidden devices may still exist. Methods are safe to call from several
    threads; each raises a TrancheError if the driver refuses. GpuBusy: something is in use. NoRoom: the grid has no place.
    PermissionDenied, MigNotSupported, HardwareError: as named.
    """

    def __init__(self, *, reset_command: str = "nvidia-smi", served: bool = False) -> None:
        """Load and initialise NVML; DriverNotFound without a driver.

        `reset_command` resets a GPU. `served` says that a service with root's rights acts for this process.
        """
        with explained("talk to the NVIDIA driver"):
            pynvml.nvmlInit()
        self.reset_command = reset_command
        self._served = served
        self._instances = InstanceReader()
        self._geometries: dict[tuple[str, MigMode], GpuProfileTable] = {}
        self._lock = threading.Lock()
        self._indexes: dict[str, int] = {}
        self.scope = scope_of(os.environ.get(VARIABLE))

    def close(self) -> None:
        """Shut NVML down."""
        pynvml.nvmlShutdown()

    def observe(self) -> NodeState:
        """Every GPU as it is now."""
        with explained("list the GPUs"):
            count = pynvml.nvmlDeviceGetCount()
            gpus = tuple(self._observe_index(index) for index in range(count))
            driver, nvml = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetNVMLVersion()
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()  # 12040 for 12.4
            newest = (cuda // 1000, cuda % 1000 // 10)
            facts = read_machine_facts(driver, newest, self._folders, served=self._served)
            return NodeState(gpus, driver, nvml, newest, sharing_means(facts), self.scope)

    def observe_gpu(self, gpu_uuid: str) -> GpuState:
        """One GPU as it is now; GpuNotFound if it is absent."""
        with explained(f"read {self._named(gpu_uuid)}"):
            handle = self._handle(gpu_uuid)
            return self._read(handle, pynvml.nvmlDeviceGetIndex(handle))

    @property
    def _folders(self) -> str:
        """Where to look for the driver's programs: beside `reset_command`, if that is a path."""
        beside = os.path.dirname(self.reset_command)
        return os.pathsep.join(filter(None, (beside, os.environ.get("PATH", os.defpath))))

    def set_mig_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Request a MIG mode. NVML reports success while the change is still pending: observe to learn which."""
        with explained(f"{'enable' if enabled else 'disable'} MIG mode on {self._named(gpu_uuid)}"):
            pynvml.nvmlDeviceSetMigMode(self._handle(gpu_uuid), int(enabled))

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """Set which processes may open an uncut GPU. The driver forgets it when it is unloaded."""
        with explained(f"set the compute mode of {self._named(gpu_uuid)} to {mode}"):
            pynvml.nvmlDeviceSetComputeMode(self._handle(gpu_uuid), _COMPUTE_MODES[mode])

    def timeslice(self, gpu_uuid: str) -> Timeslice:
        """How long each program has the GPU in turns, as nvidia-smi says: NVML has no call for it."""
        return read_timeslice(self.reset_command, gpu_uuid)

    def set_timeslice(self, gpu_uuid: str, length: Timeslice) -> None:
        """Set how long, by nvidia-smi, until the driver is unloaded."""
        command = [self.reset_command, "compute-policy", "-i", gpu_uuid, f"--set-timeslice={length.number}"]
        _run(command, f"set the time slice of {gpu_uuid} to {length}")

    def reset_gpu(self, gpu_uuid: str) -> None:
        """Reset one GPU, which nothing may use, with nvidia-smi: NVML has no call for it.

        The reset inherits what the caller allows: locks that must be held until it is through.
        """
        with explained(f"find {self._named(gpu_uuid)}"):
            bus_id = pynvml.nvmlDeviceGetPciInfo(self._handle(gpu_uuid)).busId
        bus_id = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
        command = [self.reset_command, "--gpu-reset", "-i", bus_id]
        hint = "a GPU with clients cannot be reset; first stop monitoring services such as dcgm and nvsm"
        _run(command, f"reset {self._named(gpu_uuid)}", hint=hint, seconds=120.0, close_fds=False)

    def create_gpu_instance(self, gpu_uuid: str, profile: ProfileName, placement: Placement) -> int:
        """Create a GPU instance at a placement; returns its id."""
        with explained(f"create a GPU instance {profile} at {placement} on {self._named(gpu_uuid)}"):
            handle = self._handle(gpu_uuid)
            profile_id = self._profile_id(handle, gpu_uuid, profile)
            spot = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
            instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, pynvml.byref(spot))
            return int(pynvml.nvmlGpuInstanceGetInfo(instance).id)

    def create_compute_instance(self, gpu_uuid: str, gpu_instance_id: int, name: ProfileName) -> int:
        """Create a compute instance of that name inside a GPU instance; returns its id."""
        with explained(
            f"create a compute instance {name} in GPU instance {gpu_instance_id} of {self._named(gpu_uuid)}"
        ):
            instance = pynvml.nvmlDeviceGetGpuInstanceById(self._handle(gpu_uuid), gpu_instance_id)
            info = pynvml.nvmlGpuInstanceGetInfo(instance)
            for profile_id, slices in self._instances.compute_profiles(instance, gpu_uuid, info.profileId):
                if slices == name.compute:
                    made = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)
                    return int(pynvml.nvmlComputeInstanceGetInfo(made).id)
        raise LayoutImpossible(f"{self._named(gpu_uuid)} has no compute instance profile for {name}")

    def destroy_compute_instance(self, gpu_uuid: str, gpu_instance_id: int, compute_instance_id: int) -> None:
        """Destroy a compute instance; GpuBusy if a process uses it."""
        with explained(
            f"destroy compute instance {compute_instance_id} of GPU instance {gpu_instance_id} of {self._named(gpu_uuid)}"
        ):
            instance = pynvml.nvmlDeviceGetGpuInstanceById(self._handle(gpu_uuid), gpu_instance_id)
            compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, compute_instance_id)
            pynvml.nvmlComputeInstanceDestroy(compute)

    def destroy_gpu_instance(self, gpu_uuid: str, gpu_instance_id: int) -> None:
        """Destroy a GPU instance without compute instances; GpuBusy if something uses it."""
        with explained(f"destroy GPU instance {gpu_instance_id} of {self._named(gpu_uuid)}"):
            instance = pynvml.nvmlDeviceGetGpuInstanceById(self._handle(gpu_uuid), gpu_instance_id)
            pynvml.nvmlGpuInstanceDestroy(instance)

    def _named(self, gpu_uuid: str) -> str:
        """How messages name the GPU, with its index if it was seen before: a lost GPU cannot be asked."""
        index = self._indexes.get(gpu_uuid)
        return f"GPU {gpu_uuid}" if index is None else f"GPU {index} ({gpu_uuid})"

    def _handle(self, gpu_uuid: str) -> Any:
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                raise GpuNotFound(
                    f"no GPU {gpu_uuid} on this machine", hint="list the GPUs with: tranche gpus"
                ) from error
            raise

    def _profile_id(self, handle: Any, gpu_uuid: str, name: ProfileName) -> int:
        device_id = _hex_id(pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        current, _ = _read_mode(handle)
        for profile in self._geometry(handle, gpu_uuid, device_id, memory, current).profiles:
            if profile.name == name and profile.id is not None:
                return profile.id
        raise LayoutImpossible(
            f"{self._named(gpu_uuid)} has no profile {name}", hint="list its profiles with: tranche profiles"
        )

    def _observe_index(self, index: int) -> GpuState:
        handle = None
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return self._read(handle, index)
        except pynvml.NVMLError as error:
            if error.value not in _ONE_GPU_FAILED:
                raise
            NVML_ERRORS.note(error)
            return _lost(handle, index)

    def _read(self, handle: Any, index: int) -> GpuState:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        self._indexes[uuid] = index
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        current, pending = _read_mode(handle)
        device_id = _hex_id(pci.pciDeviceId)
        name = pynvml.nvmlDeviceGetName(handle)
        number = _optional(pynvml.nvmlDeviceGetArchitecture, handle)
        board = board_of(device_id, name, memory.total)
        family = family_of_architecture(number, None if board is None else board.architecture)
        geometry = GpuProfileTable((), 0, "driver")
        if current is not MigMode.UNSUPPORTED:
            geometry = self._geometry(handle, uuid, device_id, memory.total, current)
        capability = _pair(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        processes, processes_known = read_processes(handle)
        instances: tuple[GpuInstance, ...] = ()
        if current is MigMode.ENABLED:
            instances = self._instances.read(handle, uuid, geometry.profiles, processes)
        held = {instance.id for instance in instances}
        return GpuState(
            index=index,
            uuid=uuid,
            name=name,
            pci_bus_id=pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId,
            pci_device_id=device_id,
            pci_subsystem_id=_hex_id(pci.pciSubSystemId),
            architecture="unknown" if family is None else family.name,
            memory=memory.total,
            memory_free=memory.free,
            memory_reserved=_optional(_reserved_memory, handle) or 0,
            mode=current,
            pending_mode=pending,
            mode_change_needs_reset=family is not None and family.mode_change_needs_reset,
            memory_slices=geometry.memory_slices,
            profiles=geometry.profiles,
            profiles_source=geometry.source,
            instances=instances,
            processes=tuple(p for (gi_id, _), found in processes.items() if gi_id not in held for p in found),
            minor=_optional(pynvml.nvmlDeviceGetMinorNumber, handle),
            numa_node=_optional(pynvml.nvmlDeviceGetNumaNodeId, handle),
            compute_capability=capability,
            multiprocessors=_multiprocessors(_optional(pynvml.nvmlDeviceGetNumGpuCores, handle), capability),
            compute_mode=_compute_mode(_optional(pynvml.nvmlDeviceGetComputeMode, handle)),
            processes_known=processes_known,
        )

    def _geometry(self, handle: Any, uuid: str, device_id: str, memory: int, mode: MigMode) -> GpuProfileTable:
        """The profiles, asked once for each GPU and mode: on Ampere the driver answers only with MIG on."""
        key = (uuid, mode)
        with self._lock:
            if key not in self._geometries:
                self._geometries[key] = read_profiles(handle, device_id, pynvml.nvmlDeviceGetName(handle), memory)
            return self._geometries[key]


def read_timeslice(nvidia_smi: str, gpu_uuid: str) -> Timeslice:
    """The length on that GPU; HardwareError if nvidia-smi does not report it."""
    said = _run([nvidia_smi, "compute-policy", "-i", gpu_uuid, "--list"], f"read the time slice of {gpu_uuid}")
    found = re.findall(_TIMESLICE, said, re.IGNORECASE)
    if len(found) != 1:
        raise HardwareError(f"cannot read the time slice of {gpu_uuid}: nvidia-smi reported: {said[:200]}")
    return Timeslice(found[0].lower())


def _run(command: list[str], what: str, *, hint: str = "", seconds: float = 60.0, close_fds: bool = True) -> str:
    """What nvidia-smi says; HardwareError if it refuses."""
    import subprocess  # every command loads this module, and few run a program

    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, close_fds=close_fds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HardwareError(f"cannot {what}: {error}") from error
    said = " ".join((done.stdout + done.stderr).split())
    if done.returncode != 0:
        raise HardwareError(f"cannot {what}: nvidia-smi reported: {said}", hint=hint)
    return said


def _read_mode(handle: Any) -> tuple[MigMode, MigMode]:
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return MigMode.UNSUPPORTED, MigMode.UNSUPPORTED
        raise
    return _mode(current), _mode(pending)


def _mode(value: int) -> MigMode:
    return MigMode.ENABLED if value == pynvml.NVML_DEVICE_MIG_ENABLE else MigMode.DISABLED


def _compute_mode(value: int | None) -> ComputeMode | None:
    """The mode of that number; None for another number, or if the driver named none: the mode is then unknown."""
    return next((mode for mode, number in _COMPUTE_MODES.items() if number == value), None)


def _optional(query: Any, handle: Any) -> int | None:
    """A value that some boards or drivers lack."""
    try:
        return int(query(handle))
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None


def _reserved_memory(handle: Any) -> int:
    """The bytes that the driver keeps for itself. Only the second version of the call separates them (drivers from 510 on)."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).reserved)


def _multiprocessors(cores: int | None, capability: tuple[int, int]) -> int | None:
    """The number of multiprocessors of an uncut GPU; each has 64 cores in Volta, Turing and GA100, 128 in all that came later."""
    return None if not cores or capability < (7, 0) else cores // (64 if capability <= (8, 0) else 128)


def _pair(numbers: Any) -> tuple[int, int]:
    first, second = numbers
    return int(first), int(second)


def _hex_id(value: int) -> str:
    return f"0x{value:08X}"


def _lost(handle: Any, index: int) -> GpuState:
    """A GPU that the driver cannot reach: still listed, but unusable."""
    uuid = f"lost-{index}"
    if handle is not None:
        with suppress(pynvml.NVMLError):
            uuid = pynvml.nvmlDeviceGetUUID(handle)
    return GpuState(
        index=index,
        uuid=uuid,
        name="lost GPU",
        pci_bus_id="",
        pci_device_id="",
        pci_subsystem_id="",
        architecture="unknown",
        memory=0,
        memory_free=0,
        mode=MigMode.UNSUPPORTED,
        pending_mode=MigMode.UNSUPPORTED,
        mode_change_needs_reset=False,
        memory_slices=0,
        profiles=(),
        profiles_source="driver",
        lost=True,
    )
