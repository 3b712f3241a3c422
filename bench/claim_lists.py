"""A scheduler that takes the first device that fits, on a node that it draws: what each order of the list accepts, in seconds.

That is what the scheduler of Kubernetes does with pods that ask for nothing but a claim: nodes are alike to it, and on a node the
first device in the list wins whose counters are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from bench.acceptance import Arrival
from bench.claim_arrivals import ORDERS, shown_view
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind, devices_of
from tranche.kubernetes.devices.order import in_order
from tranche.kubernetes.devices.taints import kept_places, parse_kept, set_apart

OUR_ORDER, LISTING_ORDER, RANDOM_ORDER = ORDERS


class ListedNode:
    """One node: what claims have of it, and its list."""

    def __init__(self, view: NodeView, order: str, random: Random) -> None:
        self._view = view
        self._order = order
        self._held: dict[int, Allocation] = {}
        self._taken = dict.fromkeys((gpu.uuid for gpu in view.node), 0)
        devices = [each for each in devices_of(view.node) if each.kind is OfferKind.SLICE]
        if order == RANDOM_ORDER:
            random.shuffle(devices)
        self._of: dict[ProfileName, list[NodeDevice]] = {}
        for each in devices:
            assert each.profile is not None
            self._of.setdefault(each.profile, []).append(each)

    def fits(self, profile: ProfileName) -> bool:
        """Whether a device of the profile is free."""
        return any(self._free(each) for each in self._of[profile])

    def has_room(self, profile: ProfileName) -> bool:
        """Whether as many memory and compute slices as the profile takes are free on one GPU, wherever they are."""
        size = self._of[profile][0].offered
        assert isinstance(size, Slice)
        units = self._view.node.gpus[0].memory_slices
        compute = dict.fromkeys(self._taken, 0)
        for each in self._held.values():
            grant = each.grants[0]
            assert isinstance(grant, Slice)
            compute[grant.gpu_uuid] += grant.profile.slices
        return any(
            units - taken.bit_count() >= size.placement.size and 7 - compute[uuid] >= profile.slices
            for uuid, taken in self._taken.items()
        )

    def take(self, number: int, profile: ProfileName) -> None:
        """Give the first device of the list."""
        listed: Sequence[NodeDevice] = self._of[profile]
        if self._order == OUR_ORDER:
            listed = in_order(listed, replace(self._view, allocations=tuple(self._held.values())))
        device = next(each for each in listed if self._free(each))
        assert isinstance(device.offered, Slice)
        keeper = ClaimKeeper("default", str(number), str(number))
        request = Request(MigSlice(profile))
        self._held[number] = Allocation(str(number), request, (device.offered,), Phase.ACTIVE, 0.0, keeper=keeper)
        self._taken[device.gpu_uuid] |= device.offered.placement.mask

    def give_back(self, number: int) -> None:
        """Take back what that arrival has."""
        (grant,) = self._held.pop(number).grants
        assert isinstance(grant, Slice)
        self._taken[grant.gpu_uuid] &= ~grant.placement.mask

    def _free(self, device: NodeDevice) -> bool:
        assert isinstance(device.offered, Slice)
        return not device.offered.placement.mask & self._taken[device.gpu_uuid]


class KeepingNode(ListedNode):
    """One that lists in our order and keeps room: nobody is given what lies on kept places and is smaller."""

    def __init__(self, view: NodeView, keep: str) -> None:
        super().__init__(view, OUR_ORDER, Random(0))
        self._sizes = parse_kept(keep)
        self._places: tuple[str, ...] = ()
        self._refused: frozenset[str] = frozenset()
        self._keep()

    def take(self, number: int, profile: ProfileName) -> None:
        """As any node, and look anew what is kept."""
        super().take(number, profile)
        self._keep()

    def give_back(self, number: int) -> None:
        """As any node, and look anew what is kept."""
        super().give_back(number)
        self._keep()

    def _keep(self) -> None:
        devices = [each for several in self._of.values() for each in several]
        view = replace(self._view, allocations=tuple(self._held.values()))
        places = kept_places(devices, view, self._sizes, {}, self._places)
        self._places = tuple(each.name for each in places)
        self._refused = frozenset(set_apart(devices, places, {})[1])

    def _free(self, device: NodeDevice) -> bool:
        return device.name not in self._refused and super()._free(device)


def _played(
    listed: Sequence[ListedNode], random: Random, profiles: Sequence[ProfileName], path: Sequence[Arrival]
) -> Iterator[tuple[int, Arrival, bool]]:
    """Let arrivals come and go, each on a node drawn among those where it fits: number, arrival, whether it was given one."""
    running: list[tuple[float, int, ListedNode]] = []
    for number, arrival in enumerate(path):
        while running and running[0][0] <= arrival.time:
            _, other, node = heappop(running)
            node.give_back(other)
        profile = profiles[arrival.shape]
        fitting = [node for node in listed if node.fits(profile)]
        if fitting:
            node = random.choice(fitting)
            node.take(number, profile)
            heappush(running, (arrival.time + arrival.service, number, node))
        yield number, arrival, bool(fitting)


def refused_by_profile(
    nodes: int, board: str, profiles: Sequence[ProfileName], path: Sequence[Arrival], keep: str
) -> tuple[list[float], float]:
    """Of the arrivals that count, in percent: how many of each profile were refused, and how much of the compute was accepted."""
    listed = [KeepingNode(shown_view(board), keep) for _ in range(nodes)]
    came, lost = [0] * len(profiles), [0] * len(profiles)
    for number, arrival, given in _played(listed, Random(7), profiles, path):
        if number >= len(path) // 3:
            came[arrival.shape] += 1
            lost[arrival.shape] += not given
    offered = sum(profile.slices * count for profile, count in zip(profiles, came, strict=True))
    refused = sum(profile.slices * count for profile, count in zip(profiles, lost, strict=True))
    return [100 * one / (all_ or 1) for one, all_ in zip(lost, came, strict=True)], 100 * (1 - refused / offered)


def refused(
    order: str, nodes: int, board: str, profiles: Sequence[ProfileName], path: Sequence[Arrival]
) -> tuple[float, float]:
    """Of the arrivals that count, in percent: how many were refused, and how many of them though one GPU had the slices free."""
    random = Random(7)
    listed = [ListedNode(shown_view(board), order, random) for _ in range(nodes)]
    first = len(path) // 3
    lost = fragmented = 0
    for number, arrival, given in _played(listed, random, profiles, path):
        if not given and number >= first:
            lost += 1
            fragmented += any(node.has_room(profiles[arrival.shape]) for node in listed)
    counted = len(path) - first
    return 100 * lost / counted, 100 * fragmented / counted
