"""Everything known of a cluster's GPUs: one value, from which everything else is computed; and what claims have left of a node's
devices: counters of its GPUs, and memory and compute of shared devices. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tranche.core.sharing import Sharing
from tranche.kubernetes.api.node_rules import Taint
from tranche.kubernetes.claims.spec import MOST_DEVICES
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.fleet.device_request import DeviceRequest, DeviceRequestOption
from tranche.kubernetes.fleet.devices import FleetDevice, Pool
from tranche.kubernetes.fleet.objects import ClaimedDevice, FleetClaim, FleetNode
from tranche.planning.decide.realise import why_not_together


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that a claim has."""

    claim: FleetClaim
    given: ClaimedDevice
    device: FleetDevice

    @property
    def memory(self) -> int | None:
        """The bytes that it has; None where the claim states what no device can give, so that no node hands anything over."""
        if self.given.memory is None:
            return self.device.memory
        return self.given.memory if 0 < self.given.memory <= self.device.memory else None


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """A node's pool and its holders. `left` is what is left of the counters, by set; `by_device` are the holdings."""

    pool: Pool
    holdings: tuple[HeldDevice, ...] = ()
    left: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    by_device: Mapping[str, Sequence[HeldDevice]] = field(default_factory=dict)

    def without(self, claim: FleetClaim) -> PoolUsage:
        """The usage after the end of that claim."""
        kept = [each.claim for each in self.holdings if each.claim != claim]
        return room_of(self.pool, dict.fromkeys(kept))

    def memory_left(self, device: FleetDevice) -> int:
        """The free bytes of a shared device."""
        held = self.by_device.get(device.name, ())
        taken = sum(device.memory if each.given.memory is None else max(each.given.memory, 0) for each in held)
        return max(device.memory - taken, 0)

    def holders(self, device: FleetDevice) -> tuple[HeldDevice, ...]:
        """The holders of the device, or of something that rules it out."""
        return tuple(
            each
            for each in self.holdings
            if each.device.name == device.name
            or (each.device.counter_set == device.counter_set and set(each.device.counters) & set(device.counters))
        )

    def free(self, device: FleetDevice, wanted: DeviceRequestOption) -> bool:
        """Whether the device serves one more, taints aside."""
        own = self.by_device.get(device.name, ())
        if device.shared and own:
            return self._part_fits(device, wanted, own)
        if own:
            return False
        left = self.left.get(device.counter_set, {})
        return all(left.get(name, 0) >= amount for name, amount in device.counters.items()) and (
            not device.shared or self._part_fits(device, wanted, own)
        )

    def _part_fits(self, device: FleetDevice, wanted: DeviceRequestOption, own: Sequence[HeldDevice]) -> bool:
        if self.memory_left(device) < device.consumed(wanted.memory):
            return False
        if device.clients is not None and len(own) >= device.clients:
            return False
        taken = sum(each.given.compute or 0 for each in own)
        return wanted.compute is None or device.compute is None or device.compute - taken >= wanted.compute


def room_of(pool: Pool, claims: Iterable[FleetClaim]) -> PoolUsage:
    """The pool with what these claims have of it."""
    by_name = {each.name: each for each in pool.devices}
    holdings = tuple(
        HeldDevice(claim, given, by_name[given.device])
        for claim in claims
        for given in claim.given
        if given.node == pool.node and given.device in by_name
    )
    left = {name: dict(counters) for name, counters in pool.counters.items()}
    for device in {each.device.name: each.device for each in holdings}.values():
        counters = left.setdefault(device.counter_set, {})
        for name, amount in device.counters.items():
            counters[name] = counters.get(name, 0) - amount
    by_device: dict[str, list[HeldDevice]] = {}
    for each in holdings:
        by_device.setdefault(each.device.name, []).append(each)
    return PoolUsage(pool, holdings, left, by_device)


def against(device: FleetDevice, wanted: DeviceRequestOption) -> tuple[Taint, ...]:
    """The taints that keep the device from being given away now, including one for room that is kept for others."""
    found = tuple(
        taint
        for taint in device.taints
        if not any(each.covers(taint.key, taint.value, taint.effect) for each in wanted.tolerations)
    )
    return (*found, Taint(TaintKey.RESERVED, "NoSchedule")) if device.kept and not wanted.by_name else found


def served(room: PoolUsage, wanted: DeviceRequestOption) -> tuple[FleetDevice, ...] | None:
    """The devices that the scheduler would give now, in its order; None when there are too few."""
    found = served_together(room, (DeviceRequest("", (wanted,)),))
    return None if found is None else found[0]


def served_together(room: PoolUsage, demands: Sequence[DeviceRequest]) -> tuple[tuple[FleetDevice, ...], ...] | None:
    """The devices that the scheduler would give now for each demand, each by its first alternative that leaves room for the rest.
    None where they do not fit together, or are more than a claim can have.

    Devices are taken one after the other, each from the room that the earlier ones leave.
    """
    found = _together(room, demands)
    return None if found is None or sum(map(len, found)) > MOST_DEVICES else found


def refused_by_node(demands: Sequence[DeviceRequest], served: Sequence[Sequence[FleetDevice]]) -> str:
    """Why a node refuses to hand over what the scheduler gives for these demands, in words; "" when it does not."""
    parts: dict[str, list[tuple[str, Sharing]]] = {}
    for demand, devices in zip(demands, served, strict=True):
        of_claim = parts.setdefault(demand.claim, [])
        of_claim += [(each.name, Sharing(each.mechanism)) for each in devices if each.shared]
    return next((why for each in parts.values() if (why := why_not_together(each))), "")


def _together(room: PoolUsage, demands: Sequence[DeviceRequest]) -> tuple[tuple[FleetDevice, ...], ...] | None:
    if not demands:
        return ()
    for wanted in demands[0].alternatives:
        taken = _every(room, wanted) if wanted.every else _all_of(room, wanted)
        if taken is not None and (rest := _together(taken[1], demands[1:])) is not None:
            return (taken[0], *rest)
    return None


def had_together(room: PoolUsage, wanted: DeviceRequestOption) -> int:
    """How many of the wanted devices the scheduler could give now, one after the other."""
    return len(_several(room, wanted)[0])


def _all_of(room: PoolUsage, wanted: DeviceRequestOption) -> tuple[tuple[FleetDevice, ...], PoolUsage] | None:
    taken = _several(room, wanted)
    return None if len(taken[0]) < wanted.count else taken


def _several(room: PoolUsage, wanted: DeviceRequestOption) -> tuple[tuple[FleetDevice, ...], PoolUsage]:
    """As many devices as possible, up to the wanted count."""
    taken: list[FleetDevice] = []
    while len(taken) < wanted.count and (device := next(_servable(room, wanted, taken), None)) is not None:
        taken.append(device)
        room = _less(room, device, wanted)
    return tuple(taken), room


def _every(room: PoolUsage, wanted: DeviceRequestOption) -> tuple[tuple[FleetDevice, ...], PoolUsage] | None:
    devices = tuple(each for each in room.pool.devices if wanted.misfit(each) is None)
    if not 0 < len(devices) <= MOST_DEVICES:
        return None
    for device in devices:
        if against(device, wanted) or not room.free(device, wanted):
            return None
        room = _less(room, device, wanted)
    return devices, room


def _less(room: PoolUsage, device: FleetDevice, wanted: DeviceRequestOption) -> PoolUsage:
    """The room after one more holder gets the device, or the wanted part of it."""
    memory = device.consumed(wanted.memory) if device.shared else None
    given = ClaimedDevice(device.node, device.name, memory=memory, compute=wanted.compute)
    guest = FleetClaim("", f"wanted {len(room.holdings)}", given=(given,))
    return room_of(room.pool, [*dict.fromkeys(each.claim for each in room.holdings), guest])


def _servable(room: PoolUsage, wanted: DeviceRequestOption, taken: Sequence[FleetDevice]) -> Iterator[FleetDevice]:
    gpus = {each.uuid for each in taken} if wanted.distinct else set()
    for device in room.pool.devices:
        if (
            device.uuid not in gpus
            and wanted.misfit(device) is None
            and not against(device, wanted)
            and room.free(device, wanted)
        ):
            yield device


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes, their offers, and every claim. `unread` says what the caller may not read, by what was to be read.

    `classes` are the names of the existing device classes; None where unknown. `within` is the namespace whose claims these are;
    empty for all. `whole` says whether all nodes are here.
    """

    nodes: tuple[FleetNode, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    claims: tuple[FleetClaim, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    classes: frozenset[str] | None = None
    within: str = ""
    whole: bool = True

    def rooms(self) -> Mapping[str, PoolUsage]:
        """What is left of each node that offers something."""
        by_node: dict[str, dict[FleetClaim, None]] = {}
        for claim in self.claims:
            for given in claim.given:
                by_node.setdefault(given.node, {})[claim] = None
        return {node: room_of(pool, by_node.get(node, ())) for node, pool in self.pools.items()}

    def claims_named(self, namespace: str, names: Iterable[str]) -> tuple[FleetClaim, ...]:
        """The existing claims with these names."""
        wanted = set(names)
        return tuple(each for each in self.claims if each.namespace == namespace and each.name in wanted)

    def knows_claims_of(self, namespace: str) -> bool:
        """Whether a claim of that namespace that is missing here does not exist."""
        return self.within in ("", namespace) and f"claims in {namespace}" not in self.unread
