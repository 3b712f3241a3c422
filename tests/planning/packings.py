"""Everything that one GPU can hold at once, by trying it."""

from __future__ import annotations

from tranche.planning.decide.tables import PlacementTable

Counts = tuple[int, ...]


def maximal_packings(geometry: PlacementTable) -> tuple[Counts, ...]:
    """The counts of instances, by shape, that one GPU can hold at once and that are not part of a larger such count, in order."""
    found: set[Counts] = set()
    slots = [(index, mask) for index, shape in enumerate(geometry.shapes) for mask in shape.masks]

    def extend(first: int, taken: int, counts: Counts) -> None:
        found.add(counts)
        for number in range(first, len(slots)):
            index, mask = slots[number]
            if not mask & taken:
                more = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
                extend(number + 1, taken | mask, more)

    extend(0, 0, (0,) * len(geometry.shapes))
    return tuple(sorted(c for c in found if not any(c != d and _covers(d, c) for d in found)))


def _covers(larger: Counts, smaller: Counts) -> bool:
    return all(a >= b for a, b in zip(larger, smaller, strict=True))
