"""Gated pods and their shares: what is chosen is there, once; what nobody can have waits with its reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import node_views, requests_for
from tranche.core.allocation import FractionalShare, NodeView, overlap
from tranche.core.request import Request, WholeGpus
from tranche.core.state import NodeState
from tranche.core.wire import grant_from_dict
from tranche.kubernetes.api.node_rules import Requirement, Taint, Toleration
from tranche.kubernetes.claims.vocabulary import SHARE_GATE
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.leases import ChosenShare
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod
from tranche.kubernetes.gated.scheduler.placer import (
    GpuNode,
    PodPlacement,
    UnplacedPod,
    choice_text,
    place,
    ungating,
    why_not,
)
from tranche.planning.decide.allocate import ChosenMachine, decide_across
from tranche.planning.decide.foresee import with_granted

NODES = ("a", "b", "c")
TAINT = Taint("gpu", "NoSchedule")
LABELS = st.dictionaries(st.sampled_from(["zone", "pool"]), st.sampled_from(["x", "y"]))


@st.composite
def rooms(draw: st.DrawFn, name: str) -> FleetNode:
    free = {"cpu": draw(st.integers(0, 3000)), "pods": draw(st.integers(0, 3))}
    taints = draw(st.lists(st.just(TAINT), max_size=1))
    return FleetNode(name, draw(LABELS), tuple(taints), draw(st.booleans()) and draw(st.booleans()), allocatable=free)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    needs = {"cpu": draw(st.integers(0, 1500)), "pods": 1}
    tolerations = draw(st.lists(st.sampled_from([Toleration("gpu", exists=True), Toleration(exists=True)]), max_size=1))
    term = st.just((Requirement("zone", "In", ("x",)),)) | st.just((Requirement("metadata.name", "NotIn", ("a",)),))
    terms = draw(st.none() | st.lists(term, min_size=1, max_size=2).map(tuple))
    selector = draw(st.sampled_from([{}, {}, {"pool": "x"}]))
    return {"needs": needs, "node_selector": selector, "terms": terms, "tolerations": tuple(tolerations)}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[GpuNode], list[ClusterPod]]:
    names = draw(st.lists(st.sampled_from(NODES), unique=True, min_size=1))
    nodes = [GpuNode(draw(rooms(name)), draw(node_views(max_gpus=2))) for name in names]
    pods = [
        ClusterPod(
            "team",
            f"p{number}",
            f"u{number}",
            draw(requests_for(draw(st.sampled_from(nodes)).view)),
            **draw(rules()),
            priority=draw(st.integers(0, 1)),
            created=str(draw(st.integers(0, 2))),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    return nodes, pods


@given(clusters())
def test_what_is_chosen_is_there_and_is_given_once(cluster: tuple[list[GpuNode], list[ClusterPod]]) -> None:
    nodes, pods = cluster
    found = place(pods, nodes)
    assert sorted(str(each.pod) for each in found) == sorted(map(str, pods))
    assert place(reversed(pods), reversed(nodes)) == found
    views = {node.room.name: node.view for node in nodes}
    free = {node.room.name: dict(node.room.allocatable) for node in nodes}
    for each in found:
        if isinstance(each, UnplacedPod):
            continue
        assert each.pod.request is not None
        room = next(node.room for node in nodes if node.room.name == each.node)
        # Each fits beside all that were placed before it.
        assert why_not(each.pod, replace(room, allocatable=free[each.node])) == ""
        for resource, amount in each.pod.needs.items():
            free[each.node][resource] -= amount
        before = [grant for allocation in views[each.node].allocations for grant in allocation.grants]
        for grant in each.granted.grants:
            clashes = [other for other in before if overlap(grant, other)]
            assert all(
                isinstance(grant, FractionalShare)
                and isinstance(other, FractionalShare)
                and other.device == grant.device
                for other in clashes
            )
        views[each.node] = with_granted(views[each.node], each.pod.request, each.granted)
    for view in views.values():
        _no_device_gives_more_memory_than_it_has(view)


def _no_device_gives_more_memory_than_it_has(view: NodeView) -> None:
    for gpu in view.node:
        parts = [
            grant for grant in view.grants_on(gpu.uuid) if isinstance(grant, FractionalShare) and grant.slot is None
        ]
        assert sum(each.memory for each in parts) <= gpu.memory


@given(clusters())
def test_a_pod_waits_only_when_no_node_can_have_it_and_says_why_of_each(
    cluster: tuple[list[GpuNode], list[ClusterPod]],
) -> None:
    nodes, pods = cluster
    (first, *_) = found = place(pods, nodes)
    by_name = {node.room.name: node for node in nodes}
    near = {name: node.view for name, node in by_name.items() if not why_not(first.pod, node.room)}
    assert first.pod.request is not None
    assert isinstance(first, PodPlacement) == isinstance(decide_across(near, first.pod.request), ChosenMachine)
    for each in found:
        if isinstance(each, UnplacedPod):
            assert each.reasons.keys() == by_name.keys()
            assert all(each.reasons.values())
    # Whoever stands in front is not changed by those behind.
    assert place([first.pod], nodes) == (first,)


def test_the_highest_priority_comes_first_and_then_the_oldest() -> None:
    def pod(name: str, priority: int, created: str) -> ClusterPod:
        return ClusterPod("team", name, name, Request(WholeGpus(1)), priority=priority, created=created)

    pods = [pod("late", 0, "2"), pod("early", 0, "1"), pod("urgent", 5, "3")]
    assert [each.pod.name for each in place(pods, [])] == ["urgent", "early", "late"]
    assert not any(each.possible for each in place(pods, []) if isinstance(each, UnplacedPod))


def pod_of(**rules: Any) -> ClusterPod:
    return ClusterPod("team", "p", "u1", **rules)


@pytest.mark.parametrize(
    ("rule", "node", "why"),
    [
        (pod_of(), FleetNode("n"), ""),
        (pod_of(), FleetNode("n", ready=False), "is not ready"),
        (pod_of(), FleetNode("n", unschedulable=True), "node.kubernetes.io/unschedulable"),
        (pod_of(tolerations=(Toleration(exists=True),)), FleetNode("n", unschedulable=True), ""),
        (pod_of(), FleetNode("n", taints=(Taint("a", "NoExecute"),)), "the taint a"),
        (pod_of(), FleetNode("n", taints=(Taint("a", "PreferNoSchedule"),)), ""),
        (
            pod_of(tolerations=(Toleration("a", "x"),)),
            FleetNode("n", taints=(Taint("a", "NoSchedule", "y"),)),
            "the taint a",
        ),
        (
            pod_of(tolerations=(Toleration("a", "y"),)),
            FleetNode("n", taints=(Taint("a", "NoSchedule", "y"),)),
            "",
        ),
        (
            pod_of(tolerations=(Toleration("a", effect="NoExecute", exists=True),)),
            FleetNode("n", taints=(Taint("a", "NoSchedule"),)),
            "the taint a",
        ),
        (pod_of(node_selector={"pool": "x"}), FleetNode("n", {"pool": "y"}), "pool=x"),
        (pod_of(terms=()), FleetNode("n"), "node affinity"),
        (pod_of(terms=((),)), FleetNode("n"), "node affinity"),
        (pod_of(needs={"cpu": 2}), FleetNode("n", allocatable={"cpu": 1}), "too little cpu"),
        (pod_of(needs={"cpu": 2}), FleetNode("n", allocatable={"cpu": 2}), ""),
        (pod_of(needs={"x/y": 1}), FleetNode("n"), "too little x/y"),
    ],
)
def test_what_keeps_a_pod_from_a_node(rule: ClusterPod, node: FleetNode, why: str) -> None:
    assert why in why_not(rule, node)
    assert bool(why) == bool(why_not(rule, node))


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (Requirement("zone", "In", ("x", "y")), True),
        (Requirement("zone", "In", ("y",)), False),
        (Requirement("gone", "NotIn", ("x",)), True),
        (Requirement("zone", "NotIn", ("x",)), False),
        (Requirement("zone", "Exists"), True),
        (Requirement("gone", "DoesNotExist"), True),
        (Requirement("cards", "Gt", ("3",)), True),
        (Requirement("cards", "Lt", ("-4",)), False),
        (Requirement("zone", "Gt", ("3",)), False),
        (Requirement("cards", "Gt", ("many",)), False),
        (Requirement("zone", "Resembles", ("x",)), False),
    ],
)
def test_a_requirement(requirement: Requirement, holds: bool) -> None:
    assert requirement.holds({"zone": "x", "cards": "4"}) is holds


@given(st.data(), node_views(max_gpus=2))
def test_what_is_written_on_the_pod_is_exactly_what_was_chosen(data: st.DataObject, view: NodeView) -> None:
    pod = ClusterPod("team", "p", "u1", data.draw(requests_for(view)))
    (found,) = place([pod], [GpuNode(FleetNode("n1"), view)])
    if isinstance(found, UnplacedPod):
        return
    text = json.loads(choice_text("n1", ChosenShare("team", "p", "u1", found.granted.grants)))
    assert text["node"] == "n1"
    assert tuple(map(grant_from_dict, text["grants"])) == found.granted.grants


def test_the_patch_binds_the_pod_writes_the_choice_and_takes_the_gate_away() -> None:
    choice = ChosenShare("team", "p", "u1", ())
    raw: dict[str, Any] = {
        "metadata": {"uid": "u1"},
        "spec": {"schedulingGates": [{"name": "other"}, {"name": SHARE_GATE}], "nodeSelector": {"pool": "x"}},
    }
    patch = ungating(raw, "n1", "host-1", choice)
    assert [(each["op"], each["path"]) for each in patch] == [
        ("test", "/metadata/uid"),
        ("test", "/spec/schedulingGates/1"),
        ("add", "/metadata/annotations"),
        ("add", "/spec/nodeSelector/kubernetes.io~1hostname"),
        ("remove", "/spec/schedulingGates/1"),
    ]
    assert patch[3]["value"] == "host-1"
    with pytest.raises(ValueError, match="share"):
        ungating({"spec": {}}, "n1", "host-1", choice)


def test_nothing_is_free_on_a_node_that_is_not_known_nor_on_one_that_has_refused_the_pod() -> None:
    pod = ClusterPod("team", "p", "u1", Request(WholeGpus(1)))
    (found,) = place([pod], [], unknown={"dark": "its agent says nothing"})
    assert isinstance(found, UnplacedPod)
    assert (found.reasons, found.possible) == ({"dark": "its agent says nothing"}, True)
    here = GpuNode(FleetNode("n1"), NodeView(NodeState(())))
    (kept,) = place([pod], [here], avoided={"u1": frozenset({"n1"})})
    assert isinstance(kept, UnplacedPod)
    assert "refused the pod" in kept.reasons["n1"]
