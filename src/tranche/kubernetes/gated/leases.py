"""The two leases of a node that a controller reads: the agent's report of what may be chosen, and the choices for pods. Pure.

Only one program writes each lease, and it replaces the version that it read: a controller with an older version cannot add a
choice. The report has the node's whole view, so the controller decides by the planning of one machine. The node's mode limits
what the controller may choose.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.core.allocation import Allocation, ComputeSlice, Grant, NodeView, Slice, WholeGpu, WithheldDevice
from tranche.core.errors import TrancheError, UsageError
from tranche.core.json_text import read_json
from tranche.core.keeper import ChosenFor, ClaimKeeper, PlacedPodKeeper, PodKeeper
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.core.wire import grant_from_dict, grant_to_dict
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import KeptRoom, TaintFacts, kept_places, reasons_against
from tranche.kubernetes.telling.told_view import GPUS, NODE, bare, lease_name, told_from_lease, told_node
from tranche.planning.decide.realise import given, realise
from tranche.planning.steps.plan import Plan, apply


def offered_view(view: NodeView, mode: NodeMode) -> NodeView:
    """The view limited to what the mode offers.

    The driver sets a memory limit on a control group, and no container has one before its share is handed over.
    """
    uses = {gpu.uuid: _use(view.use_of(gpu.uuid), mode) for gpu in view.node}
    sharing = replace(view.node.sharing, offered=view.node.sharing.offered - {Sharing.MEMORY_LIMITS})
    return replace(view, node=replace(view.node, sharing=sharing), uses=uses)


def _use(word: GpuPolicy, mode: NodeMode) -> GpuPolicy:
    slices = mode.offers_slices and word in (GpuPolicy.AUTO, GpuPolicy.MIG)
    parts = mode.offers_parts and word in (GpuPolicy.AUTO, GpuPolicy.SHARED)
    if slices and parts:
        return GpuPolicy.AUTO
    if slices:
        return GpuPolicy.MIG
    return GpuPolicy.SHARED if parts else GpuPolicy.OFF


CHOICES = "choices"

_CHOICES = "tranche.dev/choices"


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What may be chosen on a node. `generation` grows with each change.

    `refused` says why pods, by uid, cannot have their chosen share.
    """

    node: str
    view: NodeView
    generation: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChosenShare:
    """What was chosen for a pod: grants on one node. `seen` is the generation of the node's GPUs that the choice is based on."""

    namespace: str
    name: str
    uid: str
    grants: tuple[Grant, ...]
    seen: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceLease:
    """The choices of one node, by pod uid. `lease` is what they were read from, None before the first exists.

    `owner` is the name and uid of the node object, which owns a new lease.
    """

    node: str
    choices: Mapping[str, ChosenShare] = field(default_factory=dict)
    lease: Lease | None = None
    owner: tuple[str, str] | None = None

    def with_choices(self, added: Iterable[ChosenShare]) -> ChoiceLease:
        """These choices and the added ones."""
        return replace(self, choices={**self.choices, **{each.uid: each for each in added}})

    def without(self, uids: Iterable[str]) -> ChoiceLease:
        """The choices without those of these pods."""
        gone = set(uids)
        return replace(self, choices={uid: each for uid, each in self.choices.items() if uid not in gone})


def gpus_from_lease(lease: Lease) -> NodeGpus:
    """What may be chosen on a node; UsageError when the report does not say or cannot be read: nothing counts as free then."""
    told = told_from_lease(lease)
    if told.offer is None:
        raise UsageError(f"lease {lease.name} does not describe the node's GPUs for gated pods")
    view = replace(offered_view(bare(told.view), told.offer.mode), withheld=told.offer.withheld)
    return NodeGpus(told.node, view, told.generation, told.offer.refused)


def node_of(lease: Lease) -> str:
    """The node that a lease of either kind is about, even if the rest cannot be read."""
    if lease.labels.get(PLACING_LABEL) == GPUS:
        return told_node(lease)
    return lease.annotations.get(NODE) or lease.name.removeprefix(lease_name(CHOICES, ""))


def choices_to_lease(chosen: ChoiceLease) -> Lease:
    """The lease of a node's choices, which replaces the version that they were read from."""
    data = {uid: _choice_to_dict(each) for uid, each in sorted(chosen.choices.items())}
    text = json.dumps(data, separators=(",", ":"))
    labels = {PLACING_LABEL: CHOICES}
    before = chosen.lease or Lease(lease_name(CHOICES, chosen.node), labels=labels, owner_node=chosen.owner)
    return replace(before, annotations={NODE: chosen.node, _CHOICES: text})


def choices_from_lease(lease: Lease) -> ChoiceLease:
    """What was chosen on a node; UsageError when it cannot be read, so that nothing is chosen next to unknown choices."""
    try:
        data = read_json(lease.annotations[_CHOICES])
        choices = {str(uid): _choice_from_dict(str(uid), each) for uid, each in data.items()}
        return ChoiceLease(lease.annotations[NODE], choices, lease)
    except (KeyError, ValueError, TypeError, AttributeError, TrancheError) as error:
        raise UsageError(f"lease {lease.name} contains no readable choices: {error}") from error


def _choice_to_dict(choice: ChosenShare) -> dict[str, Any]:
    grants = [grant_to_dict(each) for each in choice.grants]
    return {"namespace": choice.namespace, "name": choice.name, "grants": grants, "seen": choice.seen}


def _choice_from_dict(uid: str, data: Mapping[str, Any]) -> ChosenShare:
    grants = tuple(grant_from_dict(each) for each in data["grants"])
    return ChosenShare(str(data["namespace"]), str(data["name"]), uid, grants, int(data["seen"]))


CHOSEN = "chosen-"
"""The prefix of such shares' ids. The pod's uid follows."""


def with_choices(view: NodeView, choices: Iterable[ChosenShare]) -> NodeView:
    """The view after realising every choice that the node's agent has not taken up yet."""
    taken = {each.keeper.uid for each in view.allocations if isinstance(each.keeper, ChosenFor)}
    for choice in choices:
        if choice.uid in taken:
            continue
        grants = tuple(each for each in choice.grants if not isinstance(each, ComputeSlice))
        try:
            plan = realise(view, grants, f"for pod {choice.namespace}/{choice.name}")
        except TrancheError:
            continue  # the node no longer has this GPU, so it cannot be given to others either
        after = apply(plan, view) if isinstance(plan, Plan) else view
        view = given(after, f"{CHOSEN}{choice.uid}", choice.grants)
        keeper = PlacedPodKeeper(choice.namespace, choice.name, choice.uid)
        named = (each._replace(keeper=keeper) for each in view.allocations[-1:])
        view = replace(view, allocations=(*view.allocations[:-1], *named)) if choice.grants else view
    return view


def withheld_places(
    view: NodeView,
    mode: NodeMode,
    faults: Mapping[WholeGpu | Slice, str],
    sizes: Sequence[KeptRoom] = (),
    before: Collection[WithheldDevice] = (),
) -> tuple[WithheldDevice, ...]:
    """The withheld places, given why devices are faulty and which sizes are kept. `before` is what was withheld until now: kept
    room stays where it is unless another place is better. The view itself withholds what is cordoned. Devices for claims follow
    the same rules, by their taints.
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
