"""The agents' reports as the fleet that commands show: pools of devices, and the pods that have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tranche.core.allocation import FractionalShare, Grant, NodeView, Slice, WholeGpu
from tranche.core.keeper import ChosenFor, ClaimKeeper, PlacedPodKeeper, PodKeeper
from tranche.kubernetes.api.node_rules import Taint
from tranche.kubernetes.claims.node_mode import NodeMode, mode_in_force
from tranche.kubernetes.claims.vocabulary import CapacityName, TaintKey
from tranche.kubernetes.devices.devices import DeviceCapacity, NodeDevice, counter_sets, devices_of
from tranche.kubernetes.devices.taints import TaintFacts, reasons_against, set_apart
from tranche.kubernetes.fleet.devices import FleetDevice, Pool, fleet_device
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import ClaimedDevice, FleetClaim, FleetNode
from tranche.kubernetes.gated.leases import ChosenShare, NodeGpus, as_if_by_claims


def fleet_of(
    nodes: Mapping[str, FleetNode],
    said: Mapping[str, NodeGpus],
    chosen: Mapping[str, Mapping[str, ChosenShare]],
    unknown: Iterable[str] = (),
    unread: Mapping[str, str] | None = None,
) -> Fleet:
    """The cluster from the agents' reports and the choices, by node and pod uid. `unknown` nodes cannot be read."""
    pools = {name: Pool(name, complete=False) for name in unknown}
    claims: list[FleetClaim] = []
    for name, each in said.items():
        # A caller who may not read nodes sees what the agent offers by the mode that it knows.
        mode = mode_in_force(nodes[name].labels) if name in nodes else NodeMode.MIXED
        pool, held = _node(each, mode, chosen.get(name, {}))
        if pool is not None:
            pools.setdefault(name, pool)
        claims += held
    ordered = tuple(sorted(nodes.values(), key=lambda each: each.name))
    return Fleet(ordered, pools, tuple(claims), dict(unread or {}))


def _node(
    said: NodeGpus, mode: NodeMode, chosen: Mapping[str, ChosenShare]
) -> tuple[Pool | None, tuple[FleetClaim, ...]]:
    """What a node offers, None if nothing, and who has which devices."""
    # Lost GPUs are still shown: their last state is known.
    present = replace(said.view.node, gpus=tuple(replace(gpu, lost=False) for gpu in said.view.node))
    every = devices_of(present)
    held = tuple(_holdings(said.node, every, said.view, chosen))
    names = {each.device for claim in held for each in claim.given}
    busy = {each.gpu_uuid for each in every if each.name in names}
    offered = tuple(each for each in every if mode.by_claims or each.gpu_uuid in busy)
    if not offered:
        return None, ()
    # Shares say what pods have, not taints.
    told = as_if_by_claims(said.view)
    kept = {each.place for each in said.view.withheld if each.for_large}
    places = [each.place for each in said.view.withheld if each.faulty]
    faulty = frozenset(each for each in places if isinstance(each, WholeGpu | Slice))
    reasons = reasons_against(offered, told, TaintFacts(mode, faulty))
    kept_for = [each for each in offered if each.sharing is None and each.offered in kept]
    offered, reasons = set_apart(offered, kept_for, reasons)
    counters = counter_sets(present)
    return Pool(said.node, tuple(_device(said.node, each, reasons) for each in offered), counters), held


def _device(node: str, device: NodeDevice, reasons: Mapping[str, Sequence[TaintKey]]) -> FleetDevice:
    memory = device.capacity.get(CapacityName.MEMORY, DeviceCapacity(0))
    amounts = {name: each.value for name, each in device.capacity.items()}
    return replace(
        fleet_device(node, device.name, device.attributes, amounts),
        least=memory.least,
        step=memory.step,
        counter_set=device.counter_set,
        counters=device.counters,
        taints=tuple(Taint(key, "NoSchedule") for key in reasons.get(device.name, ())),
    )


def _holdings(
    node: str, devices: Iterable[NodeDevice], view: NodeView, chosen: Mapping[str, ChosenShare]
) -> Iterator[FleetClaim]:
    """What pods have or are about to have, each as a claim without a name."""
    by_offer = {(each.offered.gpu_uuid, each.offered.slot, each.sharing is None): each for each in devices}

    def given(grants: Iterable[Grant]) -> tuple[ClaimedDevice, ...]:
        found = (
            (each, by_offer.get((each.gpu_uuid, each.slot, not isinstance(each, FractionalShare)))) for each in grants
        )
        return tuple(_given(node, each, device) for each, device in found if device is not None)

    taken = {each.keeper.uid for each in view.allocations if isinstance(each.keeper, ChosenFor)}
    for each in view.allocations:
        match each.keeper:
            case ClaimKeeper(namespace, name, uid):
                yield FleetClaim(namespace, name, uid, allocated=True, given=given(each.grants))
            case PlacedPodKeeper(namespace, name, uid):
                yield _of_pod(namespace, name, uid, given(each.grants))
            case PodKeeper() as keeper if keeper.admitted:
                yield _of_pod(keeper.namespace, keeper.name, f"{keeper.resource} {each.id}", given(each.grants))
    for uid, choice in chosen.items():
        if uid not in taken:
            yield _of_pod(choice.namespace, choice.name, uid, given(choice.grants))


def _given(node: str, grant: Grant, device: NodeDevice) -> ClaimedDevice:
    if isinstance(grant, FractionalShare):
        return ClaimedDevice(node, device.name, memory=grant.memory, compute=grant.compute)
    return ClaimedDevice(node, device.name)


def _of_pod(namespace: str, name: str, uid: str, given: tuple[ClaimedDevice, ...]) -> FleetClaim:
    return FleetClaim(namespace, "", uid, allocated=True, given=given, pods=(name,))
