"""One GPU's memory-slice grid: placement bit masks, conflicts and free room; and the compute slices of an instance.

The rules are the driver's (reference: NVML's placement queries and nvml.h): two GPU instances conflict when their placements
overlap, when both own the media extensions that exist once per GPU (`+me`, `+me.all`), or when one is `+me.all` and the other is
not a `-me` profile. On boards with seven compute slices the placements imply the compute limit.

Inside a GPU instance a compute instance starts at a multiple of the next power of two of its size, and the driver puts a new one
at the lowest free start. So the order of creation matters: 3c, 2c and 2c fill a 7g only if the 3c is not made first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tranche.core.board import GpuInstanceProfile
from tranche.core.profile import ProfileName


class Placement(NamedTuple):
    """A run of memory slices: `start:size` as nvidia-smi prints it."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The run as a bit mask, bit i for memory slice i."""
        return ((1 << self.size) - 1) << self.start

    def overlaps(self, other: Placement) -> bool:
        """Whether the two share a memory slice."""
        return bool(self.mask & other.mask)

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"


class PlacedInstance(NamedTuple):
    """A GPU instance on the grid, existing or promised."""

    profile: ProfileName
    placement: Placement

    def conflicts(self, other: PlacedInstance) -> bool:
        """Whether the two cannot coexist on one GPU."""
        return self.placement.overlaps(other.placement) or profiles_exclude(self.profile, other.profile)


def placements(profile: GpuInstanceProfile) -> tuple[Placement, ...]:
    """Every legal placement of the profile on an empty GPU, lowest start first."""
    return tuple(Placement(start, profile.size) for start in profile.starts)


def profiles_exclude(one: ProfileName, other: ProfileName) -> bool:
    """Whether the two cannot coexist on one GPU at any placements."""
    if not (one.added or other.added):
        return False
    if "me" in one.added and "me" in other.added:
        return True
    return _takes_all_media(one, other) or _takes_all_media(other, one)


def fits(profile: GpuInstanceProfile, placement: Placement, occupants: Iterable[PlacedInstance]) -> bool:
    """Whether an instance of the profile could be created there beside the occupants."""
    mask = placement.mask
    present: list[ProfileName] = []
    for occupant in occupants:
        if occupant.placement.mask & mask:
            return False
        present.append(occupant.profile)
    if any(profiles_exclude(each, profile.name) for each in present):
        return False
    return len(present) < profile.max_instances or present.count(profile.name) < profile.max_instances


def remaining_capacity(profile: GpuInstanceProfile, occupants: Sequence[PlacedInstance]) -> int:
    """How many more instances of the profile fit on the grid: nvidia-smi's `Free`."""
    taken = list(occupants)
    count = 0
    for spot in placements(profile):
        if fits(profile, spot, taken):
            taken.append(PlacedInstance(profile.name, spot))
            count += 1
    return count


def arrange(wanted: Sequence[GpuInstanceProfile], fixed: Sequence[PlacedInstance]) -> tuple[Placement, ...] | None:
    """Placements for all wanted instances beside the fixed ones, in the order given; None if they do not fit.

    The search is exact: it fails only when no arrangement exists. Large profiles are placed first.
    """
    order = sorted(range(len(wanted)), key=lambda i: (-wanted[i].size, -wanted[i].slices, str(wanted[i].name)))
    found = _search([wanted[i] for i in order], list(fixed), None)
    if found is None:
        return None
    spot_of = dict(zip(order, found, strict=True))
    return tuple(spot_of[i] for i in range(len(wanted)))


def _search(
    rest: Sequence[GpuInstanceProfile], taken: list[PlacedInstance], previous: PlacedInstance | None
) -> list[Placement] | None:
    if not rest:
        return []
    profile = rest[0]
    for spot in placements(profile):
        # Equal instances are interchangeable: taking their starts in rising order only avoids n! repeats of one arrangement.
        if previous is not None and profile.name == previous.profile and spot < previous.placement:
            continue
        if not fits(profile, spot, taken):
            continue
        occupant = PlacedInstance(profile.name, spot)
        found = _search(rest[1:], [*taken, occupant], occupant)
        if found is not None:
            return [spot, *found]
    return None


def _takes_all_media(one: ProfileName, other: ProfileName) -> bool:
    return "me.all" in one.added and "me" not in other.removed


def lowest_start(size: int, width: int, taken: int) -> int | None:
    """Where the driver puts a compute instance of that size among `width` compute slices; None without room."""
    step = 1 << (size - 1).bit_length()
    for start in range(0, width - size + 1, step):
        if not taken & slice_mask(start, size):
            return start
    return None


def creation_order(names: Sequence[ProfileName], width: int, taken: int = 0) -> tuple[ProfileName, ...] | None:
    """An order of creation in which all fit, largest first where possible; None if they do not fit."""
    if not names:
        return ()
    if sum(name.compute for name in names) > width - taken.bit_count():
        return None
    for name in sorted(set(names), key=lambda name: -name.compute):
        start = lowest_start(name.compute, width, taken)
        if start is None:
            continue
        rest = list(names)
        rest.remove(name)
        order = creation_order(rest, width, taken | slice_mask(start, name.compute))
        if order is not None:
            return (name, *order)
    return None


def slice_mask(start: int, size: int) -> int:
    """A run of compute slices as a bit mask."""
    return ((1 << size) - 1) << start
