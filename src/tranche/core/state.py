"""What a node's GPUs look like at one moment: an immutable snapshot of what the driver says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import GpuNotFound
from tranche.core.grid import PlacedInstance, Placement, slice_mask
from tranche.core.profile import ProfileName
from tranche.core.sharing import NO_SHARING, MachineSharing, Timeslice


class MigMode(StrEnum):
    """A GPU's MIG mode; UNSUPPORTED when the GPU cannot be cut at all."""

    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    ENABLED = "enabled"


class ComputeMode(StrEnum):
    """Who may use a GPU: DEFAULT everybody, EXCLUSIVE one process at a time (an MPS server, say), PROHIBITED nobody."""

    DEFAULT = "default"
    EXCLUSIVE = "exclusive-process"
    PROHIBITED = "prohibited"


PROHIBITED = "somebody has set its compute mode to PROHIBITED, so no program can use it"
"""Tranche leaves that mode alone: it is an administrator's word."""


class DaemonState(StrEnum):
    """STARTING: nobody may be let in yet. READY: it serves, and its limits were read back. FAULT: it lives, and
    whoever comes would be refused or hang, or not be limited: a client's fault, a server that is wedged or stopped, limits that
    somebody has changed. LOST: its process died, and
    its limits with it. DAMAGED: what was written down of it cannot be read, so nothing can be said of it.
    """

    STARTING = "starting"
    READY = "ready"
    FAULT = "fault"
    LOST = "lost"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver lists on a GPU or an instance; `memory` in bytes, None when the driver cannot say."""

    pid: int
    name: str
    memory: int | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.name else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class ComputeInstance:
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


@dataclass(frozen=True, slots=True)
class InstanceKey:
    """Names a GPU instance's slot for as long as nobody cuts the GPU otherwise: GPU, profile and placement."""

    gpu_uuid: str
    profile: ProfileName
    placement: Placement

    def __str__(self) -> str:
        return f"{self.profile} at {self.placement} of {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance; `memory` in bytes as the driver reports it, None when it does not."""

    id: int
    profile: ProfileName
    profile_id: int
    placement: Placement
    memory: int | None
    compute_instances: tuple[ComputeInstance, ...] = ()
    stray_processes: tuple[GpuProcess, ...] = ()

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """Every process in the instance, each pid once."""
        seen = {p.pid: p for ci in self.compute_instances for p in ci.processes}
        seen.update({p.pid: p for p in self.stray_processes})
        return tuple(seen.values())

    @property
    def has_processes(self) -> bool:
        """Whether any process is in the instance."""
        return bool(self.stray_processes) or any(ci.processes for ci in self.compute_instances)

    @property
    def slices(self) -> tuple[ProfileName, ...]:
        """The names of the MIG devices inside, sorted; empty when no compute instance was made."""
        return tuple(sorted(ci.name for ci in self.compute_instances))

    @property
    def whole_slice(self) -> ComputeInstance | None:
        """The one compute instance that spans the GPU instance, if that is how it is cut."""
        if len(self.compute_instances) == 1 and self.compute_instances[0].name.spans_gpu_instance:
            return self.compute_instances[0]
        return None


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """An MPS daemon of Tranche's, for one device: a GPU that is not cut (no `slot`), or the instance in a slot.

    `limit` is the most that one of its clients may have, in bytes, 0 while it is not known. Without `every_user` it is known to
    serve one user's programs alone: those of others wait without end. `fault` says why nobody is let in, in state FAULT.
    `limits_changed` says that somebody has set other limits than Tranche's, so that it keeps nobody to his share.
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
    """One GPU. `memory`, `memory_free` and `memory_reserved` in bytes. The last is the part of `memory` that the driver keeps for
    itself, 0 where it does not say.

    `profiles` is what the GPU can be cut into, by the driver's answer, or by the catalogue where the driver gives none (Ampere
    with MIG off); `profiles_source` says which. `pci_device_id` and `pci_subsystem_id` are `0xDDDDVVVV`. `compute_capability` is
    CUDA's, major and minor. `compute_mode` is None if the driver does not say. `daemons` are Tranche's own: no driver knows them.
    `timeslice` is the length of turns that Tranche has set, and `timeslice_wanted` the one that the administrator wants for
    shares that take turns; None where there is none.
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

    @property
    def label(self) -> str:
        """How messages name the GPU: `GPU 3`."""
        return f"GPU {self.index}"

    @property
    def full_name(self) -> str:
        """The label and the UUID: `GPU 3 (GPU-...)`. A driver that has lost a GPU may not know its UUID."""
        return self.label if self.nameless else f"{self.label} ({self.uuid})"

    @property
    def nameless(self) -> bool:
        """Whether the driver has lost the GPU and nobody knows which it is: its UUID stands for its index."""
        return self.lost and not self.uuid.startswith("GPU-")

    @property
    def usable_memory(self) -> int:
        """The bytes that programs can have of the uncut GPU."""
        return self.memory - self.memory_reserved

    @property
    def mig_capable(self) -> bool:
        """Whether the GPU can be cut."""
        return self.mode is not MigMode.UNSUPPORTED

    @property
    def mig_enabled(self) -> bool:
        """Whether MIG mode is effective now."""
        return self.mode is MigMode.ENABLED

    @property
    def prohibited(self) -> bool:
        """Whether its compute mode lets no program use the uncut GPU."""
        return not self.mig_enabled and self.compute_mode is ComputeMode.PROHIBITED

    @property
    def mps_passable(self) -> bool:
        """Whether programs can leave the MPS daemon of the uncut GPU, and its limits: somebody has changed the compute mode."""
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
        return tuple(PlacedInstance(instance.profile, instance.placement) for instance in self.instances)

    @property
    def all_processes(self) -> tuple[GpuProcess, ...]:
        """Every process on the GPU or in one of its instances, each pid once."""
        seen = {p.pid: p for instance in self.instances for p in instance.processes}
        seen.update({p.pid: p for p in self.processes})
        return tuple(seen.values())

    def profile(self, name: ProfileName) -> GpuInstanceProfile | None:
        """The GPU-instance profile on this GPU that holds a slice of that name."""
        return next((p for p in self.profiles if p.name == name.gpu_instance), None)

    def instance_at(self, placement: Placement) -> GpuInstance | None:
        """The instance with exactly that placement."""
        return next((i for i in self.instances if i.placement == placement), None)

    def instance_in(self, slot: PlacedInstance) -> GpuInstance | None:
        """The instance with exactly that placement, when it has that profile."""
        instance = self.instance_at(slot.placement)
        return instance if instance is not None and instance.profile == slot.profile else None

    def daemon_of(self, slot: InstanceKey | None) -> MpsDaemon | None:
        """The MPS daemon of the instance in that slot; of the GPU itself without a slot."""
        return next((daemon for daemon in self.daemons if daemon.slot == slot), None)

    def key(self, instance: GpuInstance) -> InstanceKey:
        """The slot of one of this GPU's instances."""
        return InstanceKey(self.uuid, instance.profile, instance.placement)

    @property
    def fingerprint(self) -> str:
        """A short digest of mode and instances; it changes when and only when the GPU was cut or switched otherwise."""
        import hashlib  # loads OpenSSL, and only plans need fingerprints

        parts = [self.uuid, self.mode, self.pending_mode]
        for instance in sorted(self.instances, key=lambda i: i.placement):
            slices = ",".join(
                f"{ci.name}@{ci.start}" for ci in sorted(instance.compute_instances, key=lambda c: c.start)
            )
            parts.append(f"{instance.profile}@{instance.placement}[{slices}]")
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class NodeState:
    """Every GPU of the machine, in index order. `cuda_version` is the newest CUDA that the driver serves, major and minor.

    `sharing` is what several programs can share one device by.
    """

    gpus: tuple[GpuState, ...]
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: tuple[int, int] | None = None
    sharing: MachineSharing = NO_SHARING

    def __iter__(self) -> Iterator[GpuState]:
        return iter(self.gpus)

    def gpu(self, uuid: str) -> GpuState:
        """The GPU of that UUID; GpuNotFound otherwise."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise GpuNotFound(f"no GPU {uuid} on this machine", hint="list the GPUs with: tranche gpus")

    def by_index(self, index: int) -> GpuState:
        """The GPU of that index; GpuNotFound otherwise."""
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        raise GpuNotFound(
            f"no GPU {index} on this machine, which has {len(self.gpus)}",
            hint="list the GPUs with: tranche gpus",
        )


def unavailable(gpu: GpuState, slot: InstanceKey | None) -> str:
    """Why nobody more may share that device by MPS while others do, in words; "" when they may."""
    daemon = gpu.daemon_of(slot)
    if daemon is not None and daemon.state is DaemonState.FAULT:
        return f"its MPS daemon lets nobody in: {daemon.fault}"
    if daemon is not None and daemon.state is DaemonState.LOST:
        return "its MPS daemon has died, or nobody finds it any more, and nobody is let in until all who share it have ended"
    if daemon is not None and daemon.state is DaemonState.DAMAGED:
        return "what is known of its MPS daemon cannot be read, and nobody is let in until all who share it have ended"
    return ""


def taken_mask(present: Iterable[ComputeInstance]) -> int:
    """The compute slices under those compute instances, as a bit mask."""
    mask = 0
    for each in present:
        mask |= slice_mask(each.start, each.slices)
    return mask


def clients_inside(clients: int, profile: GpuInstanceProfile, gpu: GpuState) -> int:
    """How many clients MPS serves in a slice, by its part of the GPU's compute slices: no source gives the numbers."""
    most = max((each.slices for each in gpu.profiles), default=profile.slices)
    return max(1, clients * profile.slices // most)
