"""The contents of one GPU, sorted by what may be done with them: promised, in use, idle and ours, idle and foreign."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, WithheldDevice
from tranche.core.grid import PlacedInstance, profiles_exclude
from tranche.core.sharing import Sharing
from tranche.core.state import GpuInstance, GpuState, InstanceKey


class DeviceUsage(NamedTuple):
    """The granted parts of one device: `memory` in bytes, `compute` in percent of ceilings, and the number of holders.

    `broken` means that the device takes no more parts: its limits are lost, or its holders use different mechanisms.
    """

    sharing: Sharing
    memory: int = 0
    compute: int = 0
    holders: int = 0
    broken: bool = False

    def with_part(self, part: FractionalShare) -> DeviceUsage:
        """The account after one more part."""
        return DeviceUsage(
            self.sharing,
            self.memory + part.memory,
            self.compute + (part.compute or 0),
            self.holders + 1,
            self.broken or not part.kept or part.sharing is not self.sharing,
        )


class GpuOccupancy(NamedTuple):
    """One GPU with its instances sorted.

    `whole` are the allocations that hold the uncut GPU or parts of it. `promised` maps the slots that allocations hold, made or
    not, to those allocations. `shared` has the account of each shared device by slot, or by None for the uncut GPU. Instances
    without an allocation are `in_use` (they have a process, or are about to go because they conflict with promised slots),
    `idle_owned` (made by Tranche) or `idle_foreign`. `withheld` places take no new grants, nor does a GPU while a layout is
    `changing` it. `requested` are the machine's instances made for requests.
    """

    gpu: GpuState
    whole: tuple[Allocation, ...]
    promised: Mapping[InstanceKey, tuple[Allocation, ...]]
    in_use: tuple[GpuInstance, ...]
    idle_owned: tuple[GpuInstance, ...]
    idle_foreign: tuple[GpuInstance, ...]
    shared: Mapping[InstanceKey | None, DeviceUsage]
    withheld: tuple[WithheldDevice, ...] = ()
    changing: bool = False
    requested: Collection[InstanceKey] = ()

    @property
    def idle(self) -> tuple[GpuInstance, ...]:
        """Instances without a user, ours first."""
        return self.idle_owned + self.idle_foreign

    def replaceable(self, instance: GpuInstance) -> bool:
        """Whether an idle instance may go for a better place: it was made for a request, not by a layout or another tool."""
        return self.gpu.key(instance) in self.requested

    @property
    def fixed(self) -> tuple[PlacedInstance, ...]:
        """What no plan may touch: promised slots and instances in use."""
        return tuple(key.place for key in self.promised) + tuple(each.place for each in self.in_use)

    @property
    def fixed_mask(self) -> int:
        """The memory slices under `fixed`, as a bit mask."""
        return _mask(self.fixed)

    @property
    def lasting(self) -> tuple[PlacedInstance, ...]:
        """What takes its place for the foreseeable future: `fixed` and foreign instances."""
        return self.fixed + tuple(each.place for each in self.idle_foreign)

    @property
    def lasting_mask(self) -> int:
        """The memory slices under `lasting`, as a bit mask."""
        return _mask(self.lasting)

    @property
    def untouched(self) -> bool:
        """Whether nothing runs on the GPU and nothing is promised; it may have idle instances."""
        return not self.whole and not self.promised and not self.in_use and not self.gpu.all_processes

    def holders_of(self, slot: InstanceKey | None) -> tuple[Allocation, ...]:
        """The allocations that hold the device in that slot or parts of it; None means the uncut GPU."""
        return self.whole if slot is None else self.promised.get(slot, ())

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """Every allocation that holds something of the GPU, each once."""
        holders = [*self.whole, *(each for held in self.promised.values() for each in held)]
        return tuple({each.id: each for each in holders}.values())


def tenancy(view: NodeView, gpu: GpuState) -> GpuOccupancy:
    """The tenancy of one of the view's GPUs."""
    return next(tenancies(replace(view, node=replace(view.node, gpus=(gpu,)))))


def tenancies(view: NodeView) -> Iterator[GpuOccupancy]:
    """The tenancy of each of the view's GPUs, in index order."""
    held: dict[str, list[tuple[Allocation, Grant]]] = {gpu.uuid: [] for gpu in view.node}
    for allocation in view.allocations:
        for grant in allocation.grants:
            if grant.gpu_uuid in held:
                held[grant.gpu_uuid].append((allocation, grant))
    for gpu in view.node:
        withheld = tuple(each for each in view.withheld if each.place.gpu_uuid == gpu.uuid)
        yield _sorted_out(gpu, held[gpu.uuid], view, withheld)


def _sorted_out(
    gpu: GpuState,
    held: Iterable[tuple[Allocation, Grant]],
    view: NodeView,
    withheld: tuple[WithheldDevice, ...],
) -> GpuOccupancy:
    """The GPU's instances sorted, from every grant on it with its allocation, and its withheld places."""
    whole: dict[str, Allocation] = {}
    promised: dict[InstanceKey, dict[str, Allocation]] = {}
    shared: dict[InstanceKey | None, DeviceUsage] = {}
    taken = 0
    for allocation, grant in held:
        slot = grant.slot
        if isinstance(grant, FractionalShare):
            shared[slot] = shared.get(slot, DeviceUsage(grant.sharing)).with_part(grant)
        if slot is None:
            whole[allocation.id] = allocation
        else:
            promised.setdefault(slot, {})[allocation.id] = allocation
            taken |= slot.placement.mask
    in_use: list[GpuInstance] = []
    ours: list[GpuInstance] = []
    foreign: list[GpuInstance] = []
    for instance in gpu.instances:
        key = gpu.key(instance)
        if key in promised:
            continue
        if (
            instance.has_processes
            or instance.placement.mask & taken
            or any(profiles_exclude(instance.profile, slot.profile) for slot in promised)
        ):
            in_use.append(instance)
        elif key in view.owned:
            ours.append(instance)
        else:
            foreign.append(instance)
    slots = {slot: tuple(holders.values()) for slot, holders in promised.items()}
    return GpuOccupancy(
        gpu,
        tuple(whole.values()),
        slots,
        tuple(in_use),
        tuple(ours),
        tuple(foreign),
        shared,
        withheld,
        gpu.uuid in view.changing,
        view.requested,
    )


def _mask(occupants: Iterable[PlacedInstance]) -> int:
    mask = 0
    for each in occupants:
        mask |= each.placement.mask
    return mask
