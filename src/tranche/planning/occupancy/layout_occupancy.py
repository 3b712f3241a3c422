"""The users of a GPU and its instances, so that a layout change can name those it would hit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.errors import GpuBusy
from tranche.core.grid import PlacedInstance
from tranche.core.keeper import ChosenFor, PodKeeper
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuProcess, GpuState
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, tenancy


@dataclass(frozen=True, slots=True)
class User:
    """A user of a GPU or one of its instances, present or promised.

    `instance` is None for the whole GPU, or if the promised instance does not exist yet; `occupant` is None only for the whole
    GPU. `changing` stands for another layout change at work on the GPU.
    """

    gpu: GpuState
    occupant: PlacedInstance | None
    instance: GpuInstance | None = None
    processes: tuple[GpuProcess, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    changing: bool = False

    @property
    def slices(self) -> tuple[ProfileName, ...]:
        """The slices that the user's instance has, or will have: a promised slice spans its instance."""
        if self.instance is not None and (self.instance.slices or not self.allocations):
            return self.instance.slices
        return (self.occupant.profile,) if self.occupant is not None else ()

    @property
    def place(self) -> str:
        """The place: `1g.10gb at 6:1 of GPU 3 (MIG-...)`, or `GPU 3`."""
        if self.occupant is None:
            return self.gpu.label
        text = f"{self.occupant.profile} at {self.occupant.placement} of {self.gpu.label}"
        uuids = ", ".join(ci.uuid for ci in self.instance.compute_instances) if self.instance is not None else ""
        return f"{text} ({uuids})" if uuids else text

    def __str__(self) -> str:
        # The name of a pod or its claim says more than its processes.
        of_pods = any(isinstance(each.keeper, PodKeeper | ChosenFor) for each in self.allocations)
        users = [] if of_pods else [str(process) for process in self.processes]
        users += map(holder_text, self.allocations)
        if self.changing:
            users.append("another change of layout")
        if self.gone:
            return f"{self.place} does not exist, but is held by {', '.join(users)}"
        return f"{self.place} is in use by {', '.join(users)}"

    @property
    def gone(self) -> bool:
        """Whether the slice has disappeared, as after a restart of the machine."""
        return (
            self.instance is None
            and self.occupant is not None
            and any(a.phase is Phase.ACTIVE for a in self.allocations)
        )


def holder_text(allocation: Allocation) -> str:
    """The holder of an allocation, for people: `pod ns/name`, `claim ns/name`, or `allocation 1f2e3d4c (train.py)`."""
    if isinstance(allocation.keeper, PodKeeper | ChosenFor):
        return str(allocation.keeper)
    return f"allocation {allocation.id}" + (f" ({allocation.command})" if allocation.command else "")


@dataclass(frozen=True, slots=True)
class LayoutOccupancy:
    """One GPU's instances: `users` are untouchable, `idle` are free to go."""

    gpu: GpuState
    users: tuple[User, ...]
    idle: tuple[GpuInstance, ...]

    @property
    def slice_users(self) -> tuple[User, ...]:
        """The users of instances, existing or promised."""
        return tuple(user for user in self.users if user.occupant is not None)

    @property
    def holders_of_all(self) -> tuple[User, ...]:
        """The users of the whole GPU that forbid any change of its cut; a process outside the instances does not."""
        return tuple(user for user in self.users if user.occupant is None and (user.allocations or user.changing))

    @property
    def emptied(self) -> LayoutOccupancy:
        """A copy without idle instances."""
        gone = {instance.placement for instance in self.idle}
        left = tuple(instance for instance in self.gpu.instances if instance.placement not in gone)
        return replace(self, gpu=replace(self.gpu, instances=left), idle=())


def gpu_users(view: NodeView, gpu: GpuState) -> LayoutOccupancy:
    """The users on that GPU, and what they use."""
    found = tenancy(view, gpu)
    users: list[User] = []
    idle: list[GpuInstance] = []
    promised = dict(found.promised)
    for instance in sorted(gpu.instances, key=lambda i: i.placement):
        holders = promised.pop(gpu.key(instance), ()) or _promised_across(found, instance)
        if holders or instance.processes:
            users.append(User(gpu, instance.place, instance, instance.processes, holders))
        else:
            idle.append(instance)
    users += [User(gpu, slot.place, None, (), held) for slot, held in promised.items()]
    if found.whole or gpu.processes:
        users.append(User(gpu, None, None, gpu.processes, found.whole))
    if gpu.uuid in view.changing:
        users.append(User(gpu, None, changing=True))
    return LayoutOccupancy(gpu, tuple(users), tuple(idle))


def _promised_across(found: GpuOccupancy, instance: GpuInstance) -> tuple[Allocation, ...]:
    """The allocations with a promised slot that conflicts with the instance, which is about to go."""
    for slot, holders in found.promised.items():
        if instance.place.conflicts(slot.place):
            return holders
    return ()


def busy_error(purpose: str, users: tuple[User, ...]) -> GpuBusy:
    """The refusal that names every user in the way."""
    named = "; ".join(str(user) for user in users)
    return GpuBusy(
        f"{purpose} was refused, and nothing changed: {named}",
        hint="stop what is using it, or wait for it with --wait",
    )
