"""Room that is kept for large requests: which places, and whom it then is not for. Pure.

Small requests leave no place for a large one that is free now, and as they come and go none becomes free by itself. So an
administrator who expects large ones has a node keep so many places of a size. What is smaller and lies on such a place is not
given away, and the place itself only to whom asks for its size by name, or for a whole GPU.

Where none is free, the place is kept on which the least is held: nothing new begins there, and it becomes free as that ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tranche.core.allocation import FractionalShare, NodeView, Slice
from tranche.core.errors import UsageError
from tranche.core.profile import ProfileName, parse_profile, size_rank
from tranche.kubernetes.claims.vocabulary import KEEP_ANNOTATION, AttributeName, TaintKey
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind
from tranche.kubernetes.devices.order import in_order
from tranche.kubernetes.devices.taints import excludes

_WHOLE = "whole"
_MOST = 64


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """So many places of a profile; of whole GPUs for None."""

    profile: ProfileName | None
    count: int = 1


def parse_kept(text: str) -> tuple[KeptRoom, ...]:
    """The sizes that `whole=1, 3g.20gb=2` names; a size alone is one of it. UsageError for anything else."""
    found: dict[ProfileName | None, KeptRoom] = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = (part.strip() for part in word.partition("="))
        profile = None if name == _WHOLE else parse_profile(name)
        if number and not (number.isascii() and number.isdigit() and int(number) <= _MOST):
            raise UsageError(f"'{word}' is not a size with a number: the number is 0 to {_MOST}")
        if profile in found:
            raise UsageError(f"{name} is named twice")
        found[profile] = KeptRoom(profile, int(number) if number else 1)
    return tuple(found.values())


def kept_sizes(annotations: Mapping[str, str]) -> tuple[tuple[KeptRoom, ...], str]:
    """What an administrator has a node keep, by its annotations; nothing, and what is wrong, for words that are no sizes."""
    try:
        return parse_kept(annotations.get(KEEP_ANNOTATION, "")), ""
    except UsageError as error:
        return (), f"no room is kept by the annotation {KEEP_ANNOTATION}: {error.message}"


def kept_places(
    devices: Sequence[NodeDevice],
    view: NodeView,
    sizes: Sequence[KeptRoom],
    reasons: Mapping[str, Sequence[TaintKey]],
    before: Collection[str] = (),
) -> tuple[NodeDevice, ...]:
    """The places that are kept, beside those that somebody has already; fewer where the node has not so many.

    `reasons` speak against devices, by name. `before` names places that are kept now: they stay where others are no better.
    """
    found: list[NodeDevice] = []
    for size in sorted(sizes, key=lambda each: size_rank(each.profile), reverse=True):
        kind = OfferKind.WHOLE if size.profile is None else OfferKind.SLICE
        group = [each for each in devices if each.kind is kind and each.profile == size.profile]
        places = {each.name: number for number, each in enumerate(in_order(group, view))}
        free = {each.name: each for each in group if not reasons.get(each.name)}
        for _ in range(size.count):
            free = {name: each for name, each in free.items() if not any(_across(each, kept) for kept in found)}
            held = {name: amount for name, each in free.items() if (amount := _held(each, view)) is not None}
            if not held:
                break
            best = min(held, key=lambda name: (held[name], name not in before, places[name]))
            found.append(free[best])
    return tuple(found)


def set_apart(
    devices: Sequence[NodeDevice], places: Sequence[NodeDevice], reasons: Mapping[str, Sequence[TaintKey]]
) -> tuple[tuple[NodeDevice, ...], dict[str, tuple[TaintKey, ...]]]:
    """The devices, those that only large requests get marked so, and the reasons against the others that lie on kept places."""
    marked = []
    against = {name: tuple(why) for name, why in reasons.items()}
    for each in devices:
        across = [place for place in places if _across(each, place)]
        if not across:
            marked.append(each)
        elif each.sharing is None and all(_size(each) >= _size(place) for place in across):
            marked.append(replace(each, attributes={**each.attributes, AttributeName.KEPT: True}))
        else:
            marked.append(each)
            against[each.name] = tuple(sorted({*against.get(each.name, ()), TaintKey.RESERVED}))
    return tuple(marked), against


def _across(device: NodeDevice, place: NodeDevice) -> bool:
    return device.gpu_uuid == place.gpu_uuid and excludes(device, place.offered)


def _held(place: NodeDevice, view: NodeView) -> int | None:
    """How much of what the place needs somebody has, in memory slices; None where somebody has as much as the place."""
    size = place.offered.placement.size if isinstance(place.offered, Slice) else None
    held = 0
    for grant in view.grants_on(place.gpu_uuid):
        if not excludes(place, grant):
            continue
        slot = grant.slot
        if not isinstance(grant, FractionalShare) and (
            slot is None or (size is not None and slot.placement.size >= size)
        ):
            return None
        held += 1 if slot is None else slot.placement.size
    return held


def _size(device: NodeDevice) -> tuple[int, int]:
    return size_rank(device.profile)
