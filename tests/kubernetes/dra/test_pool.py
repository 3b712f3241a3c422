"""What the pool shows, now and after things have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import PLACEABLE_BOARDS, gpu_on, node_views, uncuttable_gpu, view_of
from tests.support.length import cases
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import Board, board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import NodeState
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.object_client import NodeSlice
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.quantity import read_quantity
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, reasons_against
from tranche.kubernetes.dra.pool import pool_contents

MEANS = MachineSharing(frozenset(Sharing), mps_clients=48)


def a100() -> Board:
    board = board_by_key("A100-40GB")
    assert board is not None
    return board


def shown(view: NodeView, before: Sequence[NodeSlice] = ()) -> tuple[NodeSlice, ...]:
    devices = devices_of(view.node)
    return pool_contents("n", devices, view, reasons_against(devices, view, TaintFacts(NodeMode.MIXED)), before)


def with_means(view: NodeView) -> NodeView:
    return replace(view, node=replace(view.node, sharing=MEANS))


def taint_keys(device: Json) -> set[str]:
    return {str(each["key"]) for each in device.get("taints") or ()}


def by_name(contents: Sequence[NodeSlice]) -> dict[str, dict[str, Any]]:
    return {each["name"]: dict(each) for content in contents for each in content.devices}


def quantity(amount: Json) -> int:
    found = read_quantity(amount["value"])
    assert found is not None
    return found


def claimed(view: NodeView, *grants: Slice | WholeGpu) -> NodeView:
    made = [
        Allocation(f"c-{number}", Request(WholeGpus(1)), (grant,), Phase.ACTIVE, 0.0, keeper=ClaimKeeper("n", "c", "u"))
        for number, grant in enumerate(grants)
    ]
    return replace(view, allocations=(*view.allocations, *made))


@pytest.mark.parametrize("board", PLACEABLE_BOARDS, ids=lambda board: board.key)
@pytest.mark.parametrize("count", [1, 8, 16])
def test_the_limits_of_the_api_hold_for_every_machine(board: Board, count: int) -> None:
    """The numbers are those of resource.k8s.io/v1 from Kubernetes 1.35 on."""
    contents = shown(with_means(view_of(*(gpu_on(board, index) for index in range(count)))))
    sets = {each["name"]: each["counters"] for content in contents for each in content.counters}
    assert len(sets) == count
    for content in contents:
        assert bool(content.devices) != bool(content.counters)
        assert len(content.devices) <= 64
        assert len(content.counters) <= 8
        assert sum(len(used["counters"]) for each in content.devices for used in each["consumesCounters"]) <= 2048
        for each in content.devices:
            assert len(each.get("taints") or ()) <= 16
            (used,) = each["consumesCounters"]
            assert set(used["counters"]) <= set(sets[used["counterSet"]])
    assert all(count == 1 for count in Counter(content.name for content in contents).values())


@settings(max_examples=cases(60))
@given(st.data())
def test_the_memory_counter_is_what_a_device_has_and_excludes_nothing_that_the_others_allow(
    data: st.DataObject,
) -> None:
    contents = shown(with_means(view_of(gpu_on(data.draw(st.sampled_from(PLACEABLE_BOARDS))))))
    (left,) = ({name: quantity(each) for name, each in found["counters"].items()} for found in contents[0].counters)
    for device in data.draw(st.permutations(list(by_name(contents).values()))):
        (used,) = device["consumesCounters"]
        taken = {name: quantity(each) for name, each in used["counters"].items()}
        known = device["capacity"].get("memory")
        assert taken.get("memory") == (None if known is None else quantity(known))
        if all(left[name] >= amount for name, amount in taken.items() if name != "memory"):
            left = {name: amount - taken.get(name, 0) for name, amount in left.items()}
    assert left.get("memory", 0) >= 0


def test_names_of_slices_sort_as_they_shall_be_tried() -> None:
    contents = shown(with_means(view_of(gpu_on(a100()), uncuttable_gpu(1))))
    names = [content.name for content in contents]
    assert names == sorted(names)
    assert names[:2] == ["n-tranche-0-counters-0", "n-tranche-1-0004864-1g-5gb-0"]
    assert names[-1] == "n-tranche-4-whole-0"


@given(node_views(max_gpus=3))
def test_what_is_shown_already_is_shown_again(view: NodeView) -> None:
    view = with_means(view)
    first = shown(view)
    assert shown(view, first) == first


@settings(max_examples=cases(30))
@given(node_views(max_gpus=2), st.data())
def test_no_device_goes_for_anything_that_happens_to_gpus_that_stay(view: NodeView, data: st.DataObject) -> None:
    view = with_means(view)
    first = shown(view)
    after = replace(
        view,
        allocations=tuple(each for each in view.allocations if data.draw(st.booleans())),
        node=replace(
            view.node, gpus=tuple(replace(g, instances=()) if data.draw(st.booleans()) else g for g in view.node)
        ),
    )
    assert by_name(shown(after, first)).keys() == by_name(first).keys()


def test_a_lost_gpu_stays_with_a_taint_and_comes_back() -> None:
    view = with_means(view_of(gpu_on(a100(), 0), gpu_on(a100(), 1)))
    first = shown(view)
    gpus = view.node.gpus
    lost = replace(view, node=replace(view.node, gpus=(gpus[0], replace(gpus[1], lost=True))))
    second = shown(lost, first)
    assert by_name(second).keys() == by_name(first).keys()
    assert [content.name for content in second] == [content.name for content in first]
    for name, device in by_name(second).items():
        assert taint_keys(device) == ({TaintKey.LOST} if name.startswith("gpu-1") else set())
        assert {**device, "taints": None} == {**by_name(first)[name], "taints": None}
    # The agent that looks again may know it by what is shown alone.
    assert by_name(shown(lost, second)) == by_name(second)
    assert by_name(shown(view, second)) == by_name(first)


def test_a_lost_gpu_whose_uuid_the_driver_does_not_know_stays_as_well() -> None:
    view = with_means(view_of(uncuttable_gpu(0), uncuttable_gpu(1)))
    first = shown(view)
    gpus = view.node.gpus
    lost = replace(gpus[1], lost=True, uuid="00000000:11:00.0")
    second = shown(replace(view, node=replace(view.node, gpus=(gpus[0], lost))), first)
    assert by_name(second).keys() == by_name(first).keys()


def test_a_gpu_that_was_taken_out_goes_unless_a_claim_has_something_of_it() -> None:
    view = with_means(view_of(uncuttable_gpu(0), uncuttable_gpu(1)))
    first = shown(view)
    rest = replace(view, node=NodeState(view.node.gpus[:1], sharing=MEANS))
    assert by_name(shown(rest, first)).keys() == {"gpu-0", "gpu-0-shared"}
    held = claimed(rest, WholeGpu(view.node.gpus[1].uuid))
    second = shown(held, first)
    assert by_name(second).keys() == by_name(first).keys()
    assert second[0].counters == first[0].counters


def test_a_device_that_a_claim_has_stays_as_it_was_shown() -> None:
    """Another driver may report another version, and another amount of memory."""
    view = claimed(view_of(gpu_on(a100())), Slice(gpu_on(a100()).uuid, parse_profile("1g.5gb"), Placement(3, 1)))
    first = shown(view)
    later = replace(view, node=replace(view.node, driver_version="590.1.2"))
    second = by_name(shown(later, first))
    assert second["gpu-0-1g-5gb-3"] == by_name(first)["gpu-0-1g-5gb-3"]
    assert second["gpu-0-1g-5gb-2"] != by_name(first)["gpu-0-1g-5gb-2"]


def test_a_part_that_a_claim_has_stays_shown_when_the_machine_offers_its_mechanism_no_more() -> None:
    view = with_means(view_of(uncuttable_gpu(0), uncuttable_gpu(1)))
    first = shown(view)
    (gpu, _) = view.node.gpus
    part = FractionalShare(WholeGpu(gpu.uuid), 1 << 30, Sharing.MPS)
    held = Allocation("a", Request(WholeGpus(1)), (part,), Phase.ACTIVE, 0.0, keeper=ClaimKeeper("n", "c", "u"))
    without = replace(view, node=NodeState(view.node.gpus), allocations=(held,))
    second = by_name(shown(without, first))
    assert second.keys() == {"gpu-0", "gpu-0-shared", "gpu-1"}
    assert taint_keys(second["gpu-0-shared"]) == {TaintKey.MODE}
    assert {**second["gpu-0-shared"], "taints": None} == {**by_name(first)["gpu-0-shared"], "taints": None}


def test_nothing_moves_for_a_place_that_was_taken() -> None:
    """The pod that took the first place of the list leaves the rest in order."""
    view = with_means(view_of(gpu_on(a100(), 0), gpu_on(a100(), 1)))
    first = shown(view)
    taken = claimed(view, Slice(view.node.gpus[0].uuid, parse_profile("1g.5gb"), Placement(6, 1)))
    second = {content.name: content for content in shown(taken, first)}
    small = "n-tranche-1-0004864-1g-5gb-0"
    assert second[small] == next(content for content in first if content.name == small)
