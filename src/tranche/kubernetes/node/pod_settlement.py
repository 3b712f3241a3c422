"""What the register should say about pods, given what kubelet and API server say now. Pure.

What a kubelet lists and what the register holds are counted in the same units: devices, and replicas of devices.

Only the kubelet's list says which devices a pod has. What it lists is believed. What it lacks is believed only as far as
`tranche.core.keeper.judge_pod` says, because a kubelet that has just started lists running pods as if they had nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase, Slice, WholeGpu, nearest_request, overlap
from tranche.core.keeper import SETTLED_SECONDS, KeeperStatus, PodEvidence, PodKeeper, judge_pod
from tranche.core.sharing import Sharing
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.claims.vocabulary import VGPU_RESOURCE
from tranche.kubernetes.kubelet.pod_resources import ContainerDevices, KubeletResponse
from tranche.kubernetes.node.resources import DOMAIN, GPU_RESOURCE, REPLICA_MARK, is_device_resource

Unit = Grant | str
"""What a kubelet counts: a device that one container has alone, or the id of a replica."""


@dataclass(frozen=True, slots=True)
class HeldGrants:
    """What a holder has: the grants, and the kubelet's ids of the replicas that their parts stand for.

    `memory` gives the bytes of each device with parts here.
    """

    grants: tuple[Grant, ...]
    replicas: tuple[str, ...] = ()
    memory: Mapping[WholeGpu | Slice, int] = field(default_factory=dict)

    @property
    def units(self) -> frozenset[Unit]:
        """The units of it that the kubelet counts."""
        return frozenset((*self.replicas, *(grant for grant in self.grants if not isinstance(grant, FractionalShare))))

    @property
    def by_mps(self) -> bool:
        """Whether an MPS daemon serves a part of it."""
        return any(isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS for grant in self.grants)

    def collides(self, other: HeldGrants) -> bool:
        """Whether a kubelet that gives one away has taken the other back: they share a unit, or a device held alone."""
        mine, theirs = (
            [each for each in held.grants if not isinstance(each, FractionalShare)] for held in (self, other)
        )
        return not self.units.isdisjoint(other.units) or any(overlap(a, b) for a in mine for b in theirs)


def holding(allocation: Allocation) -> HeldGrants:
    """What an allocation has."""
    keeper = allocation.keeper
    return HeldGrants(allocation.grants, keeper.replicas if isinstance(keeper, PodKeeper) else ())


def device_of(device_id: str) -> str:
    """The UUID of the device behind a kubelet's id of a device or a replica."""
    return device_id.partition(REPLICA_MARK)[0]


def units_listed(
    listed: Sequence[ContainerDevices], devices: Mapping[str, Grant]
) -> dict[ContainerDevices, dict[Unit, Grant]]:
    """What the kubelet lists: each unit with its device. A unit that several containers of a pod share counts for the first.

    Leaves out devices that the node does not have: the kubelet remembers slices that were taken away.
    """
    found: dict[ContainerDevices, dict[Unit, Grant]] = {}
    seen: set[str] = set()
    for entry in listed:
        ids = [each for each in entry.device_ids if device_of(each) in devices and each not in seen]
        seen.update(entry.device_ids)
        units = {_unit(each, devices): devices[device_of(each)] for each in ids}
        if units:
            found[entry] = units
    return found


def adopted(units: Mapping[Unit, Grant], every: Iterable[str], memory: Callable[[WholeGpu | Slice], int]) -> HeldGrants:
    """What a container has if only these units are known, as the kubelet lists them.

    Into how many replicas a device was divided, and by what mechanism, is unknown. So this assumes as many as the highest number
    among `every` listed replica, so that all of them have room, and no limits. `memory` gives the bytes of a device.
    """
    alone: list[Grant] = []
    taken: dict[WholeGpu | Slice, list[str]] = {}
    for unit, device in units.items():
        if isinstance(unit, str) and isinstance(device, WholeGpu | Slice):
            taken.setdefault(device, []).append(unit)
        else:
            alone.append(device)
    counts, sizes = _counts(every), {device: memory(device) for device in taken}
    parts = [
        FractionalShare(device, max(sizes[device] // counts[device_of(ids[0])] * len(ids), 1), Sharing.TIME_SLICING)
        for device, ids in taken.items()
    ]
    return HeldGrants((*alone, *parts), tuple(each for ids in taken.values() for each in ids))


def _unit(device_id: str, devices: Mapping[str, Grant]) -> Unit:
    return device_id if REPLICA_MARK in device_id else devices[device_id]


def _counts(ids: Iterable[str]) -> dict[str, int]:
    """How many replicas each device has at least, by its UUID."""
    found: dict[str, int] = {}
    for device_id in ids:
        number = device_id.partition(REPLICA_MARK)[2]
        count = int(number) + 1 if number.isdecimal() else 1
        found[device_of(device_id)] = max(found.get(device_of(device_id), 1), count)
    return found


_NOT_KNOWN_WHICH = ""
"""The container of a holder whose pod alone is known: it may have any device that no other holder has."""


Living = Mapping[str, Collection[str] | None]
"""Pods by uid with processes on the machine, each with the devices that these name; None if unknown."""


@dataclass(frozen=True, slots=True)
class PodObservation:
    """What is said of pods now.

    `pods` are the API server's pods of this node; None if it was not asked or does not answer. `kubelet_age` is how many seconds
    this run of the kubelet is known to have answered. `complete` says that this run once listed every running pod, so that what
    it no longer lists has ended, even if the API server has not heard of it. `waited` is for how many seconds each allocation, by
    id, has been known. `living` are those of `forgotten`, by uid, that have processes on the machine.
    """

    kubelet: KubeletResponse
    kubelet_age: float
    pods: Mapping[PodRef, KubePod] | None
    waited: Mapping[str, float]
    complete: bool = False
    living: Living = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisterUpdate:
    """What to write: ids to remove, keepers to replace by id, and allocations to add, in this order.

    `undecided` says that a final answer needs the API server.
    """

    removed: tuple[str, ...] = ()
    keepers: Mapping[str, PodKeeper] | None = None
    added: tuple[Allocation, ...] = ()
    undecided: bool = False

    @property
    def empty(self) -> bool:
        """Whether the register is right as it is."""
        return not (self.removed or self.keepers or self.added)


def settle_pods(
    register: Sequence[Allocation],
    devices: Mapping[str, Grant],
    words: PodObservation,
    *,
    now: float,
    new_id: Callable[[], str],
    memory: Callable[[WholeGpu | Slice], int],
) -> RegisterUpdate:
    """The changes to the register. `devices` are the node's by UUID; `now` is in seconds since the epoch.

    `memory` gives the bytes of a device.
    """
    rows = [each for each in register if isinstance(each.keeper, PodKeeper)]
    supposed = [each for each in rows if _supposed(each)]
    listed = units_listed(words.kubelet.listed, devices)
    shared = {device for units in listed.values() for unit, device in units.items() if isinstance(unit, str)}
    removed: list[str] = []
    keepers: dict[str, PodKeeper] = {}
    covered: set[Unit] = set()
    held: list[Grant] = []
    undecided = False
    for row in rows:
        if _supposed(row):
            continue
        entry = _entry_of(row, listed)
        replaced = entry is None and _replaced(row, listed, devices, words.living)
        life, keeper = _judged(row, entry, words, replaced)
        found_by_processes = entry is None and not keeper.admitted and bool(keeper.uid)
        undecided = (
            undecided or life is KeeperStatus.UNKNOWN or (entry is not None and not keeper.uid) or found_by_processes
        )
        # A process does not show that its device is shared; the kubelet's list does, and has all its holders.
        if life is KeeperStatus.ALIVE and _forgotten(keeper, words):
            keeper = keeper._replace(forgotten=True)
        if life is KeeperStatus.GONE or (found_by_processes and not shared.isdisjoint(row.grants)):
            removed.append(row.id)
            continue
        covered |= holding(row).units
        held += row.grants
        if keeper != row.keeper:
            keepers[row.id] = keeper
    added = []
    ids = [device_id for entry in words.kubelet.listed for device_id in entry.device_ids]
    for entry, units in listed.items():
        new = {unit: device for unit, device in units.items() if unit not in covered}
        if new:
            found = adopted(new, ids, memory)
            keeper = _bound(PodKeeper(entry.resource, replicas=found.replicas), entry, words)
            added.append(_allocation(new_id(), keeper, found.grants, now))
            held += found.grants
            undecided = undecided or not keeper.uid
    elsewhere = [grant for each in register if not isinstance(each.keeper, PodKeeper) for grant in each.grants]
    standing = {_pod_keeper(row): row.grants for row in supposed}
    wanted = standing
    if words.complete:
        wanted = {}
    elif words.pods is not None:
        wanted = _suppositions(words, rows, added, removed, devices, [*held, *elsewhere])
    undecided = undecided or bool(wanted)
    removed += [row.id for row in supposed if wanted.get(_pod_keeper(row)) != row.grants]
    added += [
        _allocation(new_id(), keeper, grants, now)
        for keeper, grants in wanted.items()
        if standing.get(keeper) != grants
    ]
    return RegisterUpdate(tuple(removed), keepers, tuple(added), undecided)


def forgotten(register: Sequence[Allocation], devices: Mapping[str, Grant], word: KubeletResponse) -> frozenset[str]:
    """The uids of pods that hold something in the register but not in the kubelet's list: are they still running?"""
    listed = units_listed(word.listed, devices)
    rows = [each for each in register if isinstance(each.keeper, PodKeeper) and _pod_keeper(each).uid]
    return frozenset(_pod_keeper(row).uid for row in rows if _entry_of(row, listed) is None)


def unaccounted(words: PodObservation, known: Sequence[PodKeeper]) -> tuple[tuple[KubePod, str], ...]:
    """Running pods, each with a resource that they ask for, whose devices neither kubelet nor register knows."""
    told = {(PodRef(each.namespace, each.name), each.resource) for each in words.kubelet.listed}
    told |= {(PodRef(each.namespace, each.name), each.resource) for each in known}
    return tuple(
        (pod, resource)
        for pod in (words.pods or {}).values()
        if pod.phase == "Running"
        for resource in sorted(filter(is_device_resource, pod.resources))
        if (pod.ref, resource) not in told
    )


def _suppositions(
    words: PodObservation,
    rows: Sequence[Allocation],
    added: Sequence[Allocation],
    removed: Sequence[str],
    devices: Mapping[str, Grant],
    held: Sequence[Grant],
) -> dict[PodKeeper, tuple[Grant, ...]]:
    """For each resource the first pod whose devices are unknown, with every device that it may have."""
    kept = [each for each in rows if not _supposed(each) and each.id not in removed]
    known = [row.keeper for row in (*kept, *added) if isinstance(row.keeper, PodKeeper)]
    found: dict[PodKeeper, tuple[Grant, ...]] = {}
    taken = list(held)
    resources: set[str] = set()
    for pod, resource in unaccounted(words, known):
        if resource in resources:
            continue
        resources.add(resource)
        free: list[Grant] = []
        # Slices first: a cut GPU is no device beside its slices.
        for grant in sorted(devices.values(), key=lambda each: each.slot is None):
            if _may_be(grant, resource) and not any(overlap(grant, other) for other in taken):
                free.append(grant)
                taken.append(grant)
        if free:
            found[PodKeeper(resource, pod.ref.namespace, pod.ref.name, _NOT_KNOWN_WHICH, pod.uid)] = tuple(free)
    return found


def _may_be(grant: Grant, resource: str) -> bool:
    """Whether a device of that resource may be this grant, under any strategy."""
    names = [GPU_RESOURCE, VGPU_RESOURCE]
    if grant.slot is not None:
        names.append(f"{DOMAIN}/{grant.slot.profile.resource_name}")
    return any(resource == name or resource.startswith(f"{name}.") for name in names)


def _entry_of(row: Allocation, listed: Mapping[ContainerDevices, Mapping[Unit, Grant]]) -> ContainerDevices | None:
    """The kubelet's entry for the row: the one of its pod, or, for a pod being admitted, of its devices."""
    keeper = _pod_keeper(row)
    mine = holding(row).units
    for entry, units in listed.items():
        same_pod = (entry.namespace, entry.name) == (keeper.namespace, keeper.name)
        if (same_pod or not keeper.admitted) and keeper.resource in ("", entry.resource) and not mine.isdisjoint(units):
            return entry
    return None


def _replaced(
    row: Allocation,
    listed: Mapping[ContainerDevices, Mapping[Unit, Grant]],
    devices: Mapping[str, Grant],
    living: Living,
) -> bool:
    """Whether the container runs with other devices: the kubelet lists those, and the pod's processes name those and none of
    these.

    A kubelet that lost its checkpoint gives a starting container new devices. It may also list other devices than those of a
    container that an earlier kubelet was about to start.
    """
    keeper = _pod_keeper(row)
    told = living.get(keeper.uid)
    if told is None or not keeper.admitted:
        return False
    held = [grant.device if isinstance(grant, FractionalShare) else grant for grant in row.grants]
    mine = {uuid for uuid, device in devices.items() if device in held}
    container = (keeper.namespace, keeper.name, keeper.container, keeper.resource)
    for entry in listed:
        if (entry.namespace, entry.name, entry.container, entry.resource) == container:
            others = {device_of(each) for each in entry.device_ids}
            return others.issubset(told) and not (mine - others).intersection(told)
    return False


def _forgotten(keeper: PodKeeper, words: PodObservation) -> bool:
    """Whether a kubelet that has had time to find its pods does not list what this unfinished one has."""
    if not keeper.admitted or keeper.lingers or words.kubelet_age < SETTLED_SECONDS:
        return False
    mine = (keeper.namespace, keeper.name, keeper.resource)
    told = ((each.namespace, each.name, each.resource) for each in words.kubelet.listed)
    return keeper.kubelet != words.kubelet.run and mine not in told


def _judged(
    row: Allocation, entry: ContainerDevices | None, words: PodObservation, replaced: bool
) -> tuple[KeeperStatus, PodKeeper]:
    keeper = _pod_keeper(row)
    if entry is not None:
        keeper = _bound(keeper, entry, words)
    exists: bool | None = None
    if words.pods is not None:
        pod = words.pods.get(PodRef(keeper.namespace, keeper.name))
        exists = pod is not None and not pod.finished and keeper.uid in ("", pod.uid)
    processes = keeper.uid != "" and keeper.uid in words.living and not _disowned(keeper, words)
    evidence = PodEvidence(
        words.kubelet.run,
        words.kubelet_age,
        entry is not None,
        exists,
        words.waited.get(row.id, 0.0),
        processes,
        replaced,
    )
    # The pod is over but not freed yet: no kubelet counts its devices as given away.
    over = keeper.admitted and exists is False
    if entry is None and (over or (processes and keeper.kubelet == words.kubelet.run)):
        keeper = keeper._replace(lingers=True)
    return judge_pod(keeper, evidence), keeper


def _disowned(keeper: PodKeeper, words: PodObservation) -> bool:
    """Whether a pod found only by its processes merely names devices: a kubelet that knows it and all others denies that it has
    them.
    """
    if keeper.admitted or not words.complete:
        return False
    return any(pod.uid == keeper.uid and not pod.finished for pod in (words.pods or {}).values())


def _bound(keeper: PodKeeper, entry: ContainerDevices, words: PodObservation) -> PodKeeper:
    """The keeper with what the kubelet says now, and the pod's uid once known."""
    pod = None if words.pods is None else words.pods.get(PodRef(entry.namespace, entry.name))
    uid = keeper.uid if pod is None else pod.uid
    run, replicas = words.kubelet.run, keeper.replicas
    return PodKeeper(entry.resource, entry.namespace, entry.name, entry.container, uid, run, replicas=replicas)


def _allocation(allocation_id: str, keeper: PodKeeper, grants: tuple[Grant, ...], now: float) -> Allocation:
    return Allocation(allocation_id, nearest_request(grants), grants, Phase.ACTIVE, now, keeper=keeper)


def _pod_keeper(row: Allocation) -> PodKeeper:
    assert isinstance(row.keeper, PodKeeper)
    return row.keeper


def _supposed(row: Allocation) -> bool:
    return isinstance(row.keeper, PodKeeper) and row.keeper.admitted and row.keeper.container == _NOT_KNOWN_WHICH
