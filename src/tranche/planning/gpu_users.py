"""Who uses a GPU and its instances, so that a change of layout can name whom it would hit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tranche.core.allocation import Allocation, NodeView
from tranche.core.errors import GpuBusy
from tranche.core.grid import Occupant
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuState, Process


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who uses a GPU or one of its instances, or was promised it.

    `instance` is None when the whole GPU is used, or when the promised instance does not exist yet; `occupant` is None for
    the whole GPU only. `changing` stands for another change of layout that is at work on the GPU.
    """

    gpu: GpuState
    occupant: Occupant | None
    instance: GpuInstance | None = None
    processes: tuple[Process, ...] = ()
    allocation: Allocation | None = None
    changing: bool = False

    @property
    def slices(self) -> tuple[ProfileName, ...]:
        """The slices that the user's instance has, or will have: what is promised spans its instance."""
        if self.instance is not None and (self.instance.slices or self.allocation is None):
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
        users = [str(process) for process in self.processes]
        if self.allocation is not None:
            command = f" ({self.allocation.command})" if self.allocation.command else ""
            users.append(f"allocation {self.allocation.id}{command}")
        if self.changing:
            users.append("another change of layout")
        return f"{self.place} is in use by {', '.join(users)}"


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """One GPU's instances, told apart: `users` are untouchable, `idle` are free to go."""

    gpu: GpuState
    users: tuple[User, ...]
    idle: tuple[GpuInstance, ...]

    @property
    def slice_users(self) -> tuple[User, ...]:
        """The users of instances, existing or promised."""
        return tuple(user for user in self.users if user.occupant is not None)

    @property
    def whole_gpu_users(self) -> tuple[User, ...]:
        """Allocations of the whole GPU, processes outside of any instance, and another change of layout."""
        return tuple(user for user in self.users if user.occupant is None)

    @property
    def holders_of_all(self) -> tuple[User, ...]:
        """The users of the whole GPU who forbid any change of its cut; a process outside of the instances does not."""
        return tuple(user for user in self.whole_gpu_users if user.allocation is not None or user.changing)

    @property
    def emptied(self) -> GpuUsers:
        """The same after every idle instance is gone."""
        gone = {instance.placement for instance in self.idle}
        left = tuple(instance for instance in self.gpu.instances if instance.placement not in gone)
        return replace(self, gpu=replace(self.gpu, instances=left), idle=())


def gpu_users(view: NodeView, gpu: GpuState) -> GpuUsers:
    """Who uses what on that GPU."""
    users: list[User] = []
    idle: list[GpuInstance] = []
    seen: set[Occupant] = set()
    for instance in sorted(gpu.instances, key=lambda i: i.placement):
        holder = view.holder_of(gpu.key(instance)) or _promised_across(view, gpu, instance)
        occupant = Occupant(instance.profile, instance.placement)
        if holder is None and not instance.processes:
            idle.append(instance)
            continue
        users.append(User(gpu, occupant, instance, instance.processes, holder))
        seen.add(occupant)
    for allocation in view.allocations:
        for grant in allocation.grants:
            if grant.gpu_uuid != gpu.uuid:
                continue
            if grant.profile is None or grant.placement is None:
                users.append(User(gpu, None, None, gpu.processes, allocation))
            elif (promised := Occupant(grant.profile, grant.placement)) not in seen:
                users.append(User(gpu, promised, None, (), allocation))
    if gpu.processes and not any(user.occupant is None for user in users):
        users.append(User(gpu, None, None, gpu.processes))
    if gpu.uuid in view.changing:
        users.append(User(gpu, None, changing=True))
    return GpuUsers(gpu, tuple(users), tuple(idle))


def _promised_across(view: NodeView, gpu: GpuState, instance: GpuInstance) -> Allocation | None:
    """The allocation whose promised slot, not made yet, cannot be beside the instance: the instance is about to go for it."""
    occupant = Occupant(instance.profile, instance.placement)
    for allocation in view.allocations:
        for grant in allocation.grants:
            if grant.gpu_uuid != gpu.uuid or grant.profile is None or grant.placement is None:
                continue
            if occupant.conflicts(Occupant(grant.profile, grant.placement)):
                return allocation
    return None


def busy_error(purpose: str, users: tuple[User, ...]) -> GpuBusy:
    """The refusal that names every user in the way."""
    named = "; ".join(str(user) for user in users)
    return GpuBusy(
        f"{purpose} is refused, nothing was changed: {named}",
        hint="stop what uses it, or wait for its end with --wait",
    )
