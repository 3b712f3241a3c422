"""Why a pod waits at the gate, as the planning says it; and what was chosen for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fake_api_server import api_server
from tests.kubernetes.gated.reports import gpus_to_lease
from tests.strategies import node_views, requests_for
from tranche.core.allocation import Allocation, NodeView, Phase
from tranche.core.keeper import NOT_KNOWN_YET, Keeper, PodKeeper
from tranche.core.request import Request, parse_request
from tranche.core.wire import grant_to_dict
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.fleet.explanation import WaitStatus
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod, decode_fleet_pod
from tranche.kubernetes.gated.explaining import chosen_text, explain_gated
from tranche.kubernetes.gated.leases import (
    CHOICES,
    ChoiceLease,
    ChosenShare,
    NodeGpus,
    choices_to_lease,
    with_choices,
)
from tranche.kubernetes.gated.reading import GateFleet, read_gate_fleet
from tranche.planning.decide.allocate import ChosenMachine, Granted, decide, decide_across

WAITS = FleetPod("team", "p", gated=True, uid="u1")
SHARE = "tranche.dev/share"


def fleet_of(**views: NodeView) -> GateFleet:
    said = {name: NodeGpus(name, view) for name, view in views.items()}
    return GateFleet({name: FleetNode(name) for name in views}, said, views)


@given(st.data(), st.lists(node_views(max_gpus=2), min_size=1, max_size=3))
def test_it_says_what_the_placer_would_do(data: st.DataObject, views: list[NodeView]) -> None:
    named = {f"n{number}": view for number, view in enumerate(views)}
    request: Request = data.draw(requests_for(data.draw(st.sampled_from(views))))
    found = explain_gated(WAITS, request, fleet_of(**named))
    decided = decide_across(named, request)
    if isinstance(decided, ChosenMachine):
        assert found.status is WaitStatus.STARTABLE
    else:
        assert found.status is (WaitStatus.WAITING if decided.possible else WaitStatus.IMPOSSIBLE)
        assert sum(each.count for each in found.groups) + found.unnamed == len(named)
    assert all(each.text and each.reason for each in found.groups)


def test_nodes_that_are_out_say_why_and_what_would_help_is_named() -> None:
    view, request = a100s(1), parse_request(gpu_memory="30Gi")
    granted = decide(view, request)
    assert isinstance(granted, Granted)
    fleet = fleet_of(cordoned=view, small=a100s(1))
    fleet = replace(
        fleet,
        nodes={
            "cordoned": FleetNode("cordoned", unschedulable=True),
            "small": FleetNode("small"),
            "bare": FleetNode("bare"),
        },
        unknown={"dark": "lease tranche-report-dark does not say what GPUs there are"},
    )
    found = explain_gated(WAITS, parse_request(gpus="2"), fleet)
    reasons = {name: each.reason for each in found.groups for name in each.nodes}
    assert reasons.keys() == {"cordoned", "small", "bare", "dark"}
    assert reasons["cordoned"] == "NodeCordoned"
    assert reasons["bare"] == "NoDevices"
    assert "none of" in found.message


def test_what_was_chosen_is_said_and_so_is_why_a_node_refuses() -> None:
    view, request = a100s(1), parse_request(mig_profile="2g.10gb")
    pod, fleet = given_pod(view)
    found = explain_gated(pod, request, fleet)
    assert (found.status, "hands the share over when the container starts" in found.message) == (
        WaitStatus.PREPARING,
        True,
    )
    assert "2g.10gb" in found.message
    assert "node n1" in found.message
    held = with_choices(view, fleet.chosen["n1"].values())
    handed = replace(fleet, said={"n1": NodeGpus("n1", held)})
    assert explain_gated(pod, request, handed).status is WaitStatus.HAS
    assert explain_gated(replace(pod, phase="Running"), request, fleet).status is WaitStatus.HAS
    refusing = replace(fleet, said={"n1": NodeGpus("n1", view, 1, {"u1": "it is taken"})})
    refused = explain_gated(pod, request, refusing)
    assert (refused.status, "cannot hand it over yet: it is taken" in refused.message) == (WaitStatus.PREPARING, True)
    unbound = explain_gated(replace(pod, node="", message="0/2 nodes"), request, GateFleet())
    assert "the scheduler has not bound it yet: 0/2 nodes" in unbound.message
    assert explain_gated(replace(pod, phase="Failed"), request, GateFleet()).status is WaitStatus.FINISHED


def given_pod(view: NodeView) -> tuple[FleetPod, GateFleet]:
    """A pod that was let go with a slice, and the fleet with that choice."""
    granted = decide(view, parse_request(mig_profile="2g.10gb"))
    assert isinstance(granted, Granted)
    choice = ChosenShare("team", "p", "u1", granted.grants)
    text = json.dumps({"node": "n1", "grants": [grant_to_dict(each) for each in granted.grants]})
    pod = replace(WAITS, gated=False, node="n1", chosen=text)
    return pod, replace(fleet_of(n1=view), chosen={"n1": {"u1": choice}})


def test_the_pods_own_annotation_is_believed_where_nothing_else_is_known_and_nowhere_else() -> None:
    view, request = a100s(1), parse_request(mig_profile="2g.10gb")
    pod, fleet = given_pod(view)
    (whole,) = (each for each in [decide(view, parse_request(gpus="1"))] if isinstance(each, Granted))
    edited = json.dumps({"node": "n1", "grants": [grant_to_dict(each) for each in whole.grants]})
    liar = replace(pod, chosen=edited)
    assert "2g.10gb" in explain_gated(liar, request, fleet).message
    assert chosen_text(liar, fleet) == chosen_text(pod, fleet)
    unread = GateFleet(unread={"leases of GPU nodes": "no"})
    found = explain_gated(liar, request, unread)
    assert "2g.10gb" not in found.message
    assert "comes from the pod's own annotation" in found.notes[-1]
    nothing = explain_gated(replace(pod, uid="u2"), request, fleet)
    assert nothing.status is WaitStatus.IMPOSSIBLE
    assert "the controller chose no share for it" in nothing.message
    assert SHARE in nothing.remedies[0]
    assert chosen_text(replace(pod, uid="u2"), fleet) == ""


@pytest.mark.parametrize(
    ("annotations", "container", "words"),
    [
        ({}, {}, "no annotation requests one"),
        ({"tranche.dev/gpu": "much"}, {}, "much"),
        ({"tranche.dev/gpu": "0.5", "tranche.dev/gpus": "1"}, {}, "request 2 different things"),
        ({"tranche.dev/gpus": "1"}, {"resources": {"limits": {SHARE: "2"}}}, "requests 2 of tranche.dev/share"),
        ({"tranche.dev/gpus": "1"}, {"resources": {}}, "no container requests tranche.dev/share"),
    ],
)
def test_a_pod_that_can_never_be_chosen_for_is_told_why(
    annotations: dict[str, str], container: dict[str, Any], words: str
) -> None:
    raw = {
        "metadata": {"namespace": "team", "name": "p", "uid": "u1", "annotations": annotations},
        "spec": {
            "schedulingGates": [{"name": SHARE}],
            "containers": [{"name": "main", "resources": {"limits": {SHARE: "1"}}} | container],
        },
        "status": {"phase": "Pending"},
    }
    pod = decode_fleet_pod(raw)
    assert words in pod.gate_problem
    found = explain_gated(pod, pod.by_gate, fleet_of(n1=a100s(1)))
    assert (found.status, found.message) == (
        WaitStatus.IMPOSSIBLE,
        f"it will remain gated forever: {pod.gate_problem}",
    )
    assert found.remedies


def test_nobody_is_called_by_an_id_of_his_node() -> None:
    view = a100s(1)
    whole = decide(view, parse_request(gpus="1"))
    assert isinstance(whole, Granted)
    taken = with_choices(view, [ChosenShare("team", "other", "u9", whole.grants)])
    found = explain_gated(WAITS, parse_request(gpus="1"), fleet_of(n1=taken))
    assert [each.text for each in found.groups] == ["held whole by pod team/other"]
    assert all("chosen-" not in text for text in (*found.remedies, found.message))


def test_a_pod_ends_as_one_and_others_without_a_name_are_told_apart() -> None:
    view, half = a100s(2), parse_request(mig_profile="3g.20gb")
    one, two = (PodKeeper("nvidia.com/gpu", "team", "p", each) for each in ("one", "two"))
    held: list[Keeper] = [one, two, NOT_KNOWN_YET, NOT_KNOWN_YET]
    for number, keeper in enumerate(held):
        granted = decide(view, half)
        assert isinstance(granted, Granted)
        share = Allocation(f"{number:08x}", half, granted.grants, Phase.ACTIVE, 0.0, "another namespace", keeper)
        view = replace(view, allocations=(*view.allocations, share))
    found = explain_gated(WAITS, parse_request(gpus="2"), fleet_of(n1=view))
    assert found.remedies[-1] == "on node n1: wait for another namespace, another namespace (2), pod team/p to end"
    assert {name for each in found.groups for name in each.holders} <= {
        "another namespace",
        "another namespace (2)",
        "pod team/p",
    }


def test_a_node_that_cannot_be_read_could_serve_it_as_the_controller_takes_it() -> None:
    dark = replace(fleet_of(n1=a100s(1)), unknown={"dark": "its lease cannot be read"})
    found = explain_gated(WAITS, parse_request(gpus="2"), dark)
    assert found.status is WaitStatus.WAITING
    assert found.message == "none of 2 nodes can serve it now; 1 of them could later"


def test_what_others_were_promised_counts_as_given_and_who_may_not_read_has_the_controllers_word() -> None:
    view, whole = a100s(1), parse_request(gpus="1")
    granted = decide(view, whole)
    assert isinstance(granted, Granted)
    leases = "/apis/coordination.k8s.io/v1/leases"
    raw: dict[str, Any] = {
        "metadata": {"namespace": "team", "name": "p", "uid": "u1", "annotations": {"tranche.dev/gpus": "1"}},
        "spec": {
            "schedulingGates": [{"name": SHARE}],
            "containers": [{"resources": {"limits": {SHARE: "1"}}}],
        },
        "status": {"phase": "Pending"},
    }
    pod = decode_fleet_pod(raw)
    assert pod.by_gate == whole

    async def act() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            try:
                first = gpus_to_lease(NodeGpus("n1", view), ("n1", "uid"))
                chosen = choices_to_lease(
                    ChoiceLease("n1").with_choices([ChosenShare("team", "other", "u9", granted.grants)])
                )
                for lease in (first, chosen):
                    meta = {"labels": dict(lease.labels), "annotations": dict(lease.annotations)}
                    server.put(f"{leases}/{lease.name}", {"metadata": meta})
                server.put("/api/v1/nodes/n1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
                fleet = await read_gate_fleet(connection, pod)
                waiting = explain_gated(pod, whole, fleet)
                assert waiting.status is WaitStatus.WAITING
                assert [each.holders for each in waiting.groups] == [("pod team/other",)]
                assert waiting.remedies == ("on node n1: wait for pod team/other to end",)
                del server.objects[f"{leases}/tranche-{CHOICES}-n1"]
                fleet = await read_gate_fleet(connection, pod)
                assert explain_gated(pod, whole, fleet).status is WaitStatus.STARTABLE
                server.refusals["GET", "/leases"] = (403, {"message": "no"})
                event = {"reason": "WaitsForShare", "message": "no node can serve it", "involvedObject": {"name": "p"}}
                server.put("/api/v1/namespaces/team/events/e", event)
                found = explain_gated(pod, whole, await read_gate_fleet(connection, pod))
                assert found.message == "no node can serve it"
                assert "no permission to read leases of GPU nodes" in found.notes[0]
            finally:
                await connection.aclose()

    asyncio.run(act())
