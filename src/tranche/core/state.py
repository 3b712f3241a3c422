"""A node's GPUs at one moment: an immutable snapshot of the driver's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import GpuNotFound
from tranche.core.grid import PlacedInstance, Placement, slice_mask
from tranche.core.profile import ProfileName
from tranche.core.sharing import MOST_MULTIPROCESSORS, NO_SHARING, MachineSharing, Timeslice, context_memory


class MigMode(StrEnum):
    """A GPU's MIG mode; UNSUPPORTED if it cannot be cut."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


class ComputeMode(StrEnum):
    """Who may use a GPU: DEFAULT everyone, EXCLUSIVE one process at a time (an MPS server, say), PROHIBITED no one."""

    DEFAULT = "default"
    EXCLUSIVE = "exclusive-process"
    PROHIBITED = "prohibited"


PROHIBITED = "its compute mode is PROHIBITED, so no program can use it"
"""Tranche leaves that mode alone: an administrator set it."""


class DaemonState(StrEnum):
    """STARTING: admits no clients yet. READY: serves, and its limits were read back. LOST: its process and its limits are gone.

    FAULT: it lives, but would refuse, hang or not limit new clients: a client's fault, a wedged or stopped server, changed
    limits. DAMAGED: its record is unreadable, so its state is unknown.
    """

    STARTING = "starting"
    READY = "ready"
    FAULT = "fault"
    LOST = "lost"
    DAMAGED = "damaged"


class GpuProcess(NamedTuple):
    """A process that the driver lists on a GPU or an instance; `memory` in bytes, None if unknown."""

    pid: int
    name: str
    memory: int | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.name else f"pid {self.pid}"


ProcessFilter = Callable[[tuple[GpuProcess, ...]], tuple[GpuProcess, ...]]


class ComputeInstance(NamedTuple):
    """A compute instance inside a GPU instance; `start` and `slices` count compute slices inside it.

    `uuid` is its MIG device UUID, which is a fixed function of the slot: the same slot made again has the same UUID.
    """

    id: int
    name: ProfileName
    profile_id: int
    start: int
    slices: int
    uuid: str
    mig_index: int | None
    processes: tuple[GpuProcess, ...] = ()


class InstanceKey(NamedTuple):
    """A GPU instance's slot until the GPU is cut differently: GPU, profile and placement."""

    gpu_uuid: str
    profile: ProfileName
    placement: Placement

    @property
    def place(self) -> PlacedInstance:
        """Its place on the grid."""
        return PlacedInstance(self.profile, self.placement)

    def __str__(self) -> str:
        return f"{self.profile} at {self.placement} of {self.gpu_uuid}"


class GpuInstance(NamedTuple):
    """A GPU instance; `memory` in bytes as the driver reports it, None if it does not."""

    id: int
    profile: ProfileName
    profile_id: int
    placement: Placement
    memory: int | None
    compute_instances: tuple[ComputeInstance, ...] = ()
    stray_processes: tuple[GpuProcess, ...] = ()

    @property
    def place(self) -> PlacedInstance:
        """Its place on the grid."""
        return PlacedInstance(self.profile, self.placement)

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """Every process in the instance, each pid once."""
        seen = {p.pid: p for ci in self.compute_instances for p in ci.processes}
        seen.update({p.pid: p for p in self.stray_processes})
        return tuple(seen.values())

    @property
    def has_processes(self) -> bool:
        """Whether the instance has any process."""
        return bool(self.stray_processes) or any(ci.processes for ci in self.compute_instances)

    def with_processes(self, of: ProcessFilter) -> GpuInstance:
        """The instance with what `of` makes of its processes."""
        if not self.has_processes:
            return self
        inside = tuple(each._replace(processes=of(each.processes)) for each in self.compute_instances)
        return self._replace(compute_instances=inside, stray_processes=of(self.stray_processes))

    @property
    def slices(self) -> tuple[ProfileName, ...]:
        """The sorted names of the MIG devices inside; empty without a compute instance."""
        return tuple(sorted(ci.name for ci in self.compute_instances))

    @property
    def whole_slice(self) -> ComputeInstance | None:
        """The compute instance that spans the GPU instance, if there is one."""
        if len(self.compute_instances) == 1 and self.compute_instances[0].name.spans_gpu_instance:
            return self.compute_instances[0]
        return None


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """An MPS daemon of Tranche's for one device: an uncut GPU (no `slot`), or the instance in a slot.

    `limit` is the most that one of its clients may have, in bytes, 0 while unknown. Without `every_user` it is known to serve
    only one user's programs; other users' programs wait forever. `fault` says why it admits no clients, in state FAULT.
    `limits_changed` means that something replaced Tranche's limits, so it enforces none of its shares.
    """

    slot: InstanceKey | None
    device_uuid: str
    state: DaemonState
    limit: int = 0
    every_user: bool = field(default=True, compare=False)
    fault: str = ""
    limits_changed: bool = False


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU.

    `memory`, `memory_free` and `memory_reserved` are in bytes. `memory_reserved` is the part of `memory` that the driver keeps
    for itself, 0 if unknown.

    `profiles` is how the GPU can be cut, from the driver, or from the catalogue if the driver gives no answer (Ampere with MIG
    off); `profiles_source` says which. `pci_device_id` and `pci_subsystem_id` are `0xDDDDVVVV`. `compute_capability` is CUDA's,
    major and minor. `compute_mode` is None if the driver does not say. `daemons` are Tranche's own; no driver knows them.
    `timeslice` is the length of turns that Tranche has set, and `timeslice_wanted` the administrator's choice for shares that
    take turns; None if unset. `multiprocessors` is the number of the uncut GPU, None if the driver does not say. Without
    `processes_known`, the driver did not list the processes of programs that compute.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    pci_device_id: str
    pci_subsystem_id: str
    architecture: str
    memory: int
    memory_free: int
    mode: MigMode
    pending_mode: MigMode
    mode_change_needs_reset: bool
    memory_slices: int
    profiles: tuple[GpuInstanceProfile, ...]
    profiles_source: str
    instances: tuple[GpuInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    minor: int | None = None
    numa_node: int | None = None
    lost: bool = False
    compute_capability: tuple[int, int] | None = None
    compute_mode: ComputeMode | None = ComputeMode.DEFAULT
    daemons: tuple[MpsDaemon, ...] = ()
    memory_reserved: int = 0
    timeslice: Timeslice | None = None
    timeslice_wanted: Timeslice | None = None
    multiprocessors: int | None = None
    processes_known: bool = True

    @property
    def label(self) -> str:
        """How messages name the GPU: `GPU 3`."""
        return f"GPU {self.index}"

    @property
    def full_name(self) -> str:
        """The label and the UUID: `GPU 3 (GPU-...)`. The driver may not know the UUID of a lost GPU."""
        return self.label if self.nameless else f"{self.label} ({self.uuid})"

    @property
    def nameless(self) -> bool:
        """Whether the GPU is lost and unidentified; its UUID field then holds its index."""
        return self.lost and not self.uuid.startswith("GPU-")

    @property
    def usable_memory(self) -> int:
        """The bytes of the uncut GPU that programs can use."""
        return self.memory - self.memory_reserved

    @property
    def context_memory(self) -> int:
        """The bytes that a program's CUDA context takes of a share of this GPU."""
        return context_memory(self.multiprocessors or MOST_MULTIPROCESSORS)

    @property
    def mig_capable(self) -> bool:
        """Whether the GPU can be cut."""
        return self.mode is not MigMode.UNSUPPORTED

    @property
    def mig_enabled(self) -> bool:
        """Whether MIG mode is in effect."""
        return self.mode is MigMode.ENABLED

    @property
    def prohibited(self) -> bool:
        """Whether its compute mode keeps all programs off the uncut GPU."""
        return not self.mig_enabled and self.compute_mode is ComputeMode.PROHIBITED

    @property
    def mps_passable(self) -> bool:
        """Whether programs can bypass the uncut GPU's MPS daemon and its limits, because someone changed the compute mode."""
        served = self.daemon_of(None)
        living = served is not None and served.state in (DaemonState.READY, DaemonState.FAULT)
        return living and not self.mig_enabled and self.compute_mode is ComputeMode.DEFAULT

    @property
    def mode_pending(self) -> bool:
        """Whether an accepted change of MIG mode waits for a reset."""
        return self.mode is not self.pending_mode

    @property
    def occupants(self) -> tuple[PlacedInstance, ...]:
        """The GPU's instances as the grid sees them."""
        return tuple(instance.place for instance in self.instances)

    @property
    def all_processes(self) -> tuple[GpuProcess, ...]:
        """Every process on the GPU or in one of its instances, each pid once."""
        seen = {p.pid: p for instance in self.instances for p in instance.processes}
        seen.update({p.pid: p for p in self.processes})
        return tuple(seen.values())

    def profile(self, name: ProfileName) -> GpuInstanceProfile | None:
        """The GPU-instance profile on this GPU for a slice of that name."""
        return next((p for p in self.profiles if p.name == name.gpu_instance), None)

    def instance_at(self, placement: Placement) -> GpuInstance | None:
        """The instance with exactly that placement."""
        return next((i for i in self.instances if i.placement == placement), None)

    def instance_in(self, slot: PlacedInstance) -> GpuInstance | None:
        """The instance with exactly that placement and profile."""
        instance = self.instance_at(slot.placement)
        return instance if instance is not None and instance.profile == slot.profile else None

    def with_processes(self, of: ProcessFilter) -> GpuState:
        """The GPU with what `of` makes of the processes on it and in its instances."""
        instances = tuple(each.with_processes(of) for each in self.instances)
        return replace(self, processes=of(self.processes), instances=instances)

    def daemon_of(self, slot: InstanceKey | None) -> MpsDaemon | None:
        """The MPS daemon of the instance in that slot, or of the GPU itself without a slot."""
        return next((daemon for daemon in self.daemons if daemon.slot == slot), None)

    def key(self, instance: GpuInstance) -> InstanceKey:
        """The slot of one of this GPU's instances."""
        return InstanceKey(self.uuid, instance.profile, instance.placement)

    @property
    def fingerprint(self) -> str:
        """A short digest of mode and instances; it changes exactly when the GPU is cut or switched differently."""
        import hashlib  # loads OpenSSL, and only plans need fingerprints

        parts = [self.uuid, self.mode, self.pending_mode]
        for instance in sorted(self.instances, key=lambda i: i.placement):
            slices = ",".join(
                f"{ci.name}@{ci.start}" for ci in sorted(instance.compute_instances, key=lambda c: c.start)
            )
            parts.append(f"{instance.profile}@{instance.placement}[{slices}]")
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


class DeviceVisibility(StrEnum):
    """How much of the machine is visible. ALL: everything. GPUS: some GPUs, each with all that is on it. PARTS: less."""

    ALL = "all"
    GPUS = "gpus"
    PARTS = "parts"


@dataclass(frozen=True, slots=True)
class NodeState:
    """Every GPU on the machine, in index order. `cuda_version` is the newest CUDA that the driver serves, major and minor.

    `sharing` holds the machine's sharing mechanisms. Devices outside `scope` may exist, too.
    """

    gpus: tuple[GpuState, ...]
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: tuple[int, int] | None = None
    sharing: MachineSharing = NO_SHARING
    scope: DeviceVisibility = DeviceVisibility.ALL

    def __iter__(self) -> Iterator[GpuState]:
        return iter(self.gpus)

    def gpu(self, uuid: str) -> GpuState:
        """The GPU with that UUID; raises GpuNotFound."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise GpuNotFound(f"no GPU {uuid} on this machine", hint="list the GPUs with: tranche gpus")

    def by_index(self, index: int) -> GpuState:
        """The GPU with that index; raises GpuNotFound."""
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        raise GpuNotFound(
            f"no GPU {index} on this machine, which has {len(self.gpus)} GPU{'s' if len(self.gpus) != 1 else ''}",
            hint="list the GPUs with: tranche gpus",
        )


def unavailable(gpu: GpuState, slot: InstanceKey | None) -> str:
    """Why that device, while shared by MPS, admits no more clients, in words; "" if it does."""
    daemon = gpu.daemon_of(slot)
    if daemon is not None and daemon.state is DaemonState.FAULT:
        return f"its MPS daemon admits no clients: {daemon.fault}"
    if daemon is not None and daemon.state is DaemonState.LOST:
        return "its MPS daemon has died or cannot be found; a new one starts when all shares of the device have ended"
    if daemon is not None and daemon.state is DaemonState.DAMAGED:
        return (
            "the record of its MPS daemon cannot be read; a new daemon starts when all shares of the device have ended"
        )
    return ""


def taken_mask(present: Iterable[ComputeInstance]) -> int:
    """The compute slices of those compute instances, as a bit mask."""
    mask = 0
    for each in present:
        mask |= slice_mask(each.start, each.slices)
    return mask


def clients_inside(clients: int, profile: GpuInstanceProfile, gpu: GpuState) -> int:
    """How many clients MPS serves in a slice, in proportion to the GPU's compute slices: no source gives the numbers."""
    most = max((each.slices for each in gpu.profiles), default=profile.slices)
    return max(1, clients * profile.slices // most)
