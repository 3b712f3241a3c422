"""The free places of a GPU, and whether a request could get them. Listings, pictures and JSON documents all ask here.

Room is free only if a request could get it by the rules of decisions in `tranche.planning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from tranche.core.allocation import Grant, NodeView, Slice, WholeGpu, WithheldDevice, memory_of, out_of_reach
from tranche.core.grid import Placement, fits, placements
from tranche.core.quantity import format_memory
from tranche.core.sharing import CONTEXT_MEMORY, GpuPolicy
from tranche.core.state import GpuInstance, GpuState, InstanceKey
from tranche.documents.shared_devices import shared_device
from tranche.planning.occupancy.gpu_occupancy import DeviceUsage, GpuOccupancy, tenancy


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
_NO_PROFILE = _Verdict(FreePlaceStatus.UNUSABLE, "no profile can be placed there beside the other slices")
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
        self._policy = f"the GPU's policy is sharing={self._use}, which gives no"
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
        elif shared.left <= CONTEXT_MEMORY[account.sharing]:
            too_little = f"{format_memory(shared.left)} left, which a program's CUDA context alone needs"
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
