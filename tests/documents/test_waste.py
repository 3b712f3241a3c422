"""What is wasted: held and unused, larger than needed, cut and held by nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.documents.test_history import GPU, UUID, create, done, granted, told
from tests.documents.test_picture import documents_of, every_kind
from tests.strategies import gpu_on, instance_of, placed, sharing_views, view_of
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.board import board_by_key
from tranche.core.events import ShareReleased
from tranche.core.grid import Placement
from tranche.core.quantity import GIB
from tranche.core.readings import GpuReading, SliceReading
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuProcess
from tranche.documents.overview import reading_document
from tranche.documents.waste import use_over_time, waste_data


def a_slice_of_three(*, process: bool) -> tuple[NodeView, int]:
    """An A100 with a 3g.20gb that somebody holds, and the id of its instance."""
    board = board_by_key("A100-40GB")
    assert board is not None
    (profile,) = [each for each in placed(board) if str(each.name) == "3g.20gb"]
    made = instance_of(profile, Placement(4, 4), processes=[GpuProcess(1, "python")] if process else [])
    gpu = replace(gpu_on(board, 0), instances=(made,))
    grant = Slice(gpu.uuid, profile.name, Placement(4, 4))
    held = Allocation("a", Request(MigSlice(profile.name)), (grant,), Phase.ACTIVE, 1.0)
    return view_of(gpu, allocations=[held], owned=[gpu.key(made)]), made.id


def wasted(view: NodeView, *readings: GpuReading) -> dict[str, Any]:
    gpus, allocations = documents_of(view)
    return waste_data(view.node, gpus, [reading_document(each) for each in readings], allocations)


def test_a_slice_that_is_held_without_a_process_is_unused() -> None:
    view, _ = a_slice_of_three(process=False)
    found = wasted(view)
    assert [(each["profile"], each["allocationIds"]) for each in found["unused"]] == [("3g.20gb", ["a"])]
    assert found["tooLarge"] == found["idle"] == []


def test_of_a_device_that_is_shared_what_was_given_is_unused() -> None:
    (shared,) = [each for each in wasted(every_kind())["unused"] if len(each["allocationIds"]) == 2]
    assert (shared["gpuIndex"], shared["memoryBytes"]) == (1, 10 * GIB)


@pytest.mark.parametrize(
    ("used", "enough"), [(3 * GIB, "1g.5gb"), (9 * GIB, "1g.10gb"), (20 * GIB, None), (None, None)]
)
def test_a_slice_is_too_large_when_a_smaller_one_would_hold_what_is_used(used: int | None, enough: str | None) -> None:
    view, id = a_slice_of_three(process=True)
    found = wasted(view, GpuReading(view.node.gpus[0].uuid, slices={id: SliceReading(memory_used=used)}))
    assert [each["enough"]["profile"] for each in found["tooLarge"]] == ([] if enough is None else [enough])
    assert found["unused"] == []


@given(sharing_views())
def test_waste_is_told_of_what_the_documents_have(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    found = waste_data(view.node, gpus, [], allocations)
    active = {each["id"] for each in allocations if each["phase"] == "active"}
    slices = [each for gpu in gpus if not gpu["lost"] for each in gpu["slices"]]
    assert found["tooLarge"] == []
    assert len(found["idle"]) == sum(each["state"] == "idle" for each in slices)
    for each in found["unused"]:
        assert set(each["allocationIds"]) <= active
        gpu = gpus[each["gpuIndex"]]
        assert not gpu["lost"]
        device = (
            gpu if each["placement"] is None else next(s for s in gpu["slices"] if s["placement"] == each["placement"])
        )
        assert device["processes"] == []


def test_use_over_time_is_what_the_events_tell() -> None:
    """One of eight memory slices, made at 10 and last heard of at 42; held from 20 to 30, and by two from 40 to 45."""
    ended = [(30.0, "a"), (44.0, "b"), (45.0, "c")]
    events = told(
        done(10, create()),
        granted(20, "a"),
        granted(40, "b"),
        granted(42, "c"),
        *((when, ShareReleased("ended"), id) for when, id in ended),
    )
    (use,) = use_over_time([GPU], events, [], 0, 100)
    assert use["gpuUUID"] == UUID
    assert use["held"] == pytest.approx(15 / 800)
    assert use["held"] + use["idle"] == pytest.approx((45 - 10) / 800)


@given(sharing_views())
def test_use_over_time_is_a_share(view: NodeView) -> None:
    gpus, allocations = documents_of(view)
    for use in use_over_time(gpus, [], allocations, 0.0, 1000.0):
        assert 0 <= use["held"] <= 1 + 1e-9
        assert -1e-9 <= use["idle"] <= 1 - use["held"] + 1e-9
