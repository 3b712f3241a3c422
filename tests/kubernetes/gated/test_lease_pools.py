"""What commands show of clusters without claims is what they would show with claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tests.strategies import node_views
from tranche.core.allocation import Allocation, NodeView, Phase, Slice, WholeGpu, WithheldDevice
from tranche.core.errors import TrancheError
from tranche.core.keeper import ClaimKeeper, PlacedPodKeeper, ProcessKeeper
from tranche.core.request import parse_request
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, kept_places, parse_kept, reasons_against, set_apart
from tranche.kubernetes.dra.pool import pool_contents
from tranche.kubernetes.fleet.devices import decode_fleet_slice, pools_of
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.fleet.overview import FleetNodeSummary, gpu_document, summaries
from tranche.kubernetes.gated.lease_pools import fleet_of
from tranche.kubernetes.gated.leases import ChosenShare, NodeGpus, offered_view, with_choices, withheld_places
from tranche.planning.decide.allocate import Granted, decide

Faults = Mapping[WholeGpu | Slice, str]
NO_FAULTS: Faults = {}
MIXED = FleetNode("n", labels={"tranche.dev/mode": "mixed"})
KINDS = (
    lambda number: ProcessKeeper(100 + number, 1),
    lambda number: ClaimKeeper("team", f"c{number}", f"u{number}"),
    lambda number: PlacedPodKeeper("team", f"p{number}", f"u{number}"),
)


def kept_by(view: NodeView, kind: int) -> NodeView:
    made = (each._replace(keeper=KINDS[kind](number)) for number, each in enumerate(view.allocations))
    return replace(view, allocations=tuple(made))


def by_leases(view: NodeView, *choices: ChosenShare, node: FleetNode = MIXED) -> FleetNodeSummary | None:
    return summary(leased(view, *choices, node=node))


def summary(fleet: Fleet) -> FleetNodeSummary | None:
    return next(iter(summaries(fleet)), None)


def leased(
    view: NodeView, *choices: ChosenShare, node: FleetNode = MIXED, faults: Faults = NO_FAULTS, keep: str = ""
) -> Fleet:
    offered = offered_view(view, NodeMode.MIXED)
    kept = withheld_places(offered, NodeMode.MIXED, faults, parse_kept(keep))
    said = NodeGpus("n", replace(offered, withheld=kept))
    return fleet_of({"n": node}, {"n": said}, {"n": {each.uid: each for each in choices}})


def published(view: NodeView, faults: Faults = NO_FAULTS, keep: str = "") -> Fleet:
    """The fleet by the ResourceSlices of the same node; nobody holds anything by claims."""
    offered = offered_view(view, NodeMode.MIXED)
    devices = devices_of(offered.node)
    reasons = reasons_against(devices, offered, TaintFacts(NodeMode.MIXED, frozenset(faults)))
    devices, reasons = set_apart(devices, kept_places(devices, offered, parse_kept(keep), reasons), reasons)
    contents = pool_contents("n", devices, offered, reasons, ())
    pool = {"name": "n", "generation": 1, "resourceSliceCount": len(contents)}
    raw = [
        {
            "metadata": {"name": each.name},
            "spec": {
                "driver": DRIVER,
                "nodeName": "n",
                "pool": pool,
                **({"devices": each.devices} if each.devices else {"sharedCounters": each.counters}),
            },
        }
        for each in contents
    ]
    return Fleet((MIXED,), pools_of(map(decode_fleet_slice, raw)))


@given(node_views(max_gpus=2), st.data())
def test_gpus_look_as_nodes_would_publish_them_for_claims(view: NodeView, data: st.DataObject) -> None:
    present = replace(view, node=replace(view.node, gpus=tuple(gpu for gpu in view.node if not gpu.lost)))
    sick = data.draw(st.lists(st.sampled_from(present.node.gpus), max_size=1)) if present.node.gpus else []
    faults: Faults = {WholeGpu(gpu.uuid): "XID 79" for gpu in sick}
    keep = data.draw(st.sampled_from(["", "whole=1", "2g.10gb, 3g.20gb=2"]))
    cordons = data.draw(st.lists(st.sampled_from(present.node.gpus), max_size=1)) if present.node.gpus else []
    withheld = tuple(WithheldDevice(WholeGpu(gpu.uuid), "cordoned by somebody") for gpu in cordons)
    alone = replace(kept_by(present, 0), withheld=withheld)
    leases, slices = leased(alone, faults=faults, keep=keep), published(alone, faults, keep)
    assert summary(leases) == summary(slices)
    assert leases.pools.keys() == slices.pools.keys()
    for name, pool in slices.pools.items():
        assert set(leases.pools[name].devices) == set(pool.devices)
        assert {each.name: each.counters for each in leases.pools[name].devices} == {
            each.name: each.counters for each in pool.devices
        }
        assert leases.pools[name].counters.items() >= pool.counters.items()


@given(node_views(max_gpus=2))
def test_it_is_all_the_same_whether_a_pod_has_its_share_by_a_claim_or_was_chosen_for(view: NodeView) -> None:
    claims, pods = by_leases(kept_by(view, 1)), by_leases(kept_by(view, 2))
    if claims is None or pods is None:
        assert claims is pods
        return
    assert claims.claims == pods.claims
    for one, other in zip(claims.gpus, pods.gpus, strict=True):
        assert replace(one, held=()) == replace(other, held=())
        assert {(each.device, each.given) for each in one.held} == {(each.device, each.given) for each in other.held}


@given(node_views(max_gpus=2))
def test_what_was_chosen_counts_as_held_before_the_agent_has_heard_of_it(view: NodeView) -> None:
    quiet = replace(kept_by(view, 0), allocations=())
    request = parse_request(gpu_memory="1Gi", isolation="none")
    try:
        found = decide(offered_view(quiet, NodeMode.MIXED), request)
    except TrancheError:
        return  # no state of this machine serves it
    if not isinstance(found, Granted):
        return
    choice = ChosenShare("team", "p", "u1", found.grants)
    shown = by_leases(quiet, choice)
    assert shown is not None
    held = [each for gpu in shown.gpus for each in gpu.held]
    assert [each.claim.holder for each in held] == ["pod team/p"] * len(found.grants)
    taken = Allocation("a", request, found.grants, Phase.ACTIVE, 0.0, keeper=PlacedPodKeeper("team", "p", "u1"))
    after = by_leases(replace(with_choices(quiet, [choice]), allocations=(taken,)), choice)
    assert after is not None
    assert [each.given for gpu in after.gpus for each in gpu.held] == [each.given for each in held]


def test_a_lost_gpu_is_shown_with_who_has_it_and_nodes_of_other_modes_by_their_resources() -> None:
    view = a100s(2)
    (gpu, other) = view.node
    granted = decide(view, parse_request(mig_profile="2g.10gb"))
    assert isinstance(granted, Granted)
    (grant,) = granted.grants
    assert isinstance(grant, Slice)
    keeper = PlacedPodKeeper("team", "p", "u1")
    held = Allocation("a", parse_request(mig_profile="2g.10gb"), (grant,), Phase.ACTIVE, 0.0, keeper=keeper)
    gpus = tuple(replace(each, lost=each.uuid == grant.gpu_uuid) for each in (gpu, other))
    lost = replace(view, node=replace(view.node, gpus=gpus), allocations=(held,))
    shown = by_leases(lost)
    assert shown is not None
    states = {each.uuid: each for each in shown.gpus}
    assert states[grant.gpu_uuid].state == "out: lost"
    assert [each.claim.holder for each in states[grant.gpu_uuid].held] == ["pod team/p"]
    assert gpu_document(states[grant.gpu_uuid])["held"][0]["claim"] is None
    static = FleetNode("n", labels={"tranche.dev/mode": "static"}, allocatable={"nvidia.com/gpu": 2})
    of_static = by_leases(view, node=static)
    assert of_static is not None
    assert (of_static.gpus, of_static.models) == ((), ("nvidia.com/gpu: 2",))
    # What pods still have of a node that gives nothing any more is shown.
    still = by_leases(lost, node=static)
    assert still is not None
    assert [each.uuid for each in still.gpus] == [grant.gpu_uuid]


def test_a_node_of_which_nothing_can_be_read_is_there_and_publishing() -> None:
    (found,) = summaries(fleet_of({"n": MIXED}, {}, {}, ["n"]))
    assert (found.node, found.complete, found.gpus) == (MIXED, False, ())
