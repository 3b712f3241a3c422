"""Why pods wait and what a request would get: the words of the planning, and of nobody whom the viewer may not see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.dashboard.cluster.teams import OUR_SIGHT, OURS, THEIRS, shared_machines
from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fleet.clusters import a100s as fleet_gpus
from tests.kubernetes.fleet.clusters import decode_pools, published
from tests.kubernetes.fleet.clusters import node as node_object
from tests.strategies import requests
from tranche.core.allocation import NodeView
from tranche.core.request import Request, parse_request
from tranche.dashboard.cluster.snapshot import NameVisibility
from tranche.dashboard.cluster.waiting_page import (
    answered,
    cluster_queue_page,
    explain_pending,
    explain_request,
    gate_fleet,
    giving,
    in_order,
    redacted_fleet,
)
from tranche.dashboard.queue_page import ask_page
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.fleet.explanation import WaitStatus
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import ClaimedDevice, FleetClaim, FleetNode, FleetPod, decode_fleet_node
from tranche.kubernetes.gated.reading import GateFleet
from tranche.planning.decide.allocate import ChosenMachine, decide_across

EVERYBODY = NameVisibility(everywhere=True)
MIXED = {"tranche.dev/mode": "mixed"}


@given(shared_machines(), requests())
def test_no_word_about_a_gated_pod_or_a_request_names_a_hidden_team(view: NodeView, request: Request) -> None:
    nodes = {"n1": FleetNode("n1", labels=MIXED)}
    gates = gate_fleet({"n1": view}, nodes, OUR_SIGHT)
    request = replace(request, gpu_model="")
    pod = FleetPod(OURS, f"{OURS}-waits", gated=True, by_gate=request)
    waiting = explain_pending(pod, Fleet(), gates, AllocationBackend.GATES)
    asked = explain_request(request, gates, AllocationBackend.GATES)
    pages = [ask_page({"kind": "gpus", "amount": "1"}, lambda _: answered(asked))]
    if waiting is not None:
        pages.append(cluster_queue_page([(pod, waiting)], 0, 0, (), 2e9))
    assert THEIRS not in "".join(str(each.live) for each in pages)


@given(shared_machines(), requests())
def test_a_request_is_answered_as_the_controller_would_decide(view: NodeView, request: Request) -> None:
    nodes = {name: FleetNode(name, labels=MIXED) for name in ("n1", "n2")}
    gates = gate_fleet({"n1": view, "n2": a100s(1)}, nodes, EVERYBODY)
    found, decided = explain_request(request, gates, AllocationBackend.GATES), decide_across(gates.views, request)
    if isinstance(decided, ChosenMachine):
        assert found.status is WaitStatus.STARTABLE
        assert found.message == f"node {decided.name} can serve it now: {decided.granted.note}"
    else:
        assert found.status is (WaitStatus.WAITING if decided.possible else WaitStatus.IMPOSSIBLE)
        assert sum(each.count for each in found.groups) + found.unnamed == 2


def test_only_nodes_that_give_shares_by_demand_and_take_pods_are_asked() -> None:
    request = parse_request(gpu_memory="4Gi")
    views = {"static": a100s(1), "cordoned": a100s(1), "gone": a100s(1)}
    nodes = {"static": FleetNode("static"), "cordoned": FleetNode("cordoned", unschedulable=True, labels=MIXED)}
    found = explain_request(request, gate_fleet(views, nodes, EVERYBODY), AllocationBackend.GATES)
    assert [(each.reason, each.nodes) for each in found.groups] == [("NodeCordoned", ("cordoned",))]
    assert (
        explain_request(request, gate_fleet({}, nodes, EVERYBODY), AllocationBackend.GATES).status
        is WaitStatus.IMPOSSIBLE
    )
    nodes["ready"] = FleetNode("ready", labels=MIXED)
    views["ready"] = a100s(1)
    found = explain_request(request, gate_fleet(views, nodes, EVERYBODY), AllocationBackend.GATES)
    assert (found.status, "node ready can serve it now" in found.message) == (WaitStatus.STARTABLE, True)


def test_claims_of_other_namespaces_hold_what_they_hold_without_a_name() -> None:
    slices = published("n1", fleet_gpus(1))
    pools = decode_pools(slices)
    node = decode_fleet_node(node_object("n1", mode="mixed"))
    device = next(each for each in pools["n1"].devices if not each.shared and not each.profile)
    held = tuple(
        FleetClaim(
            THEIRS, f"{THEIRS}-claim", f"uid-{number}", allocated=True, given=(ClaimedDevice("n1", device.name),)
        )
        for number in range(1)
    )
    fleet = Fleet((node,), pools, held)
    pod = FleetPod(OURS, "waits", limits={"nvidia.com/gpu": 1})
    before = explain_pending(pod, fleet, GateFleet(), AllocationBackend.CLAIMS)
    redacted = explain_pending(pod, redacted_fleet(fleet, OUR_SIGHT), GateFleet(), AllocationBackend.CLAIMS)
    assert before is not None
    assert redacted is not None
    assert THEIRS in str(before)
    assert THEIRS not in str(redacted)
    assert before.status == redacted.status
    assert redacted_fleet(fleet, EVERYBODY) is fleet


def test_who_came_first_comes_first_and_who_asks_for_no_gpu_is_not_there() -> None:
    first, second = (
        FleetPod(OURS, "b", created="2026-11-22T10:00:00Z"),
        FleetPod(OURS, "a", created="2026-11-22T10:00:01Z"),
    )
    assert in_order([second, first]) == [first, second]
    assert not first.asks
    assert explain_pending(first, Fleet(), GateFleet(), AllocationBackend.CLAIMS) is None


@pytest.mark.parametrize("backend", AllocationBackend)
def test_who_waits_in_a_way_that_the_cluster_has_left_is_told_so(backend: AllocationBackend) -> None:
    gates = gate_fleet({"n1": a100s(1)}, {"n1": FleetNode("n1", labels=MIXED)}, OUR_SIGHT)
    at_gate = FleetPod(OURS, "b", gated=True, by_gate=parse_request(gpu_memory="4Gi"))
    with_claim = FleetPod(OURS, "c", claims={"gpu": "a-claim"})
    found = [explain_pending(each, Fleet(), gates, backend) for each in (at_gate, with_claim)]
    words = ["" if each is None else each.message for each in found]
    by_gate, by_claim = (
        "now assigns shares through claims" in words[0],
        "now assigns shares at scheduling gates" in words[1],
    )
    assert (by_gate, by_claim) == (backend in BY_CLAIMS, backend is AllocationBackend.GATES)
    assert ("can serve it now" in words[0]) is not by_gate


def test_a_cluster_that_gives_no_shares_by_demand_would_give_none_to_a_request() -> None:
    gates = gate_fleet({"n1": a100s(1)}, {"n1": FleetNode("n1", labels=MIXED)}, EVERYBODY)
    request = parse_request(gpu_memory="4Gi")
    statuses = {backend: explain_request(request, gates, backend).status for backend in AllocationBackend}
    assert statuses.pop(AllocationBackend.NONE) is WaitStatus.IMPOSSIBLE
    assert set(statuses.values()) == {WaitStatus.STARTABLE}


@pytest.mark.parametrize("backend", [AllocationBackend.CLAIMS, AllocationBackend.GATES])
def test_a_node_that_has_only_the_label_of_a_mode_gives_nothing_to_a_pod_and_to_a_request(
    backend: AllocationBackend,
) -> None:
    node = decode_fleet_node(node_object("n1", mode="mixed"))
    gates, request = gate_fleet({"n1": a100s(1)}, {"n1": node}, EVERYBODY), parse_request(gpu_memory="4Gi")
    pod = FleetPod(OURS, "waits", limits={"nvidia.com/gpu": 1})
    asked = explain_request(request, giving(gates, Fleet((node,)), backend), backend)
    waiting = explain_pending(pod, Fleet((node,)), giving(gates, Fleet((node,)), backend), backend)
    assert (asked.status, asked.message.startswith("no node that you can see")) == (WaitStatus.IMPOSSIBLE, True)
    assert waiting is not None
    assert (waiting.status, waiting.groups[0].reason) == (WaitStatus.IMPOSSIBLE, "NoDevices")
    # As soon as it does what the label says, both are told so.
    raw = node_object("n1", mode="mixed")
    handing = decode_fleet_node({**raw, "status": {**raw["status"], "capacity": {"tranche.dev/share": "250"}}})
    gates = gate_fleet({"n1": a100s(1)}, {"n1": handing}, EVERYBODY)
    fleet = Fleet(
        (handing,), decode_pools(published("n1", fleet_gpus(1))) if backend is AllocationBackend.CLAIMS else {}
    )
    assert explain_request(request, giving(gates, fleet, backend), backend).status is WaitStatus.STARTABLE


def test_whoever_sees_few_nodes_is_told_that_the_others_were_not_asked_and_of_nothing_that_it_is_impossible() -> None:
    node, request = FleetNode("n1", labels=MIXED), parse_request(gpu_memory="400Gi")
    pod = FleetPod(OURS, "waits", limits={"nvidia.com/gpu": 1})
    gated = FleetPod(OURS, "gated", gated=True, by_gate=request)
    for whole in (True, False):
        gates = replace(gate_fleet({"n1": a100s(1)}, {"n1": node}, OUR_SIGHT), whole=whole)
        none = replace(gate_fleet({}, {"n1": node}, OUR_SIGHT), whole=whole)
        said = [
            explain_request(request, gates, AllocationBackend.GATES),
            explain_request(request, none, AllocationBackend.GATES),
            *(
                found
                for each, fleet in ((pod, Fleet((node,))), (pod, Fleet()), (gated, Fleet()))
                if (found := explain_pending(each, replace(fleet, whole=whole), gates, AllocationBackend.GATES))
            ),
        ]
        assert len(said) == 5
        for each in said:
            assert each.status is (WaitStatus.IMPOSSIBLE if whole else WaitStatus.WAITING), each
            assert each.message.endswith("; nodes that you have no permission to see were not checked") is not whole
    # What one node says is true whatever the others would say.
    assert (
        explain_request(parse_request(gpu_memory="4Gi"), gates, AllocationBackend.GATES).status is WaitStatus.STARTABLE
    )
