"""The ways to cut a board, and what a place costs: which placements it takes from others.

Whether an instance can be made depends only on the taken memory slices: on every board with a published geometry the placements
imply the compute-slice limit. So bit masks are enough. Costs are computed on first use and kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tranche.core.board import GpuInstanceProfile


class PossiblePlacement(NamedTuple):
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


# A placement that one instance takes counts a fifth: the instance may end. One that two take counts a fifth of that, and so on.
_WHEN_ONE_ENDS = 0.2
_RECUT = 0.025


def place_cost(geometry: PlacementTable, taken: Iterable[int], place: int, recut: int) -> float:
    """What the place takes from each profile, plus a little for each instance created or destroyed.

    `taken` are the memory slices of each instance that stays, as bit masks; one that overlaps the place is the place itself.
    `recut` counts what is created or destroyed, so that tiny gains do not cause cuts. Equal costs compare as equal.
    """
    others = tuple(sorted(each for each in taken if not each & place))
    return round(_blocked(geometry, others, place) + _RECUT * recut, 9)


@cache
def _blocked(geometry: PlacementTable, others: tuple[int, ...], place: int) -> float:
    """The part of its placements that a profile loses to the place, averaged over the profiles. Nothing depends on the mix."""
    lost = weights = 0.0
    for shape in geometry.shapes:
        weight = _weight(geometry, shape)
        blocked = sum(_WHEN_ONE_ENDS ** sum(spot & each > 0 for each in others) for spot in shape.masks if spot & place)
        lost += weight * blocked / len(shape.starts)
        weights += weight
    return lost / weights


@cache
def _weight(geometry: PlacementTable, shape: PossiblePlacement) -> float:
    """The smallest profile counts twice, and one that fits only where another of its size fits too counts a fifth."""
    if shape is geometry.shapes[0]:
        return 2
    wider = any(each.size == shape.size and set(each.starts) > set(shape.starts) for each in geometry.shapes)
    return 0.2 if wider else 1
