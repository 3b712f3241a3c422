"""The slices on each GPU with their state, shared devices, and the remaining room, as the listings show them.

Room is free only if a request could get it by the rules of decisions in `tranche.planning`. Listings, pictures and JSON documents
all ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

from tranche.core.allocation import (
    Allocation,
    FractionalShare,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    WithheldDevice,
    memory_of,
    out_of_reach,
)
from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import PlacedInstance, Placement, fits, placements, remaining_capacity
from tranche.core.profile import ProfileName
from tranche.core.quantity import format_memory
from tranche.core.sharing import GpuPolicy, GrantIsolation, Sharing, capacity
from tranche.core.state import DeviceVisibility, GpuInstance, GpuState, InstanceKey, unavailable
from tranche.core.wire import walls_to_dict
from tranche.planning.occupancy.gpu_occupancy import DeviceUsage, GpuOccupancy, tenancy


class SharedDevice(NamedTuple):
    """How a device is shared: `given` and `left` in bytes. `walls` are those of a part without its own ceiling.

    `unavailable` says why the device admits no more clients, "" if it does.
    """

    sharing: Sharing
    given: int
    left: int
    walls: GrantIsolation
    unavailable: str = ""


def shared_device(gpu: GpuState, slot: InstanceKey | None, account: DeviceUsage) -> SharedDevice:
    """The device in that slot of the GPU, or without a slot the GPU itself.

    Nothing is left of a device with lost limits, or with a daemon that admits no clients.
    """
    device = WholeGpu(gpu.uuid) if slot is None else Slice(gpu.uuid, slot.profile, slot.placement)
    why = unavailable(gpu, slot) if account.sharing is Sharing.MPS else ""
    left = 0 if account.broken or why else max(0, capacity(account.sharing, memory_of(device, gpu)) - account.memory)
    walls = FractionalShare(device, account.memory, account.sharing, unlimited=account.broken).walls
    return SharedDevice(account.sharing, account.memory, left, walls, why)


def shared_gpu(view: NodeView, gpu: GpuState) -> SharedDevice | None:
    """How the uncut GPU is shared; None if it is not."""
    account = tenancy(view, gpu).shared.get(None)
    return None if account is None else shared_device(gpu, None, account)


def why_unavailable(allocation: Allocation, view: NodeView) -> str:
    """Why a device that the allocation shares by MPS admits no more clients; "" if it does."""
    gpus = {gpu.uuid: gpu for gpu in view.node}
    shared = [each for each in allocation.grants if isinstance(each, FractionalShare) and each.sharing is Sharing.MPS]
    reasons = (unavailable(gpus[each.gpu_uuid], each.slot) for each in shared if each.gpu_uuid in gpus)
    return next(filter(None, reasons), "")


def sharing_document(shared: SharedDevice | None) -> dict[str, Any] | None:
    """How a device is shared; null if it is not."""
    if shared is None:
        return None
    return {
        "mechanism": str(shared.sharing),
        "walls": walls_to_dict(shared.walls),
        "memoryGivenBytes": shared.given,
        "memoryLeftBytes": shared.left,
        "unavailable": shared.unavailable or None,
    }


class SliceRow(NamedTuple):
    """A GPU instance, or a promised slot without one.

    `state` is `held` (an allocation has it), `preparing` (promised, its plan runs), `missing` (an allocation has it, but no
    instance is there), `in use` (a process outside Tranche runs in it) or `idle`. `owned` means that Tranche made it, or is about
    to, or that it is gone. `shared` says how, if several may hold parts of it.
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
        state = _promised_state(holders, hidden=view.node.scope is DeviceVisibility.PARTS, exists=instance is not None)
        ours = instance is None or key in view.owned
        found.append(SliceRow(key, state, ours, instance, holders, shared))
    for state, instances in (("in use", here.in_use), ("idle", here.idle)):
        found += [SliceRow(gpu.key(each), state, gpu.key(each) in view.owned, each) for each in instances]
    return tuple(sorted(found, key=lambda each: each.placement))


def whole_holders(view: NodeView, gpu: GpuState) -> tuple[Allocation, ...]:
    """The allocations that hold the GPU uncut, or parts of it."""
    return tenancy(view, gpu).whole


def room_on(gpu: GpuState, slices: tuple[SliceRow, ...]) -> tuple[tuple[GpuInstanceProfile, int], ...]:
    """Each profile without attributes, smallest first, with how many more of it fit beside all slices of the GPU."""
    taken = [PlacedInstance(each.profile, each.placement) for each in slices]
    plain = [profile for profile in gpu.profiles if profile.starts and not profile.name.has_attributes]
    plain.sort(key=lambda profile: (profile.size, profile.slices))
    return tuple((profile, remaining_capacity(profile, taken)) for profile in plain)


def _promised_state(holders: Iterable[Allocation], *, hidden: bool, exists: bool) -> str:
    if any(each.phase is Phase.PREPARING for each in holders):
        return "preparing"
    return "held" if exists or hidden else "missing"


def why_withheld(view: NodeView, gpu: GpuState) -> str:
    """Why the GPU is withheld, in words; "" if it is not."""
    return "; ".join(dict.fromkeys(each.why for each in view.withheld if each.place == WholeGpu(gpu.uuid)))


class FreePlaceStatus(StrEnum):
    """Whether a request could get a free place, best first; the values are stable words for programs."""

    FREE = "free"
    KEPT = "kept"
    UNUSABLE = "unusable"
    CORDONED = "cordoned"
    FAULTY = "faulty"


class FreePlace(NamedTuple):
    """A free place: a stretch of the grid, or without `placement` the uncut GPU, or the rest of a shared one.

    `why` says in words why no request gets it now, "" if one could.
    """

    placement: Placement | None
    availability: FreePlaceStatus = FreePlaceStatus.FREE
    why: str = ""


class _Verdict(NamedTuple):
    availability: FreePlaceStatus
    why: str = ""


PROHIBITED = "compute mode PROHIBITED: no program can use it"
_FREE = _Verdict(FreePlaceStatus.FREE)
_NO_PROFILE = _Verdict(FreePlaceStatus.UNUSABLE, "no profile fits there next to the other slices")
_RANK = {availability: rank for rank, availability in enumerate(FreePlaceStatus)}


def vacancies(view: NodeView, gpu: GpuState) -> tuple[FreePlace, ...]:
    """The free places of one of the view's GPUs, by placement.

    There is one for each idle slice, for the rest of each shared device, and for each stretch between slices.
    """
    here = tenancy(view, gpu)
    if gpu.lost:
        return ()
    judge = _Judge(view, here)
    if here.whole:
        account = here.shared.get(None)
        return () if account is None else tuple(judge.left(None, account))
    if not gpu.mig_enabled and not here.promised:
        return () if gpu.all_processes else (FreePlace(None, *judge.granted([WholeGpu(gpu.uuid)])),)
    found = [judge.idle(each) for each in here.idle]
    found += [each for slot, account in here.shared.items() for each in judge.left(slot, account)]
    found += judge.gaps()
    return tuple(sorted(found, key=lambda each: each.placement or Placement(0, 0)))


class _Judge:
    """Judges whether a request could get places of one GPU."""

    def __init__(self, view: NodeView, here: GpuOccupancy) -> None:
        self._here, self._gpu = here, here.gpu
        self._everywhere = _against_all(view, here)
        self._uncut = [WholeGpu(here.gpu.uuid)] if here.untouched and not here.idle_foreign else []
        self._use = view.use_of(here.gpu.uuid)
        self._policy = f"the GPU's policy is sharing={self._use}, which allows no"
        self._cut = self._use in (GpuPolicy.AUTO, GpuPolicy.MIG)
        self._rooms: list[Slice] = list(self._found_rooms()) if self._cut else []

    def granted(self, ways: Iterable[Grant]) -> _Verdict:
        """What keeps requests from all of these; free if one of them is available."""
        verdicts = [self._of(each) for each in ways]
        if not verdicts:
            nowhere = _NO_PROFILE if self._cut else _Verdict(FreePlaceStatus.UNUSABLE, f"{self._policy} slices")
            return max(nowhere, self._everywhere, key=_rank)
        return min(verdicts, key=_rank)

    def idle(self, instance: GpuInstance) -> FreePlace:
        """An idle slice: available as it is, or its room for another."""
        as_it_is = Slice(self._gpu.uuid, instance.profile, instance.placement)
        usable = instance.whole_slice is not None or not instance.compute_instances
        ways: list[Grant] = [as_it_is] if self._cut and usable else []
        ways.extend(room for room in self._rooms if room.placement.overlaps(instance.placement))
        return FreePlace(instance.placement, *self.granted([*ways, *self._uncut]))

    def gaps(self) -> Iterator[FreePlace]:
        """The stretches without slices, existing or promised."""
        here, taken = self._here, 0
        promised = [slot.placement for slot in here.promised]
        for placement in (*promised, *(each.placement for each in (*here.in_use, *here.idle))):
            taken |= placement.mask
        units = [unit for unit in range(self._gpu.memory_slices) if not taken >> unit & 1]
        # Adjacent units have the same difference to their place in the list.
        judged = [(unit - place, self._unit(unit), unit) for place, unit in enumerate(units)]
        for (_, verdict), run in groupby(judged, key=lambda each: each[:2]):
            stretch = [unit for _, _, unit in run]
            yield FreePlace(Placement(stretch[0], len(stretch)), *verdict)

    def left(self, slot: InstanceKey | None, account: DeviceUsage) -> Iterator[FreePlace]:
        """The rest of a shared device."""
        gpu, shared = self._gpu, shared_device(self._gpu, slot, account)
        device = WholeGpu(gpu.uuid) if slot is None else Slice(gpu.uuid, slot.profile, slot.placement)
        verdict = self._of(device)
        if shared.unavailable or account.broken:
            why = shared.unavailable or "nothing limits the memory of its shares"
            verdict = max(verdict, _Verdict(FreePlaceStatus.UNUSABLE, f"no new shares: {why}"), key=_rank)
        elif account.memory >= memory_of(device, gpu):
            return
        elif self._use in (GpuPolicy.MIG, GpuPolicy.OFF):
            verdict = max(verdict, _Verdict(FreePlaceStatus.UNUSABLE, f"{self._policy} parts"), key=_rank)
        elif shared.left <= gpu.context_memory:
            too_little = f"only {format_memory(shared.left)} left, no more than a program's CUDA context needs"
            verdict = max(verdict, _Verdict(FreePlaceStatus.UNUSABLE, too_little), key=_rank)
        yield FreePlace(None if slot is None else slot.placement, *verdict)

    def _unit(self, unit: int) -> _Verdict:
        there: list[Grant] = [room for room in self._rooms if room.placement.mask >> unit & 1]
        return self.granted([*there, *self._uncut])

    def _of(self, way: Grant) -> _Verdict:
        here = [_withheld(each) for each in self._here.withheld if out_of_reach(way, each.place)]
        return max([self._everywhere, *here], key=_rank)

    def _found_rooms(self) -> Iterator[Slice]:
        """Where slices can be made beside everything that plans may not touch."""
        kept = (*self._here.fixed, *(each.place for each in self._here.idle_foreign))
        for profile in self._gpu.profiles:
            for spot in placements(profile):
                if fits(profile, spot, kept):
                    yield Slice(self._gpu.uuid, profile.name, spot)


def _against_all(view: NodeView, here: GpuOccupancy) -> _Verdict:
    """What keeps every request off the GPU."""
    gpu = here.gpu
    why = ""
    if gpu.uuid in view.changing:
        why = "a declared layout is being applied to the GPU"
    elif gpu.prohibited:
        why = PROHIBITED
    elif gpu.mode_pending:
        why = f"MIG mode is {gpu.mode}, {gpu.pending_mode} after a reset"
    elif here.whole and gpu.mig_enabled:
        why = "MIG mode was turned on while the GPU is shared"
    return _Verdict(FreePlaceStatus.UNUSABLE, why) if why else _FREE


def _withheld(place: WithheldDevice) -> _Verdict:
    if place.faulty:
        return _Verdict(FreePlaceStatus.FAULTY, place.why)
    return _Verdict(FreePlaceStatus.KEPT if place.for_large else FreePlaceStatus.CORDONED, place.why)


def _rank(verdict: _Verdict) -> int:
    return _RANK[verdict.availability]
