"""Pods that are to be spread lie no more unevenly than they may, whatever was there before."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tranche.core.request import parse_request
from tranche.kubernetes.api.node_rules import Requirement
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod, SpreadRequirement, decode_cluster_pod
from tranche.kubernetes.gated.scheduler.placer import GpuNode, PodPlacement, SpreadState, UnplacedPod, place

KIND = {"app": "train"}
SELECTOR = (Requirement("app", "In", ("train",)),)


def there_on(node: FleetNode, namespace: str = "team", labels: Mapping[str, str] = KIND) -> ClusterPod:
    return ClusterPod(namespace, "there", f"uid-{namespace}", labels=labels, node=node.name)


@given(
    zones=st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    skew=st.integers(1, 2),
    count=st.integers(1, 8),
    there=st.lists(st.integers(0, 3), max_size=4),
)
def test_no_zone_gets_more_than_its_share(zones: list[str], skew: int, count: int, there: list[int]) -> None:
    nodes = [GpuNode(FleetNode(f"n{number}", {"zone": zone}), a100s(1)) for number, zone in enumerate(zones)]
    rooms = tuple(each.room for each in nodes)
    before = tuple(there_on(rooms[number % len(rooms)]) for number in there)
    other = (there_on(rooms[0], "other"), there_on(rooms[0], labels={"app": "web"}))
    rule = SpreadRequirement("zone", skew, SELECTOR)
    request = parse_request(mig_profile="1g.5gb")
    pods = [
        ClusterPod("team", f"p{number}", f"u{number}", request, created=str(number), labels=KIND, spread=(rule,))
        for number in range(count)
    ]
    found = place(pods, nodes, spread=SpreadState(rooms, (*before, *other)))
    zone_of = {room.name: room.labels["zone"] for room in rooms}
    totals = {zone: sum(zone_of[each.node] == zone for each in before) for zone in set(zones)}
    for each in found:
        if isinstance(each, PodPlacement):
            totals[zone_of[each.node]] += 1
            assert totals[zone_of[each.node]] - min(totals.values()) <= skew
        else:
            assert each.reasons.keys() == zone_of.keys()


def test_a_node_without_the_label_is_out_and_nodes_that_the_pod_may_not_use_do_not_count() -> None:
    rule = SpreadRequirement("zone", 1, SELECTOR)
    pod = ClusterPod(
        "team", "p", "u", parse_request(gpus="1"), node_selector={"pool": "gpu"}, labels=KIND, spread=(rule,)
    )
    bare = GpuNode(FleetNode("bare", {"pool": "gpu"}), a100s(1))
    (found,) = place([pod], [bare])
    assert isinstance(found, UnplacedPod)
    assert "lacks the label zone" in found.reasons["bare"]
    here = FleetNode("here", {"pool": "gpu", "zone": "a"})
    empty = FleetNode("empty", {"zone": "b"})  # not of the pool: its emptiness does not matter
    full = SpreadState((here, empty), (there_on(here),) * 3)
    assert isinstance(place([pod], [GpuNode(here, a100s(1))], spread=full)[0], PodPlacement)


def test_constraints_are_read_from_a_pod() -> None:
    selector = {"matchLabels": KIND, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    hard = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    pod = decode_cluster_pod(
        {
            "metadata": {"annotations": {"tranche.dev/gpus": "1"}, "labels": {**KIND, "rev": "7"}},
            "spec": {
                "schedulingGates": [{"name": "tranche.dev/share"}],
                "containers": [{"resources": {"limits": {"tranche.dev/share": "1"}}}],
                "topologySpreadConstraints": [
                    {**hard, "matchLabelKeys": ["rev"]},
                    {**hard, "whenUnsatisfiable": "ScheduleAnyway"},
                ],
            },
        }
    )
    assert pod.request is not None
    (rule,) = pod.spread
    assert (rule.key, rule.skew) == ("zone", 2)
    assert rule.selector == (
        Requirement("app", "In", ("train",)),
        Requirement("rev", "In", ("7",)),
        Requirement("tier", "Exists"),
    )
