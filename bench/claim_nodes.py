"""Nodes of eight A100 in MIG mode, that list their slices in an order or keep room, and pods that come and go on them.

The scheduler of Kubernetes treats pods that ask for nothing but a claim like one that draws a node and takes the first device
that fits: nodes are alike to it, and on a node the first device in the list wins whose counters are free. For the real one, nodes
are API objects alone; pods are bound and never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from time import monotonic
from typing import NamedTuple

from cluster.claims import claim, pod_with_claim, write_slices
from cluster.client import ApiClient
from cluster.errors import NotFound
from cluster.waiting import wait_for
from release.progress import say_beside

from bench.acceptance import Arrival
from bench.machine import SHAPES, empty_machine
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request
from tranche.kubernetes.api.object_client import NodeSlice
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import profile_class
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind, devices_of
from tranche.kubernetes.devices.order import in_order
from tranche.kubernetes.devices.taints import TaintFacts, kept_places, parse_kept, reasons_against, set_apart
from tranche.kubernetes.dra.pool import encode_device, pool_contents

GPUS = 8
PROFILES = tuple(shape.name for shape in SHAPES)
ORDERS = OUR_ORDER, LISTING_ORDER, RANDOM_ORDER = "our order", "listing order", "random order"
"""The product's, and two that never change: by name, lowest start first, as other drivers list, and one that means nothing."""
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
_TOLD = 250
_SECOND_TRY_SECONDS = 0.4
"""How long a pod that found no room is watched on: the scheduler may not have seen yet what was given back."""


class ClaimedNode:
    """A node, and what claims have of it: what it is given it prepares, as an agent does, and given back it is free room."""

    def __init__(self) -> None:
        self._empty = empty_machine(GPUS)
        self._devices = tuple(each for each in devices_of(self._empty.node) if each.kind is OfferKind.SLICE)
        self._held: dict[str, Allocation] = {}

    @property
    def view(self) -> NodeView:
        return replace(self._empty, allocations=tuple(self._held.values()))

    def give(self, pod: str, device: NodeDevice) -> Slice:
        assert isinstance(device.offered, Slice)
        request, keeper = Request(MigSlice(device.offered.profile)), ClaimKeeper(NAMESPACE, pod, pod)
        self._held[pod] = Allocation(pod, request, (device.offered,), Phase.ACTIVE, 0.0, keeper=keeper)
        return device.offered

    def take_back(self, pod: str) -> Slice:
        (grant,) = self._held.pop(pod).grants
        assert isinstance(grant, Slice)
        return grant


class ListedNode(ClaimedNode):
    """One whose list is asked here. One that keeps room gives nobody what lies on kept places and is smaller."""

    def __init__(self, order: str, random: Random, keep: str = "") -> None:
        super().__init__()
        self._order, self._sizes = order, parse_kept(keep)
        self._taken = dict.fromkeys((gpu.uuid for gpu in self._empty.node), 0)
        devices = list(self._devices)
        if order == RANDOM_ORDER:
            random.shuffle(devices)
        self._of: dict[ProfileName | None, list[NodeDevice]] = {}
        for each in devices:
            self._of.setdefault(each.profile, []).append(each)
        self._places: tuple[str, ...] = ()
        self._refused: frozenset[str] = frozenset()
        self._keep()

    def fits(self, shape: int) -> bool:
        return any(map(self._free, self._of[PROFILES[shape]]))

    def take(self, pod: str, shape: int) -> None:
        listed: Sequence[NodeDevice] = self._of[PROFILES[shape]]
        if self._order == OUR_ORDER:
            listed = in_order(listed, self.view)
        given = self.give(pod, next(filter(self._free, listed)))
        self._taken[given.gpu_uuid] |= given.placement.mask
        self._keep()

    def free(self, pod: str) -> None:
        given = self.take_back(pod)
        self._taken[given.gpu_uuid] &= ~given.placement.mask
        self._keep()

    def _keep(self) -> None:
        if self._sizes:
            devices = [each for several in self._of.values() for each in several]
            places = kept_places(devices, self.view, self._sizes, {}, self._places)
            self._places = tuple(each.name for each in places)
            self._refused = frozenset(set_apart(devices, places, {})[1])

    def _free(self, device: NodeDevice) -> bool:
        assert isinstance(device.offered, Slice)
        return device.name not in self._refused and not device.offered.placement.mask & self._taken[device.gpu_uuid]


class Refused(NamedTuple):
    """Of the arrivals that count, by shape, how many came and were refused."""

    came: tuple[int, ...]
    lost: tuple[int, ...]


def refused(order: str, nodes: int, path: Sequence[Arrival], keep: str = "") -> Refused:
    """What a scheduler refuses that draws a node among those where a pod fits. The first third of the arrivals does not count."""
    random = Random(7)
    listed = [ListedNode(order, random, keep) for _ in range(nodes)]
    came, lost = [0] * len(PROFILES), [0] * len(PROFILES)
    running: list[tuple[float, int, ListedNode]] = []
    for number, arrival in enumerate(path):
        while running and running[0][0] <= arrival.time:
            _, gone, node = heappop(running)
            node.free(str(gone))
        fitting = [node for node in listed if node.fits(arrival.shape)]
        if fitting:
            node = random.choice(fitting)
            node.take(str(number), arrival.shape)
            heappush(running, (arrival.time + arrival.service, number, node))
        if number >= len(path) // 3:
            came[arrival.shape] += 1
            lost[arrival.shape] += not fitting
    return Refused(tuple(came), tuple(lost))


class ShownNode(ClaimedNode):
    """One that shows its devices to the scheduler of Kubernetes."""

    def __init__(self, name: str, uid: str, order: str, api: ApiClient) -> None:
        super().__init__()
        self._name, self._uid, self._order, self._api = name, uid, order, api
        self.known: tuple[NodeSlice, ...] = ()
        self.writes = 0
        self.show()

    def show(self) -> None:
        self.known, written = write_slices(self._api, self._contents(), self.known, (self._name, self._uid))
        self.writes += written

    def give_named(self, pod: str, device: str) -> None:
        self.give(pod, next(each for each in self._devices if each.name == device))
        self.show()

    def _contents(self) -> tuple[NodeSlice, ...]:
        against = reasons_against(self._devices, self.view, TaintFacts(NodeMode.DYNAMIC))
        if self._order == OUR_ORDER:
            return pool_contents(self._name, self._devices, self.view, against, self.known)
        counters = pool_contents(self._name, self._devices, self.view, against, ())
        devices = sorted(self._devices, key=lambda each: each.name)
        if self._order == RANDOM_ORDER:
            Random(self._name).shuffle(devices)
        of_gpus = {number: [each for each in devices if each.number == number] for number in range(GPUS)}
        return (
            *(each for each in counters if each.counters),
            *(
                NodeSlice(f"{self._name}-gpu-{number}", devices=tuple(map(encode_device, several)))
                for number, several in of_gpus.items()
            ),
        )


class Outcome(NamedTuple):
    """Of the arrivals that count: how many came, and how many were accepted. `seconds` is the whole run's, `bound` how many pods
    were bound in it, and `writes` how many ResourceSlices were written after the first.
    """

    offered: int
    accepted: int
    seconds: float
    bound: int
    writes: int


def play(api: ApiClient, nodes: Mapping[str, ShownNode], path: Sequence[Arrival]) -> Outcome:
    """Have the pods come and go one after another; who finds no room is lost. The first third does not count."""
    running: list[tuple[float, str, str]] = []
    begun, before = monotonic(), sum(node.writes for node in nodes.values())
    accepted = bound = 0
    first = len(path) // 3
    for number, arrival in enumerate(path):
        if number % _TOLD == 0:
            say_beside(f"{number} of {len(path)} arrivals, after {monotonic() - begun:.0f} s")
        left = set()
        while running and running[0][0] <= arrival.time:
            _, gone, node = heappop(running)
            _remove(api, gone)
            nodes[node].take_back(gone)
            left.add(node)
        for node in left:
            nodes[node].show()
        name = f"pod-{number}"
        request = {"name": "gpu", "exactly": {"deviceClassName": profile_class(PROFILES[arrival.shape])}}
        api.request("POST", CLAIMS, claim(name, [request]))
        api.request("POST", PODS, pod_with_claim(name, name))
        where = _placed(api, name)
        if where:
            allocation = api.get(f"{CLAIMS}/{name}")["status"]["allocation"]
            nodes[where].give_named(name, allocation["devices"]["results"][0]["device"])
            heappush(running, (arrival.time + arrival.service, name, where))
            bound += 1
            accepted += number >= first
        else:
            _remove(api, name)
    seconds = monotonic() - begun
    for _, gone, _ in running:
        _remove(api, gone)
    writes = sum(node.writes for node in nodes.values()) - before
    return Outcome(len(path) - first, accepted, seconds, bound, writes)


def _placed(api: ApiClient, name: str) -> str:
    """The node that a pod is bound to; "" once the scheduler has found none for it."""
    last_chance = 0.0

    def decided() -> tuple[str] | None:
        nonlocal last_chance
        found = api.get(f"{PODS}/{name}")
        if node := found["spec"].get("nodeName"):
            return (str(node),)
        refused = any(each.get("reason") == "Unschedulable" for each in found["status"].get("conditions") or ())
        if refused and not last_chance:
            last_chance = monotonic() + _SECOND_TRY_SECONDS
        return ("",) if last_chance and monotonic() > last_chance else None

    # Of thousands of pods on busy cores, one waits longer for the scheduler than all others.
    return wait_for(f"the scheduler decides about {name}", decided, period=0.004)[0]


def _remove(api: ApiClient, name: str) -> None:

    def gone() -> bool:
        try:
            api.get(f"{CLAIMS}/{name}")
        except NotFound:
            return True
        return False

    api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    api.delete(f"{CLAIMS}/{name}")
    wait_for(f"claim {name} is gone", gone, period=0.004)
