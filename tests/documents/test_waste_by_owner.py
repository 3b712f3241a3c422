"""Who held how much, and wastes how much now: by user and by namespace, from events and from what is held now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.documents.test_history import GPU, PROFILE, UUID, told
from tests.documents.test_picture import documents_of
from tests.strategies import gpu_on, instance_of, placed, sharing_views, view_of
from tranche.core.allocation import Allocation, ComputeSlice, NodeView, Phase, Slice
from tranche.core.board import Board, board_by_key
from tranche.core.events import EventData, ShareGranted, ShareReleased
from tranche.core.grid import Placement
from tranche.core.keeper import OwnerKind, ShareOwner
from tranche.core.profile import parse_profile
from tranche.core.quantity import MIB
from tranche.core.request import MigSlice, Request
from tranche.documents.describe import timestamp
from tranche.documents.waste import held_now, use_over_time, waste_by_owner, waste_data

ADA = ShareOwner(OwnerKind.USER, "ada")
NOTHING: dict[str, Any] = {"unused": [], "tooLarge": [], "idle": []}
HOUR = 3600.0
SMALLEST = 4864 * MIB
"""What a 1g.5gb has, which is less than an eighth of the GPU."""


def board() -> Board:
    found = board_by_key("A100-40GB")
    assert found is not None
    return found


NODE = view_of(gpu_on(board(), 0)).node


def granted(when: float, id: str, owner: ShareOwner | None, start: int = 0) -> tuple[float, EventData, str]:
    grants = (Slice(UUID, PROFILE, Placement(start, 1)),)
    return when, ShareGranted("", "w", Request(MigSlice(PROFILE)), grants, owner), id


def released(when: float, id: str) -> tuple[float, EventData, str]:
    return when, ShareReleased("its command has ended"), id


def test_each_ones_shares_are_added_up_also_those_that_have_ended() -> None:
    events = told(
        granted(0, "a", ADA),
        granted(0, "b", ADA, 1),
        granted(HOUR, "c", ShareOwner(OwnerKind.NAMESPACE, "vision"), 2),
        released(HOUR, "a"),
        released(3 * HOUR, "b"),
        released(2 * HOUR, "c"),
        granted(0, "old", None, 3),
        released(1, "old"),
    )
    first, second = waste_by_owner(NODE, [GPU], events, [], NOTHING, HOUR / 2, 4 * HOUR)
    assert first["owner"] == {"kind": "user", "name": "ada"}
    assert first["shares"] == 2
    assert first["heldByteSeconds"] == SMALLEST * (HOUR / 2 + 2.5 * HOUR)
    assert second["owner"] == {"kind": "namespace", "name": "vision"}
    assert second["heldByteSeconds"] == SMALLEST * HOUR


def test_a_pods_namespace_is_what_its_keeper_says_now() -> None:
    """The kubelet says for whom a pod's devices are after they were given."""
    pod = {
        "id": "p",
        "grants": [{"gpuUUID": UUID, "profile": "1g.5gb", "placement": {"start": 0, "size": 1}}],
        "created": "1970-01-01T00:00:00.000Z",
        "keeper": {"kind": "pod", "namespace": "speech", "name": "x"},
    }
    unused = {"gpuUUID": UUID, "profile": "1g.5gb", "placement": {"start": 0, "size": 1}, "memoryBytes": SMALLEST}
    waste = {**NOTHING, "unused": [{**unused, "allocationIds": ["p"]}]}
    (found,) = waste_by_owner(NODE, [GPU], [], [pod], waste, 0.0, HOUR)
    assert found == {
        "owner": {"kind": "namespace", "name": "speech"},
        "shares": 1,
        "heldByteSeconds": SMALLEST * HOUR,
        "unusedBytes": SMALLEST,
        "spareBytes": 0,
    }


def test_what_is_larger_than_needed_is_what_a_smaller_one_would_save() -> None:
    large = {"gpuUUID": UUID, "profile": "1g.5gb", "placement": None, "memoryBytes": 10, "allocationIds": ["a"]}
    waste = {**NOTHING, "tooLarge": [{**large, "enough": {"profile": "x", "memoryBytes": 4}}]}
    (found,) = waste_by_owner(NODE, [GPU], told(granted(0, "a", ADA)), [], waste, HOUR, 2 * HOUR)
    assert (found["owner"], found["spareBytes"]) == ({"kind": "user", "name": "ada"}, 6)


@given(sharing_views(max_gpus=3))
def test_what_the_owners_waste_is_what_is_wasted(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    waste = waste_data(view.node, gpus, [], allocations)
    found = waste_by_owner(view.node, gpus, [], allocations, waste, 0.0, 10.0)
    held = {id for gpu in gpus for device in (gpu, *gpu["slices"]) for id in device["allocationIds"]}
    assert sum(each["shares"] for each in found) >= len(held)
    total = sum(gpu["memoryBytes"] for gpu in gpus)
    assert all(0 <= each["unusedBytes"] <= total for each in found)
    unused = sum(each["memoryBytes"] or 0 for each in waste["unused"])
    owned = sum(each["unusedBytes"] for each in found)
    assert owned <= unused
    if all(each["phase"] == "active" for each in allocations):
        assert owned == pytest.approx(unused, abs=8)


@given(sharing_views(max_gpus=3))
def test_a_share_is_as_large_over_time_as_it_is_now(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    there = [each for each in allocations if each["phase"] == "active" and not each["missingInstances"]]
    found = waste_by_owner(view.node, gpus, [], there, NOTHING, 1000.0, 1010.0)
    now = sum(each.memory for each in held_now(gpus, there))
    assert sum(each["heldByteSeconds"] for each in found) == pytest.approx(10 * now, abs=100)


def test_compute_slices_of_one_slice_share_its_memory() -> None:
    profile = next(each for each in placed(board()) if str(each.name) == "3g.20gb")
    gpu = replace(gpu_on(board(), 0), instances=(instance_of(profile, Placement(4, 4)),))
    inside = Slice(gpu.uuid, profile.name, Placement(4, 4))
    grants = [ComputeSlice(inside, parse_profile("1c.3g.20gb"), n, 1) for n in range(2)]
    request = Request(MigSlice(profile.name))
    both = [Allocation(f"{n}", request, (each,), Phase.ACTIVE, 1000.0 * n) for n, each in enumerate(grants)]
    view = view_of(gpu, allocations=both)
    gpus, allocations = documents_of(view)
    waste = waste_data(view.node, gpus, [], allocations)
    (found,) = waste_by_owner(view.node, gpus, [], allocations, waste, 0.0, 3000.0)
    assert found["unusedBytes"] == profile.memory
    assert profile.memory is not None
    assert found["heldByteSeconds"] == 3000 * profile.memory


@given(st.floats(-2 * HOUR, 2 * HOUR), st.booleans())
def test_what_is_held_now_is_told_wherever_the_clock_was_put(put: float, told_by_event: bool) -> None:
    """The clock shows 4 h: its grant has a time that may be later."""
    when = 4 * HOUR + put
    alive = {
        "id": "a",
        "grants": [{"gpuUUID": UUID, "profile": "1g.5gb", "placement": {"start": 0, "size": 1}}],
        "created": timestamp(when),
        "keeper": {"kind": "process", "pid": 1},
    }
    events = told(granted(when, "a", ADA)) if told_by_event else []
    (found,) = waste_by_owner(NODE, [GPU], events, [alive], NOTHING, HOUR, 4 * HOUR)
    assert found["shares"] == 1
    assert found["heldByteSeconds"] == pytest.approx(SMALLEST * max(0.0, -put), rel=1e-3, abs=SMALLEST)
    (use,) = use_over_time([GPU], events, [alive], HOUR, 4 * HOUR)
    assert use["held"] == pytest.approx(max(0.0, -put) / (3 * HOUR * 8), abs=1e-3)
