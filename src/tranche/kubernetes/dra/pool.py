"""What a node's pool shall show: the content of its ResourceSlices, from the node's state and what the pool showed before. Pure.

What is allocated stays as it was shown, whatever happens to its GPU: the scheduler would give away again what it does not find.
So a device that a claim has stays shown as before. So does everything of a GPU that the driver has lost, or of which claims still
have something; only taints change.

Devices of one kind on all GPUs are in one ResourceSlice of `resource.k8s.io/v1`, so that one write can reorder them. From
Kubernetes 1.36 on, the scheduler tries the slices of a pool in the order of their names. So names sort by what it shall try
first: slices of the least memory, then parts of GPUs, then parts of slices, and whole GPUs last. Counters are in slices of their
own, as the API requires. One of them, `memory`, excludes nothing that the others allow. It is there for those who sum it up by
name: Kueue charges a quota with what a claim's device takes of it.

The writes that make the pool show that are as few as keep it complete. For the scheduler, a pool is complete when its newest
generation has as many slices as each of them says. A slice that was changed, or that somebody deleted, is written in the same
generation, so that one write completes the pool. Only a new number of slices, or a foreign slice, begins a new generation, in
which every slice is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tranche.core.allocation import FractionalShare, Grant, NodeView, overlap
from tranche.core.errors import UsageError
from tranche.core.keeper import ClaimKeeper
from tranche.core.quantity import MIB
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.object_client import NodeSlice
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.quantity import format_bytes, parse_quantity
from tranche.kubernetes.claims.vocabulary import (
    DRIVER,
    FREE_GPUS_LABEL,
    LARGEST_MEMORY_LABEL,
    LARGEST_SLICE_LABEL,
    MEMORY_COUNTER,
    AttributeName,
    CapacityName,
    TaintKey,
    profile_label,
)
from tranche.kubernetes.devices.devices import (
    AttributeValue,
    DeviceCapacity,
    NodeDevice,
    OfferKind,
    VersionValue,
    counter_sets,
)
from tranche.kubernetes.devices.order import in_order
from tranche.kubernetes.devices.taints import excludes

MOST_DEVICES = 64
"""The API's limit for one ResourceSlice with taints or counters on its devices."""

MOST_COUNTER_SETS = 8
"""The API's limit for one ResourceSlice."""

_COUNTERS = "0-counters"
Reasons = Mapping[str, Sequence[TaintKey]]


class _Entry(NamedTuple):
    """A device in the group `title`, on the GPU with that number in names."""

    title: str
    number: int
    device: Json


def pool_contents(
    node_name: str, devices: Sequence[NodeDevice], view: NodeView, reasons: Reasons, shown: Sequence[NodeSlice]
) -> tuple[NodeSlice, ...]:
    """The slices of the pool, by name. `reasons` rule out devices, by device name; `shown` is what the pool shows now."""
    before = {str(each["name"]): each for content in shown for each in content.devices}
    free = {each.name for each in devices if not reasons.get(each.name) and not is_taken(each, view)}
    held = _held_by_claims(view)
    entries = []
    for group, members in grouped(devices).items():
        for each in in_order(members, view):
            found = encode_device(each, reasons.get(each.name, ()))
            if (each.offered, each.sharing is not None) in held and each.name in before:
                found = _tainted(before[each.name], reasons.get(each.name, ()))
            entries.append(_Entry(group.title, each.number, found))
    entries += _remembered(node_name, devices, view, shown)
    sets: dict[str, Json] = {
        name: {"name": name, "counters": _encode_counters(each, _all_memory(name, devices))}
        for name, each in counter_sets(view.node).items()
    }
    needed = {str(used["counterSet"]) for each in entries for used in each.device.get("consumesCounters") or ()}
    sets |= {str(each["name"]): each for content in shown for each in content.counters if each["name"] not in sets}
    kept = [sets[name] for name in sorted(needed & sets.keys())]
    counters = (
        NodeSlice(_name(node_name, _COUNTERS, number), counters=tuple(kept[start : start + MOST_COUNTER_SETS]))
        for number, start in enumerate(range(0, len(kept), MOST_COUNTER_SETS))
    )
    return (*counters, *_with_devices(node_name, entries, shown, free))


def _with_devices(
    node_name: str, entries: Sequence[_Entry], shown: Sequence[NodeSlice], free: Collection[str]
) -> Iterator[NodeSlice]:
    by_name = {content.name: content for content in shown}
    for title in sorted({each.title for each in entries}):
        members = [each for each in entries if each.title == title]
        for number, chunk in enumerate(_chunks(members)):
            name = _name(node_name, title, number)
            content = NodeSlice(name, devices=tuple(each.device for each in chunk))
            yield _least_moved(content, by_name.get(name), free)


def _chunks(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    """As many parts as the API requires. No GPU is split between parts, so that no reordering moves a device to another part."""
    parts: list[set[int]] = []
    room = 0
    for number in sorted({each.number for each in entries}):
        count = sum(each.number == number for each in entries)
        if count > room:
            parts.append(set())
            room = MOST_DEVICES
        parts[-1].add(number)
        room -= count
    return [[each for each in entries if each.number in part] for part in parts]


def _least_moved(wanted: NodeSlice, shown: NodeSlice | None, free: Collection[str]) -> NodeSlice:
    """The wanted content. It keeps the shown order if only devices that are not available now would change places."""
    if shown is None:
        return wanted
    by_name = {str(each["name"]): each for each in wanted.devices}
    names = [str(each["name"]) for each in shown.devices]
    if set(names) != set(by_name) or len(names) != len(by_name):
        return wanted
    if [name for name in names if name in free] != [name for name in by_name if name in free]:
        return wanted
    return NodeSlice(wanted.name, devices=tuple(by_name[name] for name in names))


def _remembered(
    node_name: str, devices: Sequence[NodeDevice], view: NodeView, shown: Sequence[NodeSlice]
) -> Iterator[_Entry]:
    """The shown devices that the node no longer has, but that may come back or belong to a GPU of which claims have something: on
    a GPU that the driver does not show now, or with a sharing mechanism that the machine does not offer now.
    """
    present = {each.gpu_uuid for each in devices}
    names = {each.name for each in devices}
    lost = {gpu.uuid for gpu in view.node if gpu.lost}
    held = {grant.gpu_uuid for grant in claim_grants(view)}
    nameless = any(not uuid.startswith("GPU-") for uuid in lost)
    for content in shown:
        title = content.name.removeprefix(_name(node_name, "", -1)).rpartition("-")[0]
        for each in content.devices:
            uuid = _attribute(each, AttributeName.UUID, "string")
            gone = uuid not in present
            if each["name"] not in names and (uuid in held or (gone and (nameless or uuid in lost))):
                number = _attribute(each, AttributeName.MINOR, "int")
                reason = TaintKey.LOST if gone else TaintKey.MODE
                yield _Entry(title, number if isinstance(number, int) else 0, _tainted(each, (reason,)))


def _held_by_claims(view: NodeView) -> set[tuple[Grant, bool]]:
    """What claims have: a device, and whether they have a part of it."""
    return {(each.device, True) if isinstance(each, FractionalShare) else (each, False) for each in claim_grants(view)}


def is_taken(device: NodeDevice, view: NodeView) -> bool:
    """Whether something that the device needs is held, so that no claim can get it at any place in the list."""
    return any(
        overlap(device.offered, each)
        for each in view.grants_on(device.gpu_uuid)
        if not (device.sharing is not None and isinstance(each, FractionalShare) and each.device == device.offered)
    )


def claim_grants(view: NodeView) -> list[Grant]:
    """What claims have."""
    held = (each for each in view.allocations if isinstance(each.keeper, ClaimKeeper))
    return [grant for each in held for grant in each.grants]


def _attribute(device: Json, name: AttributeName, kind: str) -> Any:
    return ((device.get("attributes") or {}).get(name) or {}).get(kind)


def _name(node_name: str, title: str, number: int) -> str:
    """A slice's name; without a title, the common prefix of all."""
    return f"{node_name}-tranche-{title}-{number}" if title else f"{node_name}-tranche-"


_PLACES = {OfferKind.SLICE: 1, OfferKind.SHARED_GPU: 2, OfferKind.SHARED_SLICE: 3, OfferKind.WHOLE: 4}


class _OfferGroup(NamedTuple):
    """A kind of device, sorted as the scheduler shall try the kinds. `memory` is that of a profile, in MiB."""

    place: int
    memory: int
    label: str

    @property
    def title(self) -> str:
        """The group's title in a slice's name."""
        return f"{self.place}-{self.memory:07}-{self.label}" if self.memory else f"{self.place}-{self.label}"


def _group_of(device: NodeDevice) -> _OfferGroup:
    """The group of the device."""
    place = _PLACES[device.kind]
    if device.profile is None:
        return _OfferGroup(place, 0, device.kind)
    # A profile whose memory no source shows is as large as its name says.
    known = device.capacity.get(CapacityName.MEMORY)
    memory = device.profile.memory_gb * 1024 if known is None else known.value // MIB
    return _OfferGroup(place, memory, profile_label(device.profile))


def grouped(devices: Iterable[NodeDevice]) -> Mapping[_OfferGroup, tuple[NodeDevice, ...]]:
    """The devices by group, in the groups' order."""
    found: dict[_OfferGroup, list[NodeDevice]] = {}
    for each in devices:
        found.setdefault(_group_of(each), []).append(each)
    return {group: tuple(found[group]) for group in sorted(found)}


_QUANTITIES = ("value", "default", "min", "max", "step")


def encode_device(device: NodeDevice, reasons: Sequence[TaintKey] = ()) -> Json:
    """The device with a taint for each reason against it."""
    found: dict[str, Any] = {
        "name": device.name,
        "attributes": {name: _encoded(value) for name, value in device.attributes.items()},
        "capacity": {name: _capacity(name, amount) for name, amount in device.capacity.items()},
        "consumesCounters": [
            {"counterSet": device.counter_set, "counters": _encode_counters(device.counters, _memory(device))}
        ],
    }
    if device.sharing is not None:
        found["allowMultipleAllocations"] = True
    return _tainted(found, reasons)


def _tainted(device: Json, reasons: Iterable[TaintKey]) -> Json:
    """The device with those taints instead of its own; only pods that tolerate them get it."""
    bare = {name: value for name, value in device.items() if name != "taints"}
    taints = [{"key": str(reason), "effect": "NoSchedule"} for reason in reasons]
    return {**bare, "taints": taints} if taints else bare


def _encode_counters(counters: Mapping[str, int], memory: int) -> Json:
    """Counters with their values, and those bytes as one more; without it where no source tells how many they are."""
    found = {name: {"value": str(value)} for name, value in counters.items()}
    return {**found, MEMORY_COUNTER: {"value": format_bytes(memory)}} if memory else found


def _memory(device: NodeDevice) -> int:
    """The bytes that a holder of all of the device has; 0 where no source tells."""
    known = device.capacity.get(CapacityName.MEMORY)
    return 0 if known is None else known.value


def _all_memory(counter_set: str, devices: Iterable[NodeDevice]) -> int:
    """The most bytes that devices of that GPU can take together: as if all its memory slices were those with the most bytes."""
    own = [each for each in devices if each.counter_set == counter_set]
    every = max(map(_memory_slices, own), default=0)
    return max((-(-_memory(each) * every // _memory_slices(each)) for each in own), default=0)


def _memory_slices(device: NodeDevice) -> int:
    """How many memory slices the device takes; a GPU without MIG has one."""
    number = device.attributes.get(AttributeName.MEMORY_SLICES)
    return number if isinstance(number, int) else 1


def _with_times(device: Json, shown: Mapping[str, Any]) -> Json:
    """The device with the times that the API server wrote at the taints that it already has."""
    times = {(each.get("key"), each.get("effect")): each.get("timeAdded") for each in shown.get("taints") or ()}
    if not device.get("taints"):
        return device
    taints = [
        {**each, "timeAdded": time} if (time := times.get((each["key"], each["effect"]))) else each
        for each in device["taints"]
    ]
    return {**device, "taints": taints}


def _plain(text: Any) -> Any:
    """A text in a form that is equal for equal meaning: without the times of taints, and with quantities as numbers."""
    if isinstance(text, Mapping):
        known = {name: value for name, value in text.items() if name != "timeAdded" and value is not None}
        return {name: _number(value) if name in _QUANTITIES else _plain(value) for name, value in known.items()}
    return [_plain(each) for each in text] if isinstance(text, list | tuple) else text


def _number(value: Any) -> Any:
    try:
        return parse_quantity(value) if isinstance(value, str) else _plain(value)
    except UsageError:
        return value


def _encoded(value: AttributeValue) -> Json:
    match value:
        case VersionValue(text):
            return {"version": text}
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}


def _capacity(name: str, amount: DeviceCapacity) -> Json:
    def quantity(value: int) -> str:
        return format_bytes(value) if name == CapacityName.MEMORY else str(value)

    found: dict[str, Any] = {"value": quantity(amount.value)}
    if amount.default is not None:
        limits = {"min": quantity(amount.least), "max": quantity(amount.value), "step": quantity(amount.step)}
        found["requestPolicy"] = {"default": quantity(amount.default), "validRange": limits}
    return found


@dataclass(frozen=True, slots=True)
class SliceUpdate:
    """The writes, in this order: missing slices, replacements for existing ones, and removals."""

    generation: int
    create: tuple[NodeSlice, ...] = ()
    replace: tuple[NodeSlice, ...] = ()
    remove: tuple[NodeSlice, ...] = ()

    @property
    def count(self) -> int:
        """The number of requests."""
        return len(self.create) + len(self.replace) + len(self.remove)


def slice_writes(
    wanted: Sequence[NodeSlice], known: Sequence[NodeSlice], owner: tuple[str, str], generation: int = 0
) -> SliceUpdate:
    """The writes that turn the known slices into the wanted ones. `owner` is the name and uid of the node, `generation` the
    newest ever seen.
    """
    names = {each.name: each for each in known}
    standing = {(each.generation, each.count) for each in known}
    newest = max([generation, *(each.generation for each in known)])
    whole = standing == {(newest, len(wanted))} and names.keys() <= {each.name for each in wanted}
    number = newest if whole else newest + 1
    create, changed = [], []
    for content in wanted:
        before = names.get(content.name)
        made = _made(content, before, owner, number, len(wanted))
        if before is None:
            create.append(made)
        elif not _same(made, before):
            changed.append(made)
    gone = {each.name for each in wanted}
    return SliceUpdate(number, tuple(create), tuple(changed), tuple(each for each in known if each.name not in gone))


def _made(
    content: NodeSlice, before: NodeSlice | None, owner: tuple[str, str], generation: int, count: int
) -> NodeSlice:
    shown = {} if before is None else {str(each["name"]): each for each in before.devices}
    return replace(
        content,
        driver=DRIVER,
        pool=owner[0],
        node=owner[0],
        generation=generation,
        count=count,
        devices=tuple(_with_times(each, shown.get(str(each["name"]), {})) for each in content.devices),
        owner_node=owner,
        version="" if before is None else before.version,
    )


def _same(made: NodeSlice, before: NodeSlice) -> bool:
    def rest(each: NodeSlice) -> tuple[object, ...]:
        return (each.driver, each.pool, each.node, each.generation, each.count, each.owner_node)

    return (
        rest(made) == rest(before) and _alike(made.devices, before.devices) and _alike(made.counters, before.counters)
    )


def _alike(made: Sequence[Json], before: Sequence[Json]) -> bool:
    """Whether both mean the same. Most are identical, which is quick to check."""
    return len(made) == len(before) and all(
        one == other or _plain(one) == _plain(other) for one, other in zip(made, before, strict=True)
    )


def free_labels(
    devices: Collection[NodeDevice], view: NodeView, reasons: Mapping[str, Sequence[TaintKey]]
) -> dict[str, str | None]:
    """The labels by key, None for one to remove; `reasons` rule out devices, by device name."""
    free = [each for each in devices if not reasons.get(each.name) and not is_taken(each, view)]
    slices = [
        each for each in free if each.kind is OfferKind.SLICE and each.profile and not each.profile.has_attributes
    ]
    largest = max(slices, key=lambda each: (_left(each, view), each.profile), default=None)
    return {
        LARGEST_SLICE_LABEL: None if largest is None else str(largest.profile),
        LARGEST_MEMORY_LABEL: str(max((_left(each, view) for each in free), default=0) // MIB),
        FREE_GPUS_LABEL: str(sum(each.kind is OfferKind.WHOLE for each in free)),
    }


def _left(device: NodeDevice, view: NodeView) -> int:
    """The bytes of it that one more claim can have."""
    memory = device.capacity.get(CapacityName.MEMORY)
    if memory is None:
        return 0
    grants = view.grants_on(device.gpu_uuid) if device.sharing is not None else ()
    given = sum(each.memory for each in grants if isinstance(each, FractionalShare) and each.device == device.offered)
    left = memory.value - given
    return left if left >= memory.least else 0


@dataclass(frozen=True, slots=True)
class ClaimableDevices:
    """The devices that claims are shown: their GPUs, by UUID, and the free ones, by name and by GPU."""

    gpus: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    free_gpus: frozenset[str] = frozenset()

    @classmethod
    def of(cls, devices: Iterable[Json]) -> ClaimableDevices:
        """The claimable devices in those of ResourceSlices."""
        uuids = {
            str(each["name"]): (str(_attribute(each, AttributeName.UUID, "string") or ""), not each.get("taints"))
            for each in devices
        }
        free = {name for name, (_, free) in uuids.items() if free}
        return cls(frozenset(uuid for uuid, _ in uuids.values()), frozenset(free), frozenset(uuids[n][0] for n in free))


@dataclass(frozen=True, slots=True)
class PluginGrants:
    """What is not for claims. `grants` count as the device plugin's; the node counts more of the resources `strangers`."""

    grants: frozenset[Grant] = frozenset()
    strangers: frozenset[str] = frozenset()


UNKNOWN = PluginGrants(strangers=frozenset({"anything"}))
"""Until the device plugin says what it lists: keeps what is shown true, and shows nothing more."""


def open_gpus(
    mode: NodeMode, view: NodeView, other: PluginGrants, shown: ClaimableDevices, held: Collection[str]
) -> frozenset[str]:
    """The GPUs, by UUID, whose devices are to be shown, free or not. `held` are those of which claims have something.

    While the device plugin may be giving away something of a GPU, the GPU is not newly shown; after that, all of it is.
    """
    if not mode.by_claims:
        return frozenset(held)
    taken = [grant for allocation in view.allocations for grant in allocation.grants]
    given_away = {each.gpu_uuid for each in other.grants if not any(overlap(each, other) for other in taken)}
    if other.strangers:
        given_away |= {gpu.uuid for gpu in view.node} - shown.free_gpus
    return frozenset(gpu.uuid for gpu in view.node if gpu.uuid not in given_away) | shown.gpus | frozenset(held)


def counted_otherwise(devices: Collection[NodeDevice], other: PluginGrants, shown: ClaimableDevices) -> frozenset[str]:
    """The devices, by name, that must not be shown as free now.

    The device plugin may be giving them away, or something across them. While it is unknown which devices it gives away, no
    device becomes free that was not shown so before.
    """
    by_gpu: dict[str, list[Grant]] = {}
    for grant in other.grants:
        by_gpu.setdefault(grant.gpu_uuid, []).append(grant)
    return frozenset(
        each.name
        for each in devices
        if any(excludes(each, grant) for grant in by_gpu.get(each.gpu_uuid, ()))
        or (other.strangers and each.name not in shown.free)
    )


def shown_in(mode: NodeMode, gpus: frozenset[str]) -> frozenset[str]:
    """The GPUs, by UUID, on which a decision to show these in this mode may show something free."""
    return gpus if mode.by_claims else frozenset()


def to_claims(shown: ClaimableDevices, opening: frozenset[str]) -> frozenset[str]:
    """The GPUs, by UUID, on which claims may be seeing something free, with those on which an unconfirmed write may show it."""
    return shown.free_gpus | opening
