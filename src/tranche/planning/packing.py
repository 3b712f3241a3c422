"""Packs compute slices (`1c.3g.20gb`) into GPU instances of one profile, with as few new instances as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranche.core.board import GpuInstanceProfile
from tranche.core.profile import ProfileName

Contents = tuple[ProfileName, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """What each GPU instance holds, largest slice first.

    The first entries continue the instances that were there already, in their order; `created` of them are new, at the end.
    """

    contents: tuple[Contents, ...]
    created: int


def pack_slices(
    profile: GpuInstanceProfile, wanted: Sequence[ProfileName], started: Sequence[Contents] = ()
) -> Packing | None:
    """The wanted slices put into instances of the profile; None when the profile has no compute instance of such a size.

    `started` are instances with room left. Among packings with the fewest new instances, one that leaves the fewest started
    instances empty is taken.
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
        tried: set[Contents] = set()
        for contents in bins:
            if tuple(contents) in tried or not holds(contents, item):
                continue
            tried.add(tuple(contents))
            contents.append(item)
            search(position + 1, bins)
            contents.pop()
        bins.append([item])
        search(position + 1, bins)
        bins.pop()

    def holds(contents: Sequence[ProfileName], item: ProfileName) -> bool:
        return (
            sum(name.compute for name in contents) + item.compute <= profile.slices
            and sum(name == item for name in contents) < allowed[item]
        )

    search(0, [list(contents) for contents in started])
    assert best is not None
    contents = tuple(tuple(sorted(inside, key=lambda name: -name.compute)) for inside in best[1])
    return Packing(contents, best[0][0])
