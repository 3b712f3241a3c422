"""What a workload was given. An allocation is not an instance: the instance outlives it, idle, until its room is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from tranche.core.gpu_use import GpuPolicy
from tranche.core.grid import PlacedInstance, Placement
from tranche.core.isolation_properties import (
    INSIDE_WALLS,
    OWN_WALLS,
    BandwidthIsolation,
    ComputeIsolation,
    FaultIsolation,
    GrantIsolation,
    MemoryIsolation,
)
from tranche.core.keeper import NOT_KNOWN_YET, Keeper, ProcessKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import GpuMemory, Isolation, MigSlice, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import InstanceKey, NodeState


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
