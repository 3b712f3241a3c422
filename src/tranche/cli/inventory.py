"""What is on each GPU, as the listings show it: slices with their state, and what there is room for."""

from __future__ import annotations

from dataclasses import dataclass

from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import Occupant, Placement, remaining_capacity
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.planning.tenancy import tenancy


@dataclass(frozen=True, slots=True)
class Slice:
    """A GPU instance, or a slot that is promised and has none.

    `state` is `held` (an allocation has it), `preparing` (promised, its plan runs), `missing` (an allocation has it, but no
    instance is there), `in use` (a process outside Tranche runs in it) or `idle`. `owned` tells whether Tranche made it.
    """

    key: InstanceKey
    state: str
    owned: bool
    instance: GpuInstance | None
    allocation: Allocation | None

    @property
    def profile(self) -> ProfileName:
        """The profile of the instance or of the promised slot."""
        return self.key.profile

    @property
    def placement(self) -> Placement:
        """Where on the GPU's grid it lies."""
        return self.key.placement


def slices_on(view: NodeView, gpu: GpuState) -> tuple[Slice, ...]:
    """Every slice of one of the view's GPUs, by placement."""
    here = tenancy(view, gpu)
    present = {gpu.key(instance): instance for instance in gpu.instances}
    found = [
        Slice(key, _promised_state(allocation, present.get(key)), key in view.owned, present.get(key), allocation)
        for key, allocation in here.promised.items()
    ]
    for state, instances in (("in use", here.in_use), ("idle", here.idle)):
        found += [Slice(gpu.key(each), state, gpu.key(each) in view.owned, each, None) for each in instances]
    return tuple(sorted(found, key=lambda each: each.placement))


def whole_holder(view: NodeView, gpu: GpuState) -> Allocation | None:
    """The allocation that holds the GPU uncut."""
    return tenancy(view, gpu).whole


def missing_instances(view: NodeView, allocation: Allocation) -> tuple[InstanceKey, ...]:
    """The slots of a granted allocation where no instance is: reset, lost, or cut by another tool."""
    if allocation.phase is Phase.PREPARING:
        return ()
    present = {gpu.key(instance) for gpu in view.node for instance in gpu.instances}
    return tuple(grant.key for grant in allocation.grants if grant.key is not None and grant.key not in present)


def room_on(gpu: GpuState, slices: tuple[Slice, ...]) -> tuple[tuple[GpuInstanceProfile, int], ...]:
    """Each profile without attributes, smallest first, with how many more of it the GPU takes beside all its slices."""
    taken = [Occupant(each.profile, each.placement) for each in slices]
    plain = [profile for profile in gpu.profiles if profile.starts and not profile.name.has_attributes]
    plain.sort(key=lambda profile: (profile.size, profile.slices))
    return tuple((profile, remaining_capacity(profile, taken)) for profile in plain)


def _promised_state(allocation: Allocation, instance: GpuInstance | None) -> str:
    if allocation.phase is Phase.PREPARING:
        return "preparing"
    return "held" if instance is not None else "missing"
