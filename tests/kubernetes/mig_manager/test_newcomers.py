"""Whom a waiting layout leaves where they are when it chooses anew whose end it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.strategies import gpu_on, instance_of, view_of
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.kubernetes.mig_manager.drain import NewPodTracker

BOARD = board_by_key("A100-40GB")
assert BOARD is not None
SMALL = BOARD.profile(parse_profile("1g.5gb"))
assert SMALL is not None
GPU = gpu_on(BOARD, instances=[instance_of(SMALL, Placement(start, 1)) for start in range(7)])


def held(*starts: int) -> NodeView:
    return view_of(GPU, allocations=[allocation(start) for start in starts])


def allocation(start: int) -> Allocation:
    name = parse_profile("1g.5gb")
    grant = Slice(GPU.uuid, name, Placement(start, 1))
    return Allocation(f"a-{start}", Request(MigSlice(name)), (grant,), Phase.ACTIVE, 0.0)


def marks(*starts: int) -> frozenset[str]:
    return frozenset(
        each.uuid
        for instance in GPU.instances
        if instance.placement.start in starts
        for each in instance.compute_instances
    )


def test_whoever_is_there_before_anything_is_marked_is_no_newcomer() -> None:
    newcomers = NewPodTracker()
    assert newcomers.after("x", held(0), frozenset()) == frozenset()
    assert newcomers.after("x", held(0, 1), marks(0, 1, 4)) == frozenset()


def test_whoever_was_given_what_nobody_had_marked_is_one_until_it_ends() -> None:
    newcomers = NewPodTracker()
    newcomers.after("x", held(0, 1), marks(0, 1, 4, 5, 6))
    assert newcomers.after("x", held(0, 1, 3), marks(0, 1, 4, 5, 6)) == {"a-3"}
    assert newcomers.after("x", held(0, 3), marks(0, 1, 2, 3, 4)) == {"a-3"}, "marked later, given before"
    assert newcomers.after("x", held(0), marks(0, 1, 2, 3, 4)) == frozenset()


def test_whoever_was_given_a_device_just_before_it_was_marked_is_none() -> None:
    newcomers = NewPodTracker()
    newcomers.after("x", held(0), marks(4, 5))
    assert newcomers.after("x", held(0, 4), marks(4, 5)) == frozenset()


@pytest.mark.parametrize(("layout", "marked"), [("y", marks(4)), ("x", frozenset[str]())])
def test_another_layout_and_one_that_is_through_begin_anew(layout: str, marked: frozenset[str]) -> None:
    newcomers = NewPodTracker()
    newcomers.after("x", held(), marks(4))
    assert newcomers.after("x", held(3), marks(4)) == {"a-3"}
    assert newcomers.after(layout, held(3), marked) == frozenset()


def test_what_lies_on_a_gpu_that_is_not_seen_is_spared_as_well() -> None:
    newcomers = NewPodTracker()
    newcomers.after("x", held(), marks(4))
    unseen = replace(held(3), node=replace(held().node, gpus=()))
    assert newcomers.after("x", unseen, marks(4)) == {"a-3"}
