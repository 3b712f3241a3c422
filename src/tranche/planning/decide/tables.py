"""What a half-filled GPU is still good for: numbers for each occupancy mask of a board's memory-slice grid.

Whether an instance can be made depends only on the taken memory slices: on every board with a published geometry the placements
imply the compute-slice limit. So a mask is enough. A board with seven compute slices has 192 of them. Values are computed on
first use and kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from tranche.core.board import GpuInstanceProfile


@dataclass(frozen=True, slots=True)
class PossiblePlacement:
    """The footprint of a profile: `size` memory slices at one of `starts`."""

    size: int
    starts: tuple[int, ...]

    @property
    def masks(self) -> tuple[int, ...]:
        """The memory slices of each placement, as bit masks."""
        return tuple(((1 << self.size) - 1) << start for start in self.starts)


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTable:
    """The ways to cut a board: `units` memory slices and the distinct footprints, smallest first.

    Equal geometries share one table, so lookups need not compare footprints.
    """

    units: int
    shapes: tuple[PossiblePlacement, ...]


def geometry_of(units: int, profiles: Iterable[GpuInstanceProfile]) -> PlacementTable:
    """The geometry of a board's profiles; attribute variants share footprints and count once."""
    return _geometry(units, frozenset((p.size, p.starts) for p in profiles if p.starts))


@cache
def _geometry(units: int, footprints: frozenset[tuple[int, tuple[int, ...]]]) -> PlacementTable:
    shapes = [
        PossiblePlacement(size, starts)
        for size, starts in sorted(footprints, key=lambda each: (each[0], -len(each[1])))
    ]
    return PlacementTable(units, tuple(shapes))


@cache
def arrangeable(shapes: tuple[PossiblePlacement, ...], mask: int) -> bool:
    """Whether one instance of each shape fits beside the mask; fastest with large shapes first."""
    if not shapes:
        return True
    return any(not slices & mask and arrangeable(shapes[1:], mask | slices) for slices in shapes[0].masks)


@cache
def potential(geometry: PlacementTable, mask: int) -> float:
    """A score of an occupancy; only differences matter. The more a place lowers it, the worse the place.

    It falls with fragmentation. The smallest footprint and the whole GPU count twice, because workloads ask for them most. It
    rises a little if free slices are together on one GPU. The weights were found by a search on other arrivals than those of
    `bench/acceptance.py`, over its seven mixes and six random ones; nothing depends on the mix.
    """
    unusable = _unusable(geometry, mask)
    weighed = (sum(unusable) + unusable[0] + unusable[-1]) / (len(unusable) + 2)
    free = (geometry.units - mask.bit_count()) / geometry.units
    return _TOGETHER * free**2 - weighed / geometry.units


_TOGETHER = 0.075
_RECUT = 0.02


def place_cost(geometry: PlacementTable, mask: int, place: int, recut: int) -> float:
    """What the GPU loses if the place is taken beside the mask, plus a little for each instance created or destroyed.

    `recut` counts these instances, so that tiny gains do not cause cuts. Equal costs compare as equal.
    """
    return round(potential(geometry, mask) - potential(geometry, mask | place) + _RECUT * recut, 9)


def _unusable(geometry: PlacementTable, mask: int) -> list[int]:
    """For each footprint, how many free memory slices none of its free placements covers."""
    free = geometry.units - mask.bit_count()
    return [free - _coverable(shape.masks, mask).bit_count() for shape in geometry.shapes]


def _coverable(placements: Iterable[int], mask: int) -> int:
    covered = 0
    for placement in placements:
        if not placement & mask:
            covered |= placement
    return covered
