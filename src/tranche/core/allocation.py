"""What a workload was given, the devices that it stands for, and what became of its limits.

An allocation is not an instance: the instance outlives it, idle, until its room is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from tranche.core.grid import PlacedInstance, Placement
from tranche.core.keeper import NOT_KNOWN_YET, Keeper, ProcessKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import GpuMemory, Isolation, MigSlice, Request, WholeGpus
from tranche.core.sharing import (
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
from tranche.core.state import DaemonState, GpuInstance, GpuState, InstanceKey, NodeState


class Phase(StrEnum):
    """PREPARING: room is promised and the plan runs. ACTIVE: granted; the workload may run."""

    PREPARING = "preparing"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A GPU that is not cut, for one holder alone."""

    gpu_uuid: str

    def moved_to(self, gpu_uuid: str) -> WholeGpu:
        """The same on another GPU."""
        return replace(self, gpu_uuid=gpu_uuid)

    @property
    def slot(self) -> None:
        """No instance: the GPU itself."""
        return None

    @property
    def mechanism(self) -> str:
        """The word for how the share is made."""
        return "whole"

    @property
    def walls(self) -> GrantIsolation:
        """What is its own: everything."""
        return OWN_WALLS

    @property
    def isolation(self) -> Isolation:
        """How strong the fence around it is."""
        return self.walls.isolation


@dataclass(frozen=True, slots=True)
class Slice:
    """The GPU instance of a profile at a placement, for one holder alone."""

    gpu_uuid: str
    profile: ProfileName
    placement: Placement

    def moved_to(self, gpu_uuid: str) -> Slice:
        """The same on another GPU."""
        return replace(self, gpu_uuid=gpu_uuid)

    @property
    def slot(self) -> InstanceKey:
        """The instance slot that the grant takes."""
        return InstanceKey(self.gpu_uuid, self.profile, self.placement)

    @property
    def mechanism(self) -> str:
        """The word for how the share is made."""
        return "mig"

    @property
    def walls(self) -> GrantIsolation:
        """What is its own: everything."""
        return OWN_WALLS

    @property
    def isolation(self) -> Isolation:
        """How strong the fence around it is."""
        return self.walls.isolation


@dataclass(frozen=True, slots=True)
class ComputeSlice:
    """One compute instance of a GPU instance that is cut inside; its neighbours may have other holders.

    `start` and `size` count compute slices inside the GPU instance. They share its memory.
    """

    inside: Slice
    name: ProfileName
    start: int
    size: int

    def moved_to(self, gpu_uuid: str) -> ComputeSlice:
        """The same on another GPU."""
        return replace(self, inside=self.inside.moved_to(gpu_uuid))

    @property
    def gpu_uuid(self) -> str:
        """The GPU that it is on."""
        return self.inside.gpu_uuid

    @property
    def slot(self) -> InstanceKey:
        """The GPU instance that it lies in."""
        return self.inside.slot

    @property
    def mechanism(self) -> str:
        """The word for how the share is made."""
        return "mig"

    @property
    def walls(self) -> GrantIsolation:
        """Memory and faults are shared with the neighbours, and nothing limits what each takes."""
        return INSIDE_WALLS

    @property
    def isolation(self) -> Isolation:
        """How strong the fence around it is."""
        return self.walls.isolation


_MEMORY_WALLS = {
    Sharing.MEMORY_LIMITS: MemoryIsolation.DRIVER,
    Sharing.MPS: MemoryIsolation.PROCESS,
    Sharing.TIME_SLICING: MemoryIsolation.NONE,
}


@dataclass(frozen=True, slots=True)
class FractionalShare:
    """A part of a device that several allocations hold at once, by one mechanism for all of them.

    `memory` in bytes. `compute` is the ceiling in percent, None when none was asked for. `limit`, in bytes, is how far it may
    grow while nobody else needs the memory; None when it may not. MPS takes nothing back that has grown. `unlimited` says that
    its limits were in force and are lost, as when the daemon that kept them has died, or that more than `memory` was seen to be
    used.
    """

    device: WholeGpu | Slice
    memory: int
    sharing: Sharing
    compute: int | None = None
    limit: int | None = None
    unlimited: bool = False

    def moved_to(self, gpu_uuid: str) -> FractionalShare:
        """The same on another GPU."""
        return replace(self, device=self.device.moved_to(gpu_uuid))

    @property
    def gpu_uuid(self) -> str:
        """The GPU that it is on."""
        return self.device.gpu_uuid

    @property
    def slot(self) -> InstanceKey | None:
        """The instance slot that it lies in; None on a GPU that is not cut."""
        return self.device.slot

    @property
    def mechanism(self) -> str:
        """The word for how the share is made."""
        return str(self.sharing)

    @property
    def in_turns(self) -> bool:
        """Whether whoever has it uses an uncut GPU in turns with others; clients of MPS run at once."""
        return self.slot is None and self.sharing is not Sharing.MPS

    @property
    def kept(self) -> bool:
        """Whether the mechanism keeps its holder to `memory`, so that what others were given is there for them."""
        return not self.unlimited and (self.sharing is not Sharing.MPS or self.limit is None)

    @property
    def walls(self) -> GrantIsolation:
        """What the mechanism keeps; memory and compute without a wall once its limits are lost."""
        ceiling = self.compute is not None and not self.unlimited
        return GrantIsolation(
            _MEMORY_WALLS[self.sharing] if self.kept else MemoryIsolation.NONE,
            ComputeIsolation.CEILING if ceiling else ComputeIsolation.TURNS,
            FaultIsolation.SHARED if self.sharing is Sharing.MPS else FaultIsolation.OWN,
            BandwidthIsolation.SHARED,
        )

    @property
    def isolation(self) -> Isolation:
        """How strong the fence around it is."""
        return self.walls.isolation


Grant = WholeGpu | Slice | ComputeSlice | FractionalShare
"""One piece of GPU that an allocation has."""


def overlap(one: Grant, other: Grant) -> bool:
    """Whether both have something of one memory slice, or of one compute slice where an instance is cut inside."""
    if one.gpu_uuid != other.gpu_uuid:
        return False
    if one.slot is None or other.slot is None:
        return True
    if isinstance(one, ComputeSlice) and isinstance(other, ComputeSlice) and one.inside == other.inside:
        return one.start < other.start + other.size and other.start < one.start + one.size
    return one.slot.placement.overlaps(other.slot.placement)


def out_of_reach(grant: Grant, place: Grant) -> bool:
    """Whether the grant cannot be had without the place."""
    if overlap(grant, place):
        return True
    here, there = grant.slot, place.slot
    if here is None or there is None:
        return True
    return PlacedInstance(here.profile, here.placement).conflicts(PlacedInstance(there.profile, there.placement))


def nearest_request(grants: tuple[Grant, ...]) -> Request:
    """The request that comes nearest to what somebody was given who did not ask Tranche for it."""
    first, slot = grants[0], grants[0].slot
    if isinstance(first, FractionalShare):
        return Request(GpuMemory(first.memory), first.isolation, count=len(grants))
    return Request(WholeGpus(len(grants)) if slot is None else MigSlice(slot.profile))


@dataclass(frozen=True, slots=True)
class Allocation:
    """A share that is promised or granted.

    `keeper` is whoever it lives and ends with; `command` is what runs in it, for people. `created` is seconds since the epoch.
    """

    id: str
    request: Request
    grants: tuple[Grant, ...]
    phase: Phase
    created: float
    command: str = ""
    keeper: Keeper = NOT_KNOWN_YET

    @property
    def holder_pid(self) -> int:
        """The process that keeps it; 0 before it is known, and where no single process does."""
        return self.keeper.pid if isinstance(self.keeper, ProcessKeeper) else 0


class WithheldDevice(NamedTuple):
    """A GPU, or a slot of one, of which nothing is given away now; `why` is a clause for people.

    `for_large` says that it is kept for requests that name a size as large as it, or a whole GPU; `faulty` that it has reported
    an error. Else an administrator wants it so.
    """

    place: Grant
    why: str
    for_large: bool = False
    faulty: bool = False

    @property
    def by_administrator(self) -> bool:
        """Whether it is an administrator's word, which he can take back."""
        return not self.for_large and not self.faulty


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything a decision may look at: the hardware, what is promised, and which instances Tranche made.

    `requested` are those of the `owned` instances that were made for a request: an idle one may give way to a better place.
    `changing` names the GPUs that a declared layout is re-cutting right now; nothing may be granted on them. `uses` is the
    administrator's word on GPUs, by UUID. `withheld` are places of which nothing more is given away, whoever has something of
    them. Invariants of a view: no two grants overlap but parts of one device, which have one mechanism, and a whole GPU that is
    granted to one carries no other grant.
    """

    node: NodeState
    allocations: tuple[Allocation, ...] = ()
    owned: frozenset[InstanceKey] = frozenset()
    changing: frozenset[str] = frozenset()
    uses: Mapping[str, GpuPolicy] = field(default_factory=dict)
    withheld: tuple[WithheldDevice, ...] = ()
    requested: frozenset[InstanceKey] = frozenset()

    def use_of(self, gpu_uuid: str) -> GpuPolicy:
        """The administrator's word on that GPU; AUTO when there is none."""
        return self.uses.get(gpu_uuid, GpuPolicy.AUTO)

    def grants_on(self, gpu_uuid: str) -> tuple[Grant, ...]:
        """Every grant on that GPU."""
        return tuple(g for allocation in self.allocations for g in allocation.grants if g.gpu_uuid == gpu_uuid)

    def promised_on(self, gpu_uuid: str) -> tuple[PlacedInstance, ...]:
        """The grid places that grants hold on that GPU, each once, whether their instances exist yet or not."""
        slots = dict.fromkeys(grant.slot for grant in self.grants_on(gpu_uuid))
        return tuple(PlacedInstance(slot.profile, slot.placement) for slot in slots if slot is not None)

    def holders_of(self, key: InstanceKey) -> tuple[Allocation, ...]:
        """The allocations that hold that instance slot or something in it."""
        return tuple(each for each in self.allocations if any(grant.slot == key for grant in each.grants))


def devices(node: NodeState) -> Mapping[str, Grant]:
    """Every device of the node by its UUID: each GPU, and each compute instance.

    A compute instance that spans its GPU instance stands for the whole of it.
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
    """The devices of a GPU that several can share, by UUID, each with the slot of its instance; None for the GPU itself."""
    slices = {each.whole_slice.uuid: gpu.key(each) for each in gpu.instances if each.whole_slice is not None}
    return {gpu.uuid: None, **slices}


def memory_of(device: WholeGpu | Slice, gpu: GpuState) -> int:
    """The bytes that programs can have of a device together: what the driver reports, or the catalogue where it does not.

    Of an uncut GPU that is without what the driver keeps for itself. What it keeps of a slice, beyond what it leaves out of the
    slice's memory, no driver says.
    """
    if isinstance(device, WholeGpu):
        return gpu.usable_memory
    instance, profile = gpu.instance_at(device.placement), gpu.profile(device.profile)
    known = None if instance is None else instance.memory
    return known or (0 if profile is None else profile.memory or 0)


def shared_memory(grants: Iterable[Grant], node: NodeState) -> dict[WholeGpu | Slice, int]:
    """The bytes of each device that the grants are parts of."""
    parts = (grant for grant in grants if isinstance(grant, FractionalShare))
    return {part.device: memory_of(part.device, node.gpu(part.gpu_uuid)) for part in parts}


def device_uuid(grant: Grant, gpu: GpuState) -> str:
    """The UUID of the device that the grant is on, or a part of; "" when the GPU does not show it.

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
    """Whose word it is, the reason in his words, "" without one, and since when, in seconds since the epoch."""

    gpu_uuid: str
    user: str
    reason: str
    since: float

    @property
    def why(self) -> str:
        """A clause for people."""
        return f"cordoned by {self.user}" + (f": {self.reason}" if self.reason else "")


def cordoned(cordons: Iterable[Cordon]) -> tuple[WithheldDevice, ...]:
    """The GPUs as decisions see them."""
    return tuple(WithheldDevice(WholeGpu(each.gpu_uuid), each.why) for each in cordons)


def with_lost_limits(allocations: tuple[Allocation, ...], node: NodeState) -> tuple[Allocation, ...]:
    """The allocations, where parts whose daemon is gone or keeps other limits are unlimited.

    One that is still prepared waits for its daemon.
    """
    if not any(_by_mps(grant) for allocation in allocations for grant in allocation.grants):
        return allocations
    gpus = {gpu.uuid: gpu for gpu in node}
    return tuple(
        replace(each, grants=tuple(_as_kept(grant, gpus) for grant in each.grants))
        if each.phase is Phase.ACTIVE
        else each
        for each in allocations
    )


def limits_lost(grant: Grant, gpu: GpuState) -> bool:
    """Whether the limits of a grant were kept by a daemon that is gone from that GPU, the grant's own, or keeps others now."""
    if not _by_mps(grant) or gpu.lost:
        return False
    daemon = gpu.daemon_of(grant.slot)
    return daemon is None or daemon.limits_changed or daemon.state in (DaemonState.LOST, DaemonState.STARTING)


def _by_mps(grant: Grant) -> bool:
    return isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS and not grant.unlimited


def _as_kept(grant: Grant, gpus: Mapping[str, GpuState]) -> Grant:
    gpu = gpus.get(grant.gpu_uuid)
    if gpu is not None and isinstance(grant, FractionalShare) and limits_lost(grant, gpu):
        return replace(grant, unlimited=True)
    return grant
