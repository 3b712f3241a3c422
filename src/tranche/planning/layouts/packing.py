"""Packs compute slices (`1c.3g.20gb`) into GPU instances of one profile, with as few new instances as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import creation_order
from tranche.core.profile import ProfileName
from tranche.core.state import ComputeInstance, taken_mask

Contents = tuple[ProfileName, ...]


@dataclass(frozen=True, slots=True)
class _Packing:
    """What each GPU instance holds, largest slice first.

    The first entries continue the instances that were there already, in their order; `created` of them are new, at the end.
    """

    contents: tuple[Contents, ...]
    created: int


def pack_slices(
    profile: GpuInstanceProfile, wanted: Sequence[ProfileName], started: Sequence[Sequence[ComputeInstance]] = ()
) -> _Packing | None:
    """The wanted slices put into instances of the profile; None when the profile has no compute instance of such a size.

    `started` are the contents of instances with room left. Among packings with the fewest new instances, one that leaves the
    fewest started instances empty is taken.
    """
    allowed = {ci.name: ci.max_instances for ci in profile.compute_profiles}
    if any(name not in allowed for name in wanted):
        return None
    items = sorted(wanted, key=lambda name: name.compute, reverse=True)
    best: tuple[tuple[int, int], list[list[ProfileName]]] | None = None

    def search(position: int, bins: list[list[ProfileName]]) -> None:
        nonlocal best
        if best is not None and len(bins) - len(started) > best[0][0]:
            return
        if position == len(items):
            cost = (len(bins) - len(started), sum(not contents for contents in bins))
            if best is None or cost < best[0]:
                best = (cost, [list(contents) for contents in bins])
            return
        item = items[position]
        tried: set[tuple[int, Contents]] = set()
        for number, contents in enumerate(bins):
            mask = masks[number] if number < len(masks) else 0
            if (mask, tuple(contents)) in tried or not holds(contents, item, number):
                continue
            tried.add((mask, tuple(contents)))
            contents.append(item)
            search(position + 1, bins)
            contents.pop()
        bins.append([item])
        search(position + 1, bins)
        bins.pop()

    def holds(contents: Sequence[ProfileName], item: ProfileName, number: int) -> bool:
        if sum(name == item for name in contents) >= allowed[item]:
            return False
        begun = started[number] if number < len(started) else ()
        more = [*contents[len(begun) :], item]
        return creation_order(more, profile.slices, taken_mask(begun)) is not None

    masks = [taken_mask(begun) for begun in started]
    search(0, [[each.name for each in begun] for begun in started])
    assert best is not None
    contents = tuple(tuple(sorted(inside, key=lambda name: -name.compute)) for inside in best[1])
    return _Packing(contents, best[0][0])
