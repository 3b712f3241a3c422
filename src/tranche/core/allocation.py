"""Allocations, the devices behind their grants, and grants that have lost their limits.

An allocation is not an instance. The instance outlives it, idle, until its room is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tranche.core.grid import PlacedInstance, Placement
from tranche.core.keeper import NOT_KNOWN_YET, Keeper, ProcessKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import GpuMemory, MigSlice, Request, WholeGpus
from tranche.core.reservation import Reservation
from tranche.core.sharing import (
    ALL_COMPUTE,
    INSIDE_WALLS,
    OWN_WALLS,
    BandwidthIsolation,
    ComputeIsolation,
    FaultIsolation,
    GpuPolicy,
    GrantIsolation,
    MemoryIsolation,
    Sharing,
)
from tranche.core.state import DaemonState, DeviceVisibility, GpuInstance, GpuState, InstanceKey, NodeState
from tranche.core.user_quota import UserQuota

HELD = "(tranche hold)"
"""What a hold has instead of a command. No command reads so: a shell would quote the parentheses."""


class Phase(StrEnum):
    """PREPARING: room is promised and the plan runs. ACTIVE: granted; the workload may run."""

    PREPARING = "preparing"
    ACTIVE = "active"


class WholeGpu(NamedTuple):
    """An uncut GPU for a single holder."""

    gpu_uuid: str

    @property
    def slot(self) -> None:
        """None: the grant takes the GPU itself."""
        return None

    @property
    def mechanism(self) -> str:
        """The name of the sharing mechanism."""
        return "whole"

    @property
    def walls(self) -> GrantIsolation:
        """Everything is its own."""
        return OWN_WALLS


class Slice(NamedTuple):
    """The GPU instance of a profile at a placement, for a single holder."""

    gpu_uuid: str
    profile: ProfileName
    placement: Placement

    @property
    def slot(self) -> InstanceKey:
        """The instance slot that the grant takes."""
        return InstanceKey(self.gpu_uuid, self.profile, self.placement)

    @property
    def mechanism(self) -> str:
        """The name of the sharing mechanism."""
        return "mig"

    @property
    def walls(self) -> GrantIsolation:
        """Everything is its own."""
        return OWN_WALLS


class ComputeSlice(NamedTuple):
    """One compute instance of a GPU instance. Its neighbours inside the GPU instance may have other holders.

    `start` and `size` count compute slices inside the GPU instance. Neighbours share its memory.
    """

    inside: Slice
    name: ProfileName
    start: int
    size: int

    @property
    def gpu_uuid(self) -> str:
        """The UUID of its GPU."""
        return self.inside.gpu_uuid

    @property
    def slot(self) -> InstanceKey:
        """The slot of the GPU instance around it."""
        return self.inside.slot

    @property
    def mechanism(self) -> str:
        """The name of the sharing mechanism."""
        return "mig"

    @property
    def walls(self) -> GrantIsolation:
        """Neighbours share memory and faults without limits."""
        return INSIDE_WALLS


_MEMORY_WALLS = {
    Sharing.MEMORY_LIMITS: MemoryIsolation.DRIVER,
    Sharing.MPS: MemoryIsolation.PROCESS,
    Sharing.TIME_SLICING: MemoryIsolation.NONE,
}


class FractionalShare(NamedTuple):
    """A part of a device that several allocations share by one mechanism.

    `memory` is in bytes. `compute` is the ceiling in percent, None if the request set none. `limit`, in bytes, is how far the
    part may grow while others leave the memory free; None if it may not grow. MPS never takes back memory that has grown.
    `unlimited` means that the limits were in force and are lost: its daemon died, for example, or its processes used more than
    `memory`.
    """

    device: WholeGpu | Slice
    memory: int
    sharing: Sharing
    compute: int | None = None
    limit: int | None = None
    unlimited: bool = False

    @property
    def gpu_uuid(self) -> str:
        """The UUID of its GPU."""
        return self.device.gpu_uuid

    @property
    def slot(self) -> InstanceKey | None:
        """The instance slot of the device; None on an uncut GPU."""
        return self.device.slot

    @property
    def mechanism(self) -> str:
        """The name of the sharing mechanism."""
        return str(self.sharing)

    @property
    def in_turns(self) -> bool:
        """Whether the holder takes turns with others on an uncut GPU; clients of MPS run at once."""
        return self.slot is None and self.sharing is not Sharing.MPS

    @property
    def kept(self) -> bool:
        """Whether the mechanism limits the holder to `memory`, so that neighbours get what they were granted."""
        return not self.unlimited and (self.sharing is not Sharing.MPS or self.limit is None)

    @property
    def walls(self) -> GrantIsolation:
        """What the mechanism enforces. A part that lost its limits has no wall around memory and compute."""
        ceiling = self.compute is not None and not self.unlimited
        return GrantIsolation(
            _MEMORY_WALLS[self.sharing] if self.kept else MemoryIsolation.NONE,
            ComputeIsolation.CEILING if ceiling else ComputeIsolation.TURNS,
            FaultIsolation.SHARED if self.sharing is Sharing.MPS else FaultIsolation.OWN,
            BandwidthIsolation.SHARED,
        )


Grant = WholeGpu | Slice | ComputeSlice | FractionalShare
"""One device, or part of one, of an allocation."""


def parts_by(sharing: Sharing, grants: Iterable[Grant]) -> tuple[FractionalShare, ...]:
    """The grants that are parts of a device shared by that mechanism."""
    return tuple(each for each in grants if isinstance(each, FractionalShare) and each.sharing is sharing)


def overlap(one: Grant, other: Grant) -> bool:
    """Whether both use the same memory slice, or the same compute slice inside a cut instance."""
    if one.gpu_uuid != other.gpu_uuid:
        return False
    if one.slot is None or other.slot is None:
        return True
    if isinstance(one, ComputeSlice) and isinstance(other, ComputeSlice) and one.inside == other.inside:
        return one.start < other.start + other.size and other.start < one.start + one.size
    return one.slot.placement.overlaps(other.slot.placement)


def out_of_reach(grant: Grant, place: Grant) -> bool:
    """Whether the grant is impossible without the place."""
    if overlap(grant, place):
        return True
    here, there = grant.slot, place.slot
    if here is None or there is None:
        return True
    return here.place.conflicts(there.place)


def nearest_request(grants: tuple[Grant, ...]) -> Request:
    """The request that comes closest to grants made without Tranche."""
    first, slot = grants[0], grants[0].slot
    if isinstance(first, FractionalShare):
        return Request(GpuMemory(first.memory), first.walls.isolation, count=len(grants))
    return Request(WholeGpus(len(grants)) if slot is None else MigSlice(slot.profile))


class Allocation(NamedTuple):
    """A promised or granted share.

    `keeper` decides how long it lives; `command` describes its program for people. `created` is seconds since the epoch. `memory`
    is the bytes of its grants when they were granted, and `gpu_millionths` their part of a GPU; 0 if not recorded.
    """

    id: str
    request: Request
    grants: tuple[Grant, ...]
    phase: Phase
    created: float
    command: str = ""
    keeper: Keeper = NOT_KNOWN_YET
    memory: int = 0
    gpu_millionths: int = 0

    @property
    def holder_pid(self) -> int:
        """The process that keeps it; 0 before it is known, or if no single process keeps it."""
        return self.keeper.pid if isinstance(self.keeper, ProcessKeeper) else 0


DeviceKey = tuple[str, InstanceKey | None]
"""A device by its GPU's UUID and the slot of its instance."""


def shared_by_mps(allocations: Iterable[Allocation]) -> Mapping[DeviceKey, bool]:
    """The devices with parts by MPS, each with whether any of its parts counts as limited."""
    found: dict[DeviceKey, bool] = {}
    for allocation in allocations:
        for part in parts_by(Sharing.MPS, allocation.grants):
            key = part.gpu_uuid, part.slot
            found[key] = found.get(key, False) or not part.unlimited
    return found


class WithheldDevice(NamedTuple):
    """A GPU or a slot that serves no new requests; `why` is a clause for people.

    `for_large` reserves it for requests for a whole GPU or for a size at least as large. `faulty` means that it reported an
    error. Otherwise an administrator withholds it.
    """

    place: Grant
    why: str
    for_large: bool = False
    faulty: bool = False

    @property
    def by_administrator(self) -> bool:
        """Whether an administrator withholds it, and can release it."""
        return not self.for_large and not self.faulty


@dataclass(frozen=True, slots=True)
class NodeView:
    """All inputs of a decision: the hardware, the promised grants, and the instances that Tranche made.

    `requested` is the subset of `owned` that was made for requests; an idle one may give way to a better place. `changing` names
    the GPUs that a layout change is re-cutting; they take no grants. `uses` maps GPU UUIDs to the administrator's policy.
    `withheld` places take no new grants, even if they have holders. `quotas` maps uids as text, and groups, to quotas; `groups`
    maps uids as text to the user's groups with quotas or reservations. `recent` has the GPU-seconds of users and groups today and
    on the six days before, if a quota limits them. `idle` has the seconds for which shares have been idle, for explanations.
    `reservations` are in the order of their beginnings; what they close depends on `time`, in seconds since the epoch. `asker` is
    the uid of the user that the decision is for, -1 if unknown.

    Invariants: grants overlap only as parts of one device, by one mechanism. A GPU granted whole carries no other grant.
    """

    node: NodeState
    allocations: tuple[Allocation, ...] = ()
    owned: frozenset[InstanceKey] = frozenset()
    changing: frozenset[str] = frozenset()
    uses: Mapping[str, GpuPolicy] = field(default_factory=dict)
    withheld: tuple[WithheldDevice, ...] = ()
    requested: frozenset[InstanceKey] = frozenset()
    quotas: Mapping[str, UserQuota] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recent: Mapping[str, float] = field(default_factory=dict)
    asker: int = -1
    idle: Mapping[str, int] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    time: float = 0.0

    def use_of(self, gpu_uuid: str) -> GpuPolicy:
        """The administrator's policy for that GPU; AUTO if there is none."""
        return self.uses.get(gpu_uuid, GpuPolicy.AUTO)

    def grants_on(self, gpu_uuid: str) -> tuple[Grant, ...]:
        """Every grant on that GPU."""
        return tuple(g for allocation in self.allocations for g in allocation.grants if g.gpu_uuid == gpu_uuid)

    def promised_on(self, gpu_uuid: str) -> tuple[PlacedInstance, ...]:
        """The grid places that grants hold on that GPU, each once, including instances still to be made."""
        slots = dict.fromkeys(grant.slot for grant in self.grants_on(gpu_uuid))
        return tuple(slot.place for slot in slots if slot is not None)


def missing_instances(view: NodeView, allocation: Allocation) -> tuple[InstanceKey, ...]:
    """The slots of a granted allocation that have no instance: reset, lost, or cut by another tool.

    What the view cannot show, for example inside another share, is not missing.
    """
    if allocation.phase is Phase.PREPARING or view.node.scope is DeviceVisibility.PARTS:
        return ()
    present = {gpu.key(instance) for gpu in view.node for instance in gpu.instances}
    shown = {gpu.uuid for gpu in view.node}
    slots = (grant.slot for grant in allocation.grants if grant.gpu_uuid in shown)
    return tuple(slot for slot in slots if slot is not None and slot not in present)


def devices(node: NodeState) -> Mapping[str, Grant]:
    """Every device of the node by UUID: each GPU, and each compute instance.

    A compute instance that spans its GPU instance stands for all of it.
    """
    found: dict[str, Grant] = {}
    for gpu in node:
        found[gpu.uuid] = WholeGpu(gpu.uuid)
        for instance in gpu.instances:
            found.update(_inside(gpu, instance))
    return found


def _inside(gpu: GpuState, instance: GpuInstance) -> Mapping[str, Grant]:
    whole = Slice(gpu.uuid, instance.profile, instance.placement)
    if instance.whole_slice is not None:
        return {instance.whole_slice.uuid: whole}
    return {each.uuid: ComputeSlice(whole, each.name, each.start, each.slices) for each in instance.compute_instances}


def shareable_devices(gpu: GpuState) -> Mapping[str, InstanceKey | None]:
    """The shareable devices of a GPU by UUID, each with its instance slot; None for the GPU itself."""
    slices = {each.whole_slice.uuid: gpu.key(each) for each in gpu.instances if each.whole_slice is not None}
    return {gpu.uuid: None, **slices}


def memory_of(device: WholeGpu | Slice, gpu: GpuState) -> int:
    """The bytes of a device that programs can use in total, from the driver or else the catalogue.

    For an uncut GPU this excludes the driver's own memory. For a slice, no driver reports what it keeps beyond the part already
    missing from the slice's memory.
    """
    if isinstance(device, WholeGpu):
        return gpu.usable_memory
    instance, profile = gpu.instance_at(device.placement), gpu.profile(device.profile)
    known = None if instance is None else instance.memory
    return known or (0 if profile is None else profile.memory or 0)


class ShareSize(NamedTuple):
    """What grants count as: millionths of a GPU, rounded down, and bytes."""

    gpu_millionths: int
    memory: int


WHOLE = 10**6
"""A GPU in millionths."""


def size_of(grants: Iterable[Grant], node: NodeState) -> ShareSize:
    """What the grants count as together, as far as their GPUs show them."""
    sizes = [grant_size(grant, node.gpu(grant.gpu_uuid)) for grant in grants]
    return ShareSize(sum(each.gpu_millionths for each in sizes), sum(each.memory for each in sizes))


def grant_size(grant: Grant, gpu: GpuState) -> ShareSize:
    """What a grant on `gpu`, its own, counts as.

    A slice is its part of the GPU's memory or of its compute, the larger one, with all its memory. A compute slice counts as the
    whole slice around it. A part of a shared device is its part of the memory, or its compute ceiling if that is larger.
    """
    match grant:
        case WholeGpu():
            return ShareSize(WHOLE, memory_of(grant, gpu))
        case Slice():
            profile, slices = gpu.profile(grant.profile), max((each.slices for each in gpu.profiles), default=1)
            compute = WHOLE * (0 if profile is None else profile.slices) // slices
            room = WHOLE * grant.placement.size // (gpu.memory_slices or grant.placement.size)
            return ShareSize(max(compute, room), memory_of(grant, gpu))
        case ComputeSlice():
            return grant_size(grant.inside, gpu)
        case FractionalShare():
            compute = grant_size(grant.device, gpu).gpu_millionths * (grant.compute or 0) // ALL_COMPUTE
            # A lost GPU does not show its memory.
            memory = WHOLE * grant.memory // gpu.usable_memory if gpu.usable_memory else WHOLE
            return ShareSize(max(compute, memory), grant.memory)


def shared_memory(grants: Iterable[Grant], node: NodeState) -> dict[WholeGpu | Slice, int]:
    """The usable bytes of each device that the grants are parts of."""
    parts = (grant for grant in grants if isinstance(grant, FractionalShare))
    return {part.device: memory_of(part.device, node.gpu(part.gpu_uuid)) for part in parts}


def device_uuid(grant: Grant, gpu: GpuState) -> str:
    """The UUID of the grant's device; "" if the GPU does not show it.

    `gpu` is the grant's own.
    """
    device = grant.device if isinstance(grant, FractionalShare) else grant
    if isinstance(device, WholeGpu):
        return gpu.uuid
    instance = gpu.instance_at(device.slot.placement)
    if instance is None or instance.profile != device.slot.profile:
        return ""
    return next((uuid for uuid, found in _inside(gpu, instance).items() if found == device), "")


class Cordon(NamedTuple):
    """An administrator's cordon. `reason` may be empty; `since` is seconds since the epoch."""

    gpu_uuid: str
    user: str
    reason: str
    since: float

    @property
    def why(self) -> str:
        """The cordon as a clause for people."""
        return f"cordoned by {self.user}" + (f": {self.reason}" if self.reason else "")


def cordoned(cordons: Iterable[Cordon]) -> tuple[WithheldDevice, ...]:
    """The cordoned GPUs as withheld devices."""
    return tuple(WithheldDevice(WholeGpu(each.gpu_uuid), each.why) for each in cordons)


def with_lost_limits(allocations: tuple[Allocation, ...], node: NodeState) -> tuple[Allocation, ...]:
    """The allocations, with parts marked unlimited where their daemon is gone or enforces other limits.

    An allocation in preparation still waits for its daemon.
    """
    if not any(_by_mps(grant) for allocation in allocations for grant in allocation.grants):
        return allocations
    gpus = {gpu.uuid: gpu for gpu in node}
    return tuple(
        each._replace(grants=tuple(_as_kept(grant, gpus) for grant in each.grants))
        if each.phase is Phase.ACTIVE
        else each
        for each in allocations
    )


def limits_lost(grant: Grant, gpu: GpuState) -> bool:
    """Whether the grant's daemon is gone from `gpu` or enforces other limits. `gpu` is the grant's own."""
    if not _by_mps(grant) or gpu.lost:
        return False
    daemon = gpu.daemon_of(grant.slot)
    return daemon is None or daemon.limits_changed or daemon.state in (DaemonState.LOST, DaemonState.STARTING)


def _by_mps(grant: Grant) -> bool:
    return isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS and not grant.unlimited


def _as_kept(grant: Grant, gpus: Mapping[str, GpuState]) -> Grant:
    gpu = gpus.get(grant.gpu_uuid)
    if gpu is not None and isinstance(grant, FractionalShare) and limits_lost(grant, gpu):
        return grant._replace(unlimited=True)
    return grant
