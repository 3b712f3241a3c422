"""Why a pod waits at the gate, as the planning says it; and what was chosen for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.dra.test_order import a100s
from tests.kubernetes.fake_api_server import api_server
from tests.strategies import node_views, requests_for
from tranche.core.allocation import NodeView
from tranche.core.request import Request, parse_request
from tranche.core.wire import grant_to_dict
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.fleet.explanation import WaitStatus
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod, decode_fleet_pod
from tranche.kubernetes.gates.explaining import explain_gated
from tranche.kubernetes.gates.leases import (
    CHOICES,
    NodeChoices,
    NodeGpus,
    ShareChoice,
    choices_to_lease,
    gpus_to_lease,
)
from tranche.kubernetes.gates.reading import GateFleet, read_gate_fleet
from tranche.planning.across import ChosenMachine, decide_across
from tranche.planning.allocate import Granted, decide

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
        unknown={"dark": "lease tranche-gpus-dark does not say what GPUs there are"},
    )
    found = explain_gated(WAITS, parse_request(gpus="2"), fleet)
    reasons = {name: each.reason for each in found.groups for name in each.nodes}
    assert reasons.keys() == {"cordoned", "small", "bare", "dark"}
    assert reasons["cordoned"] == "NodeCordoned"
    assert reasons["bare"] == "NoDevices"
    assert "none of" in found.message


def test_what_was_chosen_is_said_and_so_is_why_a_node_refuses() -> None:
    view = a100s(1)
    granted = decide(view, parse_request(mig_profile="2g.10gb"))
    assert isinstance(granted, Granted)
    text = json.dumps({"node": "n1", "grants": [grant_to_dict(each) for each in granted.grants]})
    pod = replace(WAITS, gated=False, node="n1", chosen=text)
    request = parse_request(mig_profile="2g.10gb")
    found = explain_gated(pod, request, fleet_of(n1=view))
    assert found.status is WaitStatus.HAS
    assert "2g.10gb" in found.message
    assert "node n1" in found.message
    refusing = replace(fleet_of(n1=view), said={"n1": NodeGpus("n1", view, 1, {"u1": "it is taken"})})
    refused = explain_gated(pod, request, refusing)
    assert (refused.status, "cannot hand it over yet: it is taken" in refused.message) == (WaitStatus.PREPARING, True)
    unbound = explain_gated(replace(pod, node="", message="0/2 nodes"), request, GateFleet())
    assert "the scheduler has yet to bind it: 0/2 nodes" in unbound.message
    assert explain_gated(replace(pod, phase="Failed"), request, GateFleet()).status is WaitStatus.FINISHED


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
                    NodeChoices("n1").with_choices([ShareChoice("team", "other", "u9", granted.grants)])
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
                event = {"reason": "WaitsForShare", "message": "no node can give it", "involvedObject": {"name": "p"}}
                server.put("/api/v1/namespaces/team/events/e", event)
                found = explain_gated(pod, whole, await read_gate_fleet(connection, pod))
                assert found.message == "no node can give it"
                assert "may not read what nodes have" in found.notes[0]
            finally:
                await connection.close()

    asyncio.run(act())
