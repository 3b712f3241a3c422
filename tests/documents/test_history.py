"""A GPU over time: what was there and who held it, told by events."""

from __future__ import annotations

from typing import Any

from tests.documents.test_picture import documents_of, every_kind
from tests.strategies import gpu_on, view_of
from tranche.core.allocation import Slice
from tranche.core.board import board_by_key
from tranche.core.events import (
    ChangeBegun,
    Event,
    EventData,
    PlanUndone,
    ShareGranted,
    ShareReleased,
    StepDone,
    event_name,
)
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.documents.events import event_document
from tranche.documents.history import HistoryPlace, HistorySpan, events_by_gpu, shares_over_time, slices_over_time
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, Step

PROFILE = parse_profile("1g.5gb")
SLOT = HistoryPlace("1g.5gb", 0, 1)


def an_a100() -> dict[str, Any]:
    board = board_by_key("A100-40GB")
    assert board is not None
    gpus, _ = documents_of(view_of(gpu_on(board, 0)))
    return gpus[0]


GPU = an_a100()
UUID = GPU["uuid"]


def told(*happened: tuple[float, EventData, str]) -> list[dict[str, Any]]:
    """The documents of those events, each with its time and allocation."""
    return [
        event_document(Event(n, when, event_name(data), "", allocation, "in words", None, data))
        for n, (when, data, allocation) in enumerate(happened, start=1)
    ]


def done(when: float, step: Step, plan: str = "p") -> tuple[float, EventData, str]:
    return when, StepDone(plan, step.to_dict()), ""


def create(start: int = 0, uuid: str = UUID) -> CreateInstance:
    return CreateInstance(uuid, PROFILE, Placement(start, 1), (PROFILE,))


def granted(when: float, id: str) -> tuple[float, EventData, str]:
    grants = (Slice(UUID, PROFILE, Placement(0, 1)),)
    return when, ShareGranted("", "w", Request(MigSlice(PROFILE)), grants), id


def test_events_are_told_apart_by_the_gpus_that_they_are_about() -> None:
    undone = (12.0, PlanUndone("q", "HardwareError", ""), "")
    events = told(
        done(10, create()),
        done(11, create(uuid="another"), "q"),
        undone,
        granted(20, "a"),
        (30.0, ShareReleased("x"), "a"),
    )
    found = events_by_gpu(events)
    assert {gpu: [each["position"] for each in of_it] for gpu, of_it in found.items()} == {
        UUID: [1, 4, 5],
        "another": [2, 3],
    }


def test_a_slice_was_there_from_its_making_to_its_end() -> None:
    destroy = DestroyInstance(UUID, PROFILE, Placement(0, 1))
    events = told(
        done(10, create()), done(11, create(uuid="another")), done(30, destroy), done(40, create()), done(50, destroy)
    )
    assert slices_over_time(GPU, events) == [HistorySpan(SLOT, 10, 30), HistorySpan(SLOT, 40, 50)]


def test_a_reset_and_a_change_of_mode_end_every_slice() -> None:
    for step in (ResetGpu(UUID), SetMigMode(UUID, False)):
        events = told(done(10, create(0)), done(11, create(1)), done(20, step))
        assert [each.ended for each in slices_over_time(GPU, events)] == [20, 20]


def test_steps_that_were_undone_made_nothing() -> None:
    undone = (21.0, PlanUndone("p", "HardwareError", UUID), "")
    assert slices_over_time(GPU, told((9.0, ChangeBegun("p", "x"), ""), done(10, create()), undone)) == []


def test_what_is_there_without_an_event_was_there_before() -> None:
    gpus, _ = documents_of(every_kind())
    cut = gpus[0]
    spans = slices_over_time(cut, [])
    assert {(each.place.start, each.began, each.ended) for each in spans} == {(n, None, None) for n in (0, 1, 2, 5, 6)}
    made = told(done(10, create(0, cut["uuid"])))
    (first,) = [each for each in slices_over_time(cut, made) if each.place == SLOT]
    assert (first.began, first.ended) == (10, None)


def test_what_has_gone_without_an_event_is_shown_until_it_was_last_heard_of() -> None:
    assert slices_over_time(GPU, told(done(10, create()), granted(25, "a"))) == [HistorySpan(SLOT, 10, 25)]
    assert slices_over_time(GPU, told(done(10, create()))) == [HistorySpan(SLOT, 10, 10)]


def test_a_share_was_held_from_its_grant_to_its_release() -> None:
    events = told(granted(10, "a"), (30.0, ShareReleased("ended"), "a"), granted(31, "b"), granted(32, "c"))
    alive = [{"id": "b", "grants": [], "created": "1970-01-01T00:00:31.000Z"}]
    assert shares_over_time(UUID, events, alive) == [
        HistorySpan(SLOT, 10, 30, "a"),
        HistorySpan(SLOT, 31, None, "b"),
        HistorySpan(SLOT, 32, 32, "c"),
    ]
    assert shares_over_time("another", events, alive) == []


def test_a_share_whose_grant_is_forgotten_is_held_since_it_was_made() -> None:
    gpus, allocations = documents_of(every_kind())
    (whole,) = shares_over_time(gpus[2]["uuid"], [], allocations)
    assert (whole.allocation_id, whole.began, whole.ended, str(whole.place)) == ("55555555", 1.0, None, "the whole GPU")


def test_a_span_meets_the_time_that_is_shown() -> None:
    assert HistorySpan(SLOT, None, None).meets(5)
    assert HistorySpan(SLOT, 1, 5).meets(5)
    assert not HistorySpan(SLOT, 1, 4).meets(5)


def test_what_the_events_tell_of_the_future_is_of_now_for_the_clock_was_put_back() -> None:
    for span in (HistorySpan(SLOT, 7, None), HistorySpan(SLOT, 7, 8)):
        assert span.meets(5)
        assert span.within(5, 6) == (6, 6)
    assert HistorySpan(SLOT, 8, 5.5).within(5, 6) == (5.5, 5.5)
    assert HistorySpan(SLOT, 5.5, 8).within(5, 6) == (5.5, 6)
    assert HistorySpan(SLOT, None, None).within(5, 6) == (5, 6)
