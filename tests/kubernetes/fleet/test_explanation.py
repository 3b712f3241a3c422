"""Why pods wait: what each situation is answered with, and that a thousand nodes are answered as shortly as three."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Golden
from tests.kubernetes.claims.examples import possible_requests
from tests.kubernetes.fleet.clusters import (
    TIME_SLICING,
    a100s,
    asked_by_hand,
    claim,
    cluster,
    filled,
    node,
    pod,
    published,
    t4s,
    with_instance,
)
from tests.support.length import cases
from tranche.core.board import catalogue
from tranche.core.profile import ProfileName
from tranche.core.request import parse_request
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import profile_class
from tranche.kubernetes.fleet.device_request import demanded_by, in_words
from tranche.kubernetes.fleet.explanation import (
    GROUP_COLUMNS,
    FleetExplanation,
    WaitStatus,
    explain_pod,
    group_row,
    head_lines,
    tail_lines,
)
from tranche.kubernetes.fleet.fleet import Fleet, served
from tranche.kubernetes.fleet.objects import FleetPod, decode_fleet_claim

P4D, T4 = published("p4d", a100s(2), NodeMode.DYNAMIC), published("t4", t4s(), NodeMode.SHARED)
NODES = [node("p4d", mode="dynamic"), node("t4", mode="shared")]
GiB4, SMALL = parse_request(gpu_memory="4Gi"), parse_request(mig_profile="1g.5gb")
Situation = tuple[FleetPod, Fleet]


def startable() -> Situation:
    return pod(), filled(NODES, [*P4D, *T4], {}, {"train-0": GiB4})


def share_of_a_gpu() -> Situation:
    full = {f"old-{number}": parse_request(mig_profile="7g.40gb") for number in range(2)}
    return pod(), filled(NODES, [*P4D, *T4], full, {"train-0": parse_request(gpu="0.2")})


def everything_is_held() -> Situation:
    held = {f"old-{number}": SMALL for number in range(14)} | {"t": parse_request(gpu_memory="12Gi")}
    return pod(), filled(NODES, [*P4D, *T4], held, {"train-0": GiB4})


def has_its_slice() -> Situation:
    return started("old"), filled(NODES, [*P4D, *T4], {"old": GiB4}, {})


def a_claim_that_was_taken_from_a_pod() -> Situation:
    return replace(pod(), node="p4d"), filled(NODES, [*P4D, *T4], {}, {"train-0": GiB4})


def started(name: str) -> FleetPod:
    return replace(pod(name), node="p4d", phase="Running", prepared=True)


def too_large() -> Situation:
    return pod(), filled(NODES, [*P4D, *T4], {}, {"train-0": parse_request(gpu_memory="50Gi")})


def unknown_profile() -> Situation:
    return pod(), filled(NODES, [*P4D, *T4], {}, {"train-0": parse_request(mig_profile="1g.10gb")})


def too_weak_a_fence() -> Situation:
    slices = published("t4", t4s(), NodeMode.SHARED, TIME_SLICING)
    held = {"old": parse_request(gpu_memory="1Gi", isolation="none")}
    return pod(), filled([NODES[1]], slices, held, {"train-0": GiB4})


def kept_off_its_nodes() -> Situation:
    nodes = [
        node("a", mode="shared", unschedulable=True),
        node("b", mode="shared", taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}]),
        node("c", mode="shared", ready=False),
        node("d", mode="shared", labels={"zone": "z"}),
        node("e"),
        node("g", mode="shared", labels={"zone": "y"}, taints=[{"key": "team", "value": "g", "effect": "NoExecute"}]),
        node("f", mode="static"),
    ]
    slices = [each for name in "abcdg" for each in published(name, t4s(), NodeMode.SHARED)]
    return pod(nodeSelector={"zone": "y"}), filled(nodes, slices, {}, {"train-0": GiB4})


def not_in_this_mode() -> Situation:
    slices = published("p4d", a100s(1), NodeMode.SHARED)
    return pod(), filled([node("p4d", mode="shared")], slices, {}, {"train-0": SMALL})


def one_of_several_is_held() -> Situation:
    request = parse_request(mig_profile="7g.40gb", count="2")
    return pod(), filled(NODES, [*P4D, *T4], {"old": SMALL}, {"train-0": request})


def several_gpus() -> Situation:
    request = parse_request(mig_profile="3g.20gb", count="3")
    return pod(), filled(NODES, [*P4D, *T4], {}, {"train-0": request})


def whole_gpus() -> Situation:
    return pod(), filled(NODES, [*P4D, *T4], {"old": SMALL}, {"train-0": parse_request(gpus="2")})


def no_claim_yet() -> Situation:
    return replace(pod(), claims={}), cluster(NODES, [*P4D, *T4])


def no_claim_for_want_of_quota() -> Situation:
    why = "exceeded quota: gpus, requested: whole.gpu.tranche.dev.deviceclass.resource.k8s.io/devices=1, used: 1, limited: 1"
    return replace(pod(), claims={}, refusal=why), cluster(NODES, [*P4D, *T4])


def no_claim_of_an_old_manifest_for_want_of_quota() -> Situation:
    why = 'create claim for extended resources: resourceclaims.resource.k8s.io "a" is forbidden: exceeded quota: gpus'
    asked = replace(pod(), claims={}, templates={}, limits={"nvidia.com/gpu": 1}, message=why)
    return asked, cluster(NODES, [*P4D, *T4])


def no_gpu() -> Situation:
    return replace(pod(), claims={}, templates={}), cluster(NODES, [*P4D, *T4])


def an_old_manifest() -> Situation:
    held = {f"old-{number}": parse_request(mig_profile="7g.40gb") for number in range(2)}
    asked = replace(pod(), claims={}, templates={}, limits={"nvidia.com/mig-1g.5gb": 1})
    return asked, filled(NODES, [*P4D, *T4], held, {})


def somebody_elses_claim() -> Situation:
    other = {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]}
    raw = {"metadata": {"namespace": "team-a", "name": "train-0-gpu"}, "spec": {"devices": other}}
    return pod(), cluster(NODES, [*P4D, *T4], [raw])


def a_condition_of_another_hand() -> Situation:
    raw = claim("train-0", GiB4, P4D)
    asked = raw["spec"]["devices"]["requests"][0]["exactly"]
    asked["selectors"].append({"cel": {"expression": 'device.attributes["gpu.tranche.dev"].numaNode == 1'}})
    return pod(), cluster(NODES, [*P4D, *T4], [raw])


def whoever_may_read_little() -> Situation:
    known = filled(NODES, T4, {}, {"train-0": GiB4})
    return pod(), replace(known, nodes=(), unread={"nodes": "no", "claims in all namespaces": "no"})


def every_slice_of_a_node() -> Situation:
    asked = asked_by_hand({"deviceClassName": "slice.gpu.tranche.dev", "allocationMode": "All"})
    return pod(), cluster(NODES, [*P4D, *T4], [asked])


def every_slice_of_a_node_with_a_foreign_one() -> Situation:
    cut, free = a100s(2)
    slices = published("p4d", [with_instance(cut, "7g.40gb"), free], NodeMode.DYNAMIC)
    asked = asked_by_hand({"deviceClassName": "slice.gpu.tranche.dev", "allocationMode": "All"})
    return pod(), cluster(NODES[:1], slices, [asked])


def every_gpu_of_a_node() -> Situation:
    asked = asked_by_hand({"deviceClassName": "whole.gpu.tranche.dev", "allocationMode": "All"})
    return pod(), cluster(NODES, [*P4D, *T4], [asked])


def every_gpu_of_a_node_in_use() -> Situation:
    known = filled(NODES, [*P4D, *T4], {"old": SMALL}, {})
    asked = asked_by_hand({"deviceClassName": "whole.gpu.tranche.dev", "allocationMode": "All"})
    return pod(), replace(known, claims=(*known.claims, decode_fleet_claim(asked)))


def a_claim_that_nobody_made() -> Situation:
    return replace(pod(), claims={"gpu": "c-admin"}, templates={}), cluster(NODES, [*P4D, *T4])


def a_claim_that_nobody_may_read() -> Situation:
    known = replace(cluster(NODES, [*P4D, *T4]), unread={"claims of team-a": "no"})
    return replace(pod(), claims={"gpu": "c-admin"}, templates={}), known


def a_class_that_is_not_there() -> Situation:
    known = cluster(NODES, [*P4D, *T4], [asked_by_hand({"deviceClassName": "9g-5gb.gpu.tranche.dev"})])
    return pod(), replace(
        known, classes=frozenset({"gpu.tranche.dev", "slice.gpu.tranche.dev", "1g-5gb.gpu.tranche.dev"})
    )


def a_class_of_somebody_elses_that_ends_alike() -> Situation:
    return pod(), cluster(NODES, [*P4D, *T4], [asked_by_hand({"deviceClassName": "piece.gpu.tranche.dev"})])


def a_whole_gpu_and_a_slice_of_a_t4() -> Situation:
    asked = asked_by_hand({"deviceClassName": "whole.gpu.tranche.dev"}, {"deviceClassName": "slice.gpu.tranche.dev"})
    known = filled(NODES[1:], published("t4", t4s(), NodeMode.MIXED), {"old": parse_request(gpus="1")}, {})
    return pod(), replace(known, claims=(*known.claims, decode_fleet_claim(asked)))


def two_things_of_one_gpu() -> Situation:
    asked = asked_by_hand({"deviceClassName": "whole.gpu.tranche.dev"}, {"deviceClassName": "slice.gpu.tranche.dev"})
    return pod(), cluster(NODES[:1], published("p4d", a100s(1), NodeMode.DYNAMIC), [asked])


def an_agent_that_left() -> Situation:
    known = filled(NODES, [*P4D, *T4], {"old": GiB4}, {})
    return started("old"), replace(known, pools={})


def a_configuration_of_another_hand() -> Situation:
    raw = claim("train-0", GiB4, P4D)
    raw["spec"]["devices"]["config"][0]["opaque"]["parameters"] = {
        "apiVersion": "gpu.nvidia.com/v1",
        "kind": "GpuConfig",
    }
    return pod(), cluster(NODES, [*P4D, *T4], [raw])


def room_of_an_instance_that_tranche_did_not_make() -> Situation:
    cut, free = a100s(2)
    slices = published("p4d", [with_instance(cut, "7g.40gb"), free], NodeMode.DYNAMIC)
    held = {"old": parse_request(gpus="1")}
    return pod(), filled(NODES[:1], slices, held, {"train-0": SMALL})


def more_than_are_free() -> Situation:
    held = {f"old-{number}": SMALL for number in range(9)}
    asked = asked_by_hand({"deviceClassName": "1g-5gb.gpu.tranche.dev", "count": 14})
    known = filled(NODES, [*P4D, *T4], held, {})
    return pod(), replace(known, claims=(*known.claims, decode_fleet_claim(asked)))


def more_compute_than_there_is() -> Situation:
    amounts = {"requests": {"memory": "2G", "compute": "200"}}
    asked = asked_by_hand({"deviceClassName": "shared.gpu.tranche.dev", "capacity": amounts})
    return pod(), cluster(NODES, [*P4D, *T4], [asked])


def two_parts_in_one_claim() -> Situation:
    part = {"deviceClassName": "shared.gpu.tranche.dev", "capacity": {"requests": {"memory": "2G"}}}
    asked = asked_by_hand({"deviceClassName": "whole.gpu.tranche.dev"}, part, part)
    return pod(), cluster(NODES[:1], published("p4d", a100s(3)), [asked])


def parts_of_several_gpus_in_one_claim() -> Situation:
    slices = published("t4", t4s(2), NodeMode.SHARED)
    half = {"deviceClassName": "shared.gpu.tranche.dev", "capacity": {"requests": {"memory": "9G"}}}
    return pod(), cluster(NODES[1:], slices, [asked_by_hand(half, half)])


def refused_by_its_node(refusal: str = "claim team-a/old-gpu: GpuBusy: GPU 0: 1g.5gb overlaps 7g.40gb") -> Situation:
    given, fleet = has_its_slice()
    return replace(given, phase="Pending", prepared=False, refusal=refusal), fleet


def not_answered_by_its_node() -> Situation:
    return refused_by_its_node(
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources: "
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    )


SITUATIONS = (
    startable, share_of_a_gpu, everything_is_held, has_its_slice, too_large, unknown_profile, too_weak_a_fence,
    kept_off_its_nodes, not_in_this_mode, one_of_several_is_held, several_gpus, whole_gpus, no_claim_yet, no_gpu, an_old_manifest,
    no_claim_for_want_of_quota, no_claim_of_an_old_manifest_for_want_of_quota,
    somebody_elses_claim, a_condition_of_another_hand, whoever_may_read_little, every_slice_of_a_node, every_gpu_of_a_node,
    every_gpu_of_a_node_in_use, a_claim_that_nobody_made, a_claim_that_nobody_may_read, a_class_that_is_not_there,
    a_class_of_somebody_elses_that_ends_alike, a_whole_gpu_and_a_slice_of_a_t4, two_things_of_one_gpu, an_agent_that_left,
    a_configuration_of_another_hand, a_claim_that_was_taken_from_a_pod, room_of_an_instance_that_tranche_did_not_make,
    more_than_are_free, more_compute_than_there_is, two_parts_in_one_claim, parts_of_several_gpus_in_one_claim,
    refused_by_its_node, not_answered_by_its_node, every_slice_of_a_node_with_a_foreign_one,
)  # fmt: skip


def text_of(found: FleetExplanation) -> str:
    rows = [" | ".join(str(each) or "-" for each in group_row(group)) for group in found.groups]
    table = [" | ".join(GROUP_COLUMNS), *rows] if rows else []
    return "\n".join([*head_lines(found), *table, *tail_lines(found)]) + "\n"


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
def test_every_situation_is_answered(situation: Callable[[], Situation], golden: Golden) -> None:
    golden(f"{situation.__name__}.txt", text_of(explain_pod(*situation())))


@settings(max_examples=cases(40))
@given(st.lists(possible_requests(), min_size=1, max_size=3), st.sampled_from(["p4d", "t4"]))
def test_who_could_be_served_later_is_served_by_an_empty_cluster(asked: list[Any], where: str) -> None:
    """Whatever a claim asks for together: "later" is never said of what cannot be, and never withheld from what can."""
    gpus = a100s(2) if where == "p4d" else t4s()
    nodes, slices = [node(where, mode="mixed")], published(where, gpus)
    requests = [claim("train-0", each, slices)["spec"]["devices"]["requests"][0] for each in asked]
    together = asked_by_hand() | {"spec": {"devices": {"requests": requests}}}
    full = {f"old-{number}": parse_request(gpus="1") for number in range(len(gpus))}
    held = filled(nodes, slices, full, {})
    later = explain_pod(pod(), replace(held, claims=(*held.claims, decode_fleet_claim(together))))
    now = explain_pod(pod(), cluster(nodes, slices, [together]))
    assert (later.status is WaitStatus.WAITING) == (now.status is WaitStatus.STARTABLE)


@given(st.sampled_from([profile.name for each in catalogue() for profile in each.profiles]))
def test_a_profile_is_called_by_its_name(profile: ProfileName) -> None:
    wanted = demanded_by(decode_fleet_claim(asked_by_hand({"deviceClassName": profile_class(profile)})))[
        0
    ].alternatives[0]
    assert in_words(wanted) == f"slice {profile}"


def test_a_thousand_nodes_are_answered_shortly() -> None:
    nodes, slices = [], []
    for number in range(1000):
        name = f"node-{number:04}"
        nodes.append(node(name, mode="shared", labels={"number": str(number)}, unschedulable=number % 50 == 0))
        slices += published(name, t4s(1), NodeMode.SHARED) if number % 2 else []
    asked = {"train-0": parse_request(gpu_memory="30Gi")}
    found = explain_pod(pod(), filled(nodes, slices, {}, asked))
    assert found.status is WaitStatus.IMPOSSIBLE
    assert sum(group.count for group in found.groups) + found.unnamed == 1000
    assert len(text_of(found)) < 1500


@settings(max_examples=cases(60))
@given(st.lists(possible_requests(), max_size=12), possible_requests(), st.data())
def test_the_answer_agrees_with_what_there_is(held: list[Any], asked: Any, data: st.DataObject) -> None:
    slices = [*published("p4d", a100s(2)), *T4]
    nodes = [node("p4d", mode="mixed"), NODES[1]]
    known = cluster(nodes, slices)
    claims: list[dict[str, Any]] = []
    for number, request in enumerate(held):
        (demand,) = demanded_by(decode_fleet_claim(claim(f"old-{number}", request, slices)))
        rooms = known.rooms().values()
        ways = [(each, found) for room in rooms for each in demand.alternatives if (found := served(room, each))]
        if not ways:
            continue
        wanted, found = data.draw(st.sampled_from(ways))
        raw = claim(f"old-{number}", request, slices, found)
        for result in raw["status"]["allocation"]["devices"]["results"]:
            if "consumedCapacity" in result:
                device = next(each for each in found if each.name == result["device"])
                result["consumedCapacity"] = {
                    "memory": str(device.consumed(wanted.memory)),
                    "compute": str(wanted.compute or 0),
                }
        claims.append(raw)
        known = cluster(nodes, slices, claims)
    for room in known.rooms().values():
        assert all(left >= 0 for counters in room.left.values() for left in counters.values())
        assert all(room.memory_left(device) >= 0 for device in room.pool.devices if device.shared)
    known = cluster(nodes, slices, [*claims, claim("train-0", asked, slices)])
    (demand,) = demanded_by(decode_fleet_claim(claim("train-0", asked, slices)))
    able = any(served(room, each) for room in known.rooms().values() for each in demand.alternatives)
    answer = explain_pod(pod(), known)
    assert (answer.status is WaitStatus.STARTABLE) == able
    assert (answer.get is not None) == able
    assert sum(group.count for group in answer.groups) + answer.unnamed <= 2 - able


def test_room_that_is_kept_is_for_whoever_names_its_size() -> None:
    slices = published("p4d", a100s(1), NodeMode.DYNAMIC, keep="7g.40gb")

    def answer(**asked: Any) -> FleetExplanation:
        waiting, fleet = pod(), filled(NODES[:1], slices, {}, {"train-0": parse_request(**asked)})
        return explain_pod(waiting, fleet)

    for asked in ({"gpu_memory": "4Gi"}, {"mig_profile": "1g.5gb"}, {"gpu_memory": "30Gi"}):
        kept_out = answer(**asked)
        assert kept_out.status is WaitStatus.WAITING
        assert [group.text for group in kept_out.groups] == [
            "its suitable devices are unavailable: it is reserved for larger requests"
        ]
    for asked in ({"mig_profile": "7g.40gb"}, {"gpus": "1"}):
        assert answer(**asked).status is WaitStatus.STARTABLE
