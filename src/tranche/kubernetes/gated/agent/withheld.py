"""Which parts of a node's GPUs are withheld from gated pods: faulty devices and kept room. Pure.

Devices for claims follow the same rules: `tranche.kubernetes.node.gpu_events`, `tranche.kubernetes.devices.taints`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tranche.core.allocation import Allocation, NodeView, Slice, WholeGpu, WithheldDevice
from tranche.core.keeper import ClaimKeeper, PlacedPodKeeper, PodKeeper
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import KeptRoom, TaintFacts, kept_places, reasons_against


def withheld_places(
    view: NodeView,
    mode: NodeMode,
    faults: Mapping[WholeGpu | Slice, str],
    sizes: Sequence[KeptRoom] = (),
    before: Collection[WithheldDevice] = (),
) -> tuple[WithheldDevice, ...]:
    """The withheld places, given why devices are faulty and which sizes are kept. `before` is what was withheld until now: kept
    room stays where it is unless another place is better. The view itself withholds what is cordoned.
    """
    found = list(view.withheld)
    found += [
        WithheldDevice(place, f"{_text(place)} reported an error ({why})", faulty=True) for place, why in faults.items()
    ]
    if sizes and mode.by_claims:
        devices = devices_of(view.node)
        told = as_if_by_claims(view)
        reasons = reasons_against(devices, told, TaintFacts(mode, frozenset(faults)))
        kept = {each.place for each in before if each.for_large}
        names = {each.name for each in devices if each.sharing is None and each.offered in kept}
        places = kept_places(devices, told, sizes, reasons, names)
        found += [
            WithheldDevice(each.offered, f"{_text(each.offered)} is reserved for larger requests", for_large=True)
            for each in places
        ]
    return tuple(sorted(found, key=lambda each: (each.for_large, str(each.place))))


def as_if_by_claims(view: NodeView) -> NodeView:
    """The view as if pods had their shares by claims: the shares then count as given, not as obstacles."""
    return replace(view, allocations=tuple(map(_as_of_a_claim, view.allocations)))


def _text(place: WholeGpu | Slice) -> str:
    return f"{place.profile} at {place.placement}" if isinstance(place, Slice) else "it"


def _as_of_a_claim(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    if isinstance(keeper, PlacedPodKeeper) or (isinstance(keeper, PodKeeper) and keeper.admitted):
        return allocation._replace(keeper=ClaimKeeper(keeper.namespace, keeper.name, keeper.uid))
    return allocation
