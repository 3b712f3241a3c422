"""Who uses a GPU and its instances, so that a change of layout can name whom it would hit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.errors import GpuBusy
from tranche.core.grid import PlacedInstance
from tranche.core.keeper import ChosenFor, PodKeeper
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuProcess, GpuState
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, occupant, tenancy


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who uses a GPU or one of its instances, or was promised it.

    `instance` is None when the whole GPU is used, or when the promised instance does not exist yet; `occupant` is None for
    the whole GPU only. `changing` stands for another change of layout that is at work on the GPU.
    """

    gpu: GpuState
    occupant: PlacedInstance | None
    instance: GpuInstance | None = None
    processes: tuple[GpuProcess, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    changing: bool = False

    @property
    def slices(self) -> tuple[ProfileName, ...]:
        """The slices that the user's instance has, or will have: what is promised spans its instance."""
        if self.instance is not None and (self.instance.slices or not self.allocations):
            return self.instance.slices
        return (self.occupant.profile,) if self.occupant is not None else ()

    @property
    def place(self) -> str:
        """Where: `1g.10gb at 6:1 of GPU 3 (MIG-...)`, or `GPU 3`."""
        if self.occupant is None:
            return self.gpu.label
        text = f"{self.occupant.profile} at {self.occupant.placement} of {self.gpu.label}"
        uuids = ", ".join(ci.uuid for ci in self.instance.compute_instances) if self.instance is not None else ""
        return f"{text} ({uuids})" if uuids else text

    def __str__(self) -> str:
        # The processes of a pod say less than its name, or than that of its claim.
        of_pods = any(isinstance(each.keeper, PodKeeper | ChosenFor) for each in self.allocations)
        users = [] if of_pods else [str(process) for process in self.processes]
        users += map(holder_text, self.allocations)
        if self.changing:
            users.append("another change of layout")
        if self.gone:
            return f"{self.place} is not there, and is held by {', '.join(users)}"
        return f"{self.place} is in use by {', '.join(users)}"

    @property
    def gone(self) -> bool:
        """Whether the slice was there and is not any more, as after a restart of the machine."""
        return (
            self.instance is None
            and self.occupant is not None
            and any(a.phase is Phase.ACTIVE for a in self.allocations)
        )


def holder_text(allocation: Allocation) -> str:
    """Whoever has an allocation, for people: `pod ns/name`, `claim ns/name`, or `allocation 1f2e3d4c (train.py)`."""
    if isinstance(allocation.keeper, PodKeeper | ChosenFor):
        return str(allocation.keeper)
    return f"allocation {allocation.id}" + (f" ({allocation.command})" if allocation.command else "")


@dataclass(frozen=True, slots=True)
class LayoutOccupancy:
    """One GPU's instances, told apart: `users` are untouchable, `idle` are free to go."""

    gpu: GpuState
    users: tuple[User, ...]
    idle: tuple[GpuInstance, ...]

    @property
    def slice_users(self) -> tuple[User, ...]:
        """The users of instances, existing or promised."""
        return tuple(user for user in self.users if user.occupant is not None)

    @property
    def without_slice(self) -> tuple[User, ...]:
        """The users whose slice is gone: their place is not cut, whatever they were promised."""
        return tuple(user for user in self.slice_users if user.gone)

    @property
    def whole_gpu_users(self) -> tuple[User, ...]:
        """Allocations of the whole GPU, processes outside of any instance, and another change of layout."""
        return tuple(user for user in self.users if user.occupant is None)

    @property
    def holders_of_all(self) -> tuple[User, ...]:
        """The users of the whole GPU who forbid any change of its cut; a process outside of the instances does not."""
        return tuple(user for user in self.whole_gpu_users if user.allocations or user.changing)

    @property
    def emptied(self) -> LayoutOccupancy:
        """The same after every idle instance is gone."""
        gone = {instance.placement for instance in self.idle}
        left = tuple(instance for instance in self.gpu.instances if instance.placement not in gone)
        return replace(self, gpu=replace(self.gpu, instances=left), idle=())


def gpu_users(view: NodeView, gpu: GpuState) -> LayoutOccupancy:
    """Who uses what on that GPU."""
    found = tenancy(view, gpu)
    users: list[User] = []
    idle: list[GpuInstance] = []
    promised = dict(found.promised)
    for instance in sorted(gpu.instances, key=lambda i: i.placement):
        holders = promised.pop(gpu.key(instance), ()) or _promised_across(found, instance)
        if holders or instance.processes:
            users.append(User(gpu, occupant(instance), instance, instance.processes, holders))
        else:
            idle.append(instance)
    users += [
        User(gpu, PlacedInstance(slot.profile, slot.placement), None, (), held) for slot, held in promised.items()
    ]
    if found.whole:
        users.append(User(gpu, None, None, gpu.processes, found.whole))
    elif gpu.processes:
        users.append(User(gpu, None, None, gpu.processes))
    if gpu.uuid in view.changing:
        users.append(User(gpu, None, changing=True))
    return LayoutOccupancy(gpu, tuple(users), tuple(idle))


def _promised_across(found: GpuOccupancy, instance: GpuInstance) -> tuple[Allocation, ...]:
    """The allocations whose promised slot cannot be beside the instance: the instance is about to go for it."""
    place = occupant(instance)
    for slot, holders in found.promised.items():
        if place.conflicts(PlacedInstance(slot.profile, slot.placement)):
            return holders
    return ()


def busy_error(purpose: str, users: tuple[User, ...]) -> GpuBusy:
    """The refusal that names every user in the way."""
    named = "; ".join(str(user) for user in users)
    return GpuBusy(
        f"{purpose} is refused, nothing was changed: {named}",
        hint="stop what uses it, or wait for its end with --wait",
    )
