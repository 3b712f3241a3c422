"""The slices on each GPU with their state, and the remaining room, as the listings show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tranche.core.allocation import Allocation, NodeView, Phase, WholeGpu
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import PlacedInstance, Placement, remaining_capacity
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.documents.shared_devices import SharedDevice, shared_device
from tranche.planning.occupancy.gpu_occupancy import tenancy


class SliceRow(NamedTuple):
    """A GPU instance, or a promised slot without one.

    `state` is `held` (an allocation has it), `preparing` (promised, its plan runs), `missing` (an allocation has it, but no
    instance is there), `in use` (a process outside Tranche runs in it) or `idle`. `owned` means that Tranche made it, or is about
    to. `shared` says how, if several may hold parts of it.
    """

    key: InstanceKey
    state: str
    owned: bool
    instance: GpuInstance | None
    allocations: tuple[Allocation, ...] = ()
    shared: SharedDevice | None = None

    @property
    def profile(self) -> ProfileName:
        """The profile of the instance or of the promised slot."""
        return self.key.profile

    @property
    def placement(self) -> Placement:
        """Its place on the GPU's grid."""
        return self.key.placement


def slices_on(view: NodeView, gpu: GpuState) -> tuple[SliceRow, ...]:
    """Every slice of one of the view's GPUs, by placement."""
    here = tenancy(view, gpu)
    present = {gpu.key(instance): instance for instance in gpu.instances}
    found = []
    for key, holders in here.promised.items():
        instance, account = present.get(key), here.shared.get(key)
        shared = None if account is None else shared_device(gpu, key, account)
        state = _promised_state(holders, instance)
        ours = key in view.owned or (instance is None and state == "preparing")
        found.append(SliceRow(key, state, ours, instance, holders, shared))
    for state, instances in (("in use", here.in_use), ("idle", here.idle)):
        found += [SliceRow(gpu.key(each), state, gpu.key(each) in view.owned, each) for each in instances]
    return tuple(sorted(found, key=lambda each: each.placement))


def whole_holders(view: NodeView, gpu: GpuState) -> tuple[Allocation, ...]:
    """The allocations that hold the GPU uncut, or parts of it."""
    return tenancy(view, gpu).whole


def missing_instances(view: NodeView, allocation: Allocation) -> tuple[InstanceKey, ...]:
    """The slots of a granted allocation that have no instance: reset, lost, or cut by another tool."""
    if allocation.phase is Phase.PREPARING:
        return ()
    present = {gpu.key(instance) for gpu in view.node for instance in gpu.instances}
    return tuple(grant.slot for grant in allocation.grants if grant.slot is not None and grant.slot not in present)


def room_on(gpu: GpuState, slices: tuple[SliceRow, ...]) -> tuple[tuple[GpuInstanceProfile, int], ...]:
    """Each profile without attributes, smallest first, with how many more of it fit beside all slices of the GPU."""
    taken = [PlacedInstance(each.profile, each.placement) for each in slices]
    plain = [profile for profile in gpu.profiles if profile.starts and not profile.name.has_attributes]
    plain.sort(key=lambda profile: (profile.size, profile.slices))
    return tuple((profile, remaining_capacity(profile, taken)) for profile in plain)


def _promised_state(holders: Iterable[Allocation], instance: GpuInstance | None) -> str:
    if any(each.phase is Phase.PREPARING for each in holders):
        return "preparing"
    return "held" if instance is not None else "missing"


def why_withheld(view: NodeView, gpu: GpuState) -> str:
    """Why the GPU is withheld, in words; "" if it is not."""
    return "; ".join(dict.fromkeys(each.why for each in view.withheld if each.place == WholeGpu(gpu.uuid)))
