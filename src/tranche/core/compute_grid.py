"""How compute instances lie inside one GPU instance.

The rule is the driver's, as its placement queries show it: a start is a multiple of the next power of two of the size, and a new
compute instance comes to lie at the lowest free start. So the order of creation matters: of a 7g, 3c, 2c and 2c fill it only
when the 3c is not made first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tranche.core.profile import ProfileName
from tranche.core.state import ComputeInstance


def taken_mask(present: Iterable[ComputeInstance]) -> int:
    """The compute slices under those compute instances, as a bit mask."""
    mask = 0
    for each in present:
        mask |= _mask(each.start, each.slices)
    return mask


def lowest_start(size: int, width: int, taken: int) -> int | None:
    """Where a compute instance of that size comes to lie in a GPU instance of `width` compute slices; None without room."""
    step = 1 << (size - 1).bit_length()
    for start in range(0, width - size + 1, step):
        if not taken & _mask(start, size):
            return start
    return None


def creation_order(names: Sequence[ProfileName], width: int, taken: int = 0) -> tuple[ProfileName, ...] | None:
    """The order in which all of them find room, largest first wherever that is possible; None when they do not fit."""
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
        order = creation_order(rest, width, taken | _mask(start, name.compute))
        if order is not None:
            return (name, *order)
    return None


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start
