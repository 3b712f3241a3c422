"""Why a device of the node is not available now, as taints; one reason is room kept for large requests. Pure.

A device never leaves the pool for such a reason: the scheduler relies on it for the claim that has it. Nor do claims' own
holdings taint a device: the scheduler knows them, until somebody deletes the claim.

Small requests leave no place free for a large one, and as they come and go none becomes free by itself. So an administrator who
expects large requests has a node keep a number of places of a size. A smaller device on such a place is not given away. The place
itself goes only to requests that ask for its size by name, or for a whole GPU. Where none is free, the node keeps the place with
the least held on it: nothing new begins there, and it becomes free as that ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tranche.core.allocation import FractionalShare, Grant, NodeView, Slice, WholeGpu, overlap
from tranche.core.errors import UsageError
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import ProfileName, parse_profile, size_rank
from tranche.core.sharing import GpuPolicy
from tranche.core.state import GpuInstance
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import KEEP_ANNOTATION, AttributeName, TaintKey
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind
from tranche.kubernetes.devices.order import in_order
from tranche.planning.decide.options import gpu_blocked
from tranche.planning.decide.realise import foreign_in_the_way
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy, tenancy


@dataclass(frozen=True, slots=True)
class TaintFacts:
    """What rules out devices besides the view: the node's mode, what reported an error fatal to programs, and the uids of ended
    claims whose pods run on, whose devices the scheduler takes for free.
    """

    mode: NodeMode
    faulty: Collection[WholeGpu | Slice] = frozenset()
    fallen: Collection[str] = frozenset()


def reasons_against(
    devices: Collection[NodeDevice], view: NodeView, known: TaintFacts
) -> dict[str, tuple[TaintKey, ...]]:
    """Why each device is not available, by its name; empty where it is."""
    tenancies = {gpu.uuid: tenancy(view, gpu) for gpu in view.node}
    held = _held_without_claim(view, known.fallen)
    # Also for claimed devices: the scheduler takes their room for free the moment they are given back.
    foreign = {gpu.uuid: [each for each in gpu.instances if gpu.key(each) not in view.owned] for gpu in view.node}
    found = {}
    for each in devices:
        here = tenancies[each.gpu_uuid]
        against = _reasons(each, here, held.get(each.gpu_uuid, ()), view, known)
        if foreign_in_the_way(each.offered, here.gpu, foreign[each.gpu_uuid]):
            against.add(TaintKey.FOREIGN)
        found[each.name] = tuple(sorted(against))
    return found


def _reasons(
    device: NodeDevice, here: GpuOccupancy, held: Collection[Grant], view: NodeView, known: TaintFacts
) -> set[TaintKey]:
    uuid = device.gpu_uuid
    found = set()
    if here.gpu.lost:
        found.add(TaintKey.LOST)
    if any(overlap(device.offered, each) for each in known.faulty):
        found.add(TaintKey.FAULTY)
    if not is_offered(device, known.mode, view.use_of(uuid)) or _cordoned(here, known):
        found.add(TaintKey.MODE)
    blocked = not here.gpu.lost and not here.allocations and gpu_blocked(here) is not None
    if blocked or uuid in view.changing or any(excludes(device, each) for each in held):
        found.add(TaintKey.HELD)
    if any(_in_the_way(device, each) for each in here.in_use):
        found.add(TaintKey.HELD)
    return found


def _cordoned(here: GpuOccupancy, known: TaintFacts) -> bool:
    """Whether the administrator wants nothing more of the GPU given away; a faulty GPU has a taint of its own."""
    return any(
        isinstance(each.place, WholeGpu) and each.place not in known.faulty
        for each in here.withheld
        if not each.for_large
    )


def is_offered(device: NodeDevice, mode: NodeMode, use: GpuPolicy) -> bool:
    """Whether claims get such a device in the mode, where `use` is the administrator's word on the GPU."""
    if not mode.by_claims:
        return False
    if device.sharing is not None:
        return (
            mode.offers_parts
            and use in (GpuPolicy.AUTO, GpuPolicy.SHARED)
            and not (use is GpuPolicy.SHARED and device.profile)
        )
    if device.profile is not None:
        return mode.offers_slices and use in (GpuPolicy.AUTO, GpuPolicy.MIG)
    return True


def _held_without_claim(view: NodeView, fallen: Collection[str]) -> dict[str, list[Grant]]:
    found: dict[str, list[Grant]] = {}
    for allocation in view.allocations:
        if not isinstance(allocation.keeper, ClaimKeeper) or allocation.keeper.uid in fallen:
            for grant in allocation.grants:
                found.setdefault(grant.gpu_uuid, []).append(grant)
    return found


def excludes(device: NodeDevice, grant: Grant) -> bool:
    """Whether the grant rules out the device."""
    offered, slot = device.offered, grant.slot
    if overlap(offered, grant):
        return True
    if isinstance(offered, WholeGpu) or slot is None:
        return False
    here, there = offered.slot.place, slot.place
    return here.conflicts(there)


def _in_the_way(device: NodeDevice, instance: GpuInstance) -> bool:
    if not isinstance(device.offered, Slice):
        return True
    here = device.offered.slot.place
    return here.conflicts(instance.place)


_WHOLE = "whole"
_MOST = 64


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """A number of places of a profile; of whole GPUs for None."""

    profile: ProfileName | None
    count: int = 1


def parse_kept(text: str) -> tuple[KeptRoom, ...]:
    """The sizes in a text such as `whole=1, 3g.20gb=2`; a size alone means one of it. UsageError for anything else."""
    found: dict[ProfileName | None, KeptRoom] = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = (part.strip() for part in word.partition("="))
        profile = None if name == _WHOLE else parse_profile(name)
        if number and not (number.isascii() and number.isdigit() and int(number) <= _MOST):
            raise UsageError(f"'{word}' must be SIZE=NUMBER, with a number from 0 to {_MOST}")
        if profile in found:
            raise UsageError(f"{name} appears twice")
        found[profile] = KeptRoom(profile, int(number) if number else 1)
    return tuple(found.values())


def kept_sizes(annotations: Mapping[str, str]) -> tuple[tuple[KeptRoom, ...], str]:
    """What an administrator has a node keep, by its annotations. For an invalid annotation, nothing and what is wrong with it."""
    try:
        return parse_kept(annotations.get(KEEP_ANNOTATION, "")), ""
    except UsageError as error:
        return (), f"the annotation {KEEP_ANNOTATION} is invalid and has no effect: {error.message}"


def kept_places(
    devices: Sequence[NodeDevice],
    view: NodeView,
    sizes: Sequence[KeptRoom],
    reasons: Mapping[str, Sequence[TaintKey]],
    before: Collection[str] = (),
) -> tuple[NodeDevice, ...]:
    """The places to keep, beside those that holders already have; fewer where the node lacks them.

    `reasons` rule out devices, by name. `before` names the places kept now: they stay unless others are better.
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
    """The devices, with those marked that only large requests get; and the reasons, with those for others on kept places."""
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
    """How much of what the place needs is held, in memory slices; None where a holder has as much as the place."""
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
