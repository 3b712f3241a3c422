"""Slices on very many like GPUs: every decision costs the same, however many GPUs there are.

GPUs with the same occupancy mask are interchangeable, and a board has few masks (192 with seven compute slices). So GPUs are
kept in one bucket for each mask, and each shape has its own ranking of the masks, best first, computed once from the policy's
cost. A bit for each non-empty bucket, in ranking order, makes the best one the lowest bit that is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from tranche.planning.policy import DEFAULT, Policy
from tranche.planning.tables import Geometry, reachable_masks


@dataclass(frozen=True, slots=True)
class Spot:
    """A place that was given: the GPU's number and the memory slices taken on it, as a bit mask."""

    gpu: int
    slices: int


class MigFleet:
    """The occupancy of `gpus` GPUs of one geometry, numbered from 0, all empty at first."""

    def __init__(self, geometry: Geometry, gpus: int, policy: Policy = DEFAULT) -> None:
        masks = reachable_masks(geometry)
        rankings = [_ranking(geometry, masks, shape, policy) for shape in range(len(geometry.shapes))]
        self._choices = [[(mask, slices) for _, mask, slices in ranking] for ranking in rankings]
        rank_of = [{mask: rank for rank, (_, mask, _) in enumerate(ranking)} for ranking in rankings]
        self._bits = {mask: [1 << ranks[mask] if mask in ranks else 0 for ranks in rank_of] for mask in masks}
        self._buckets: dict[int, dict[int, None]] = {mask: {} for mask in masks}
        self._masks = [0] * gpus
        self._open = [0] * len(geometry.shapes)
        self._buckets[0] = dict.fromkeys(reversed(range(gpus)))  # the last in goes first: GPU 0
        if gpus:
            self._flip(0)

    def place(self, shape: int) -> Spot | None:
        """Take a place for a slice of that shape (an index of the geometry's shapes); None when no GPU has one."""
        candidates = self._open[shape]
        if not candidates:
            return None
        mask, slices = self._choices[shape][(candidates & -candidates).bit_length() - 1]
        bucket = self._buckets[mask]
        gpu = bucket.popitem()[0]
        if not bucket:
            self._flip(mask)
        self._enter(gpu, mask | slices)
        return Spot(gpu, slices)

    def release(self, spot: Spot) -> None:
        """Give a place back that `place` gave and that was not given back since."""
        gpu = spot.gpu
        mask = self._masks[gpu]
        assert mask & spot.slices == spot.slices, f"{spot} is not taken"
        bucket = self._buckets[mask]
        del bucket[gpu]
        if not bucket:
            self._flip(mask)
        self._enter(gpu, mask ^ spot.slices)

    def mask(self, gpu: int) -> int:
        """The memory slices taken on that GPU."""
        return self._masks[gpu]

    def _enter(self, gpu: int, mask: int) -> None:
        self._masks[gpu] = mask
        bucket = self._buckets[mask]
        if not bucket:
            self._flip(mask)
        bucket[gpu] = None

    def _flip(self, mask: int) -> None:
        """The bucket of that mask became empty, or stopped being so."""
        is_open = self._open
        for shape, bit in enumerate(self._bits[mask]):
            is_open[shape] ^= bit


def _ranking(geometry: Geometry, masks: tuple[int, ...], shape: int, policy: Policy) -> list[tuple[float, int, int]]:
    """For each mask with room for the shape: the cost and the slices of its best place; lowest cost first."""
    ranking = []
    for mask in masks:
        free = [slices for slices in geometry.shapes[shape].masks if not slices & mask]
        if free:
            cost, slices = min((policy.cost(geometry, mask, mask | slices), slices) for slices in free)
            ranking.append((cost, mask, slices))
    return sorted(ranking)
