"""What of a node's GPUs is withheld from those whose share a controller chooses: what is faulty, and room that is kept. Pure.

The rules are those of devices for claims: `tranche.kubernetes.node.device_health_watch`, `tranche.kubernetes.devices.taints`.
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
    """The places, given why devices are faulty and the sizes that are kept. `before` is what was withheld until now: what is kept
    stays where it is as long as other places are no better. The view withholds what is cordoned.
    """
    found = list(view.withheld)
    found += [
        WithheldDevice(place, f"{_text(place)} has reported an error ({why})", faulty=True)
        for place, why in faults.items()
    ]
    if sizes and mode.by_claims:
        devices = devices_of(view.node)
        told = as_if_by_claims(view)
        reasons = reasons_against(devices, told, TaintFacts(mode, frozenset(faults)))
        kept = {each.place for each in before if each.for_large}
        names = {each.name for each in devices if each.sharing is None and each.offered in kept}
        places = kept_places(devices, told, sizes, reasons, names)
        found += [
            WithheldDevice(each.offered, f"{_text(each.offered)} is kept for larger requests", for_large=True)
            for each in places
        ]
    return tuple(sorted(found, key=lambda each: (each.for_large, str(each.place))))


def as_if_by_claims(view: NodeView) -> NodeView:
    """The view in which pods have by claims what they have: what is theirs counts as given, and not as in the way."""
    return replace(view, allocations=tuple(map(_as_of_a_claim, view.allocations)))


def _text(place: WholeGpu | Slice) -> str:
    return f"{place.profile} at {place.placement}" if isinstance(place, Slice) else "it"


def _as_of_a_claim(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    if isinstance(keeper, PlacedPodKeeper) or (isinstance(keeper, PodKeeper) and keeper.admitted):
        return replace(allocation, keeper=ClaimKeeper(keeper.namespace, keeper.name, keeper.uid))
    return allocation
