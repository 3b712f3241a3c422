"""What a plan is foreseen to do is what the simulator then shows, in everything that a decision reads."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crash.scenario import FAMILIES
from tests.grid_model import free_placements
from tests.node.machines import Node, change, enable, node_of
from tests.node.processes import in_child
from tests.strategies import gpu_on, node_views, view_of
from tests.support.length import some_of
from tranche.core.allocation import NodeView
from tranche.core.board import GpuInstanceProfile, board_by_key
from tranche.core.errors import GpuNotFound
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.state import GpuState
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode, Step
from tranche.planning.steps.plan import Plan, apply

MOST_STEPS = 12


def decided_on(view: NodeView) -> object:
    """What decisions read of a view; ids, UUIDs of slices, free memory and the order of instances are left out."""
    gpus = []
    for gpu in view.node:
        instances = {
            (
                instance.profile,
                instance.placement,
                instance.memory,
                tuple(sorted((ci.start, ci.slices, ci.name) for ci in instance.compute_instances)),
                instance.processes,
            )
            for instance in gpu.instances
        }
        profiles = {(p.name, p.starts, p.size, p.slices, p.memory, p.max_instances) for p in gpu.profiles}
        gpus.append(
            (gpu.uuid, gpu.mode, gpu.pending_mode, gpu.lost, gpu.processes, instances, profiles, gpu.fingerprint)
        )
    return gpus, view.allocations, view.owned, view.changing


def random_steps(view: NodeView, rng: random.Random) -> Iterator[Step]:
    """Steps that can be carried out one after the other, on any GPU; some are in effect already."""
    for _ in range(rng.randint(1, MOST_STEPS)):
        gpu = rng.choice(view.node.gpus)
        step = random_step(gpu, rng)
        if step is not None:
            yield step
            view = apply(Plan("", (step,)), view)


def random_step(gpu: GpuState, rng: random.Random) -> Step | None:
    if not gpu.mig_capable:
        return None
    if gpu.mode_pending:
        return rng.choice([ResetGpu(gpu.uuid), ResetGpu(gpu.uuid), SetMigMode(gpu.uuid, gpu.mig_enabled)])
    if not gpu.instances and (not gpu.mig_enabled or rng.random() < 0.15):
        return SetMigMode(gpu.uuid, rng.random() < 0.9 if not gpu.mig_enabled else False)
    if gpu.instances and rng.random() < 0.3:
        instance = rng.choice(gpu.instances)
        return DestroyInstance(gpu.uuid, instance.profile, instance.placement)
    if gpu.instances and rng.random() < 0.3:
        return filling(gpu, rng)
    profile = rng.choice([each for each in gpu.profiles if each.starts])
    spots = free_placements(profile, gpu.occupants)
    if not spots:
        return None
    return CreateInstance(gpu.uuid, profile.name, rng.choice(spots), contents(profile, rng))


def filling(gpu: GpuState, rng: random.Random) -> Step:
    """An instance that is there gets as many of the smallest slices as it still takes."""
    instance = rng.choice(gpu.instances)
    profile = gpu.profile(instance.profile)
    assert profile is not None
    smallest = min(profile.compute_profiles, key=lambda each: each.slices)
    room = profile.slices - sum(ci.slices for ci in instance.compute_instances)
    more = (smallest.name,) * (room // smallest.slices)
    return CreateInstance(gpu.uuid, instance.profile, instance.placement, (*instance.slices, *more))


def contents(profile: GpuInstanceProfile, rng: random.Random) -> tuple[ProfileName, ...]:
    """A random way to cut an instance inside, from nothing to full."""
    inside: list[ProfileName] = []
    left = profile.slices
    while rng.random() < 0.8 and (fitting := [ci for ci in profile.compute_profiles if ci.slices <= left]):
        chosen = rng.choice(fitting)
        inside.append(chosen.name)
        left -= chosen.slices
    return tuple(inside)


@pytest.mark.parametrize("family", some_of(FAMILIES, 1))
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_simulator_shows_what_was_foreseen(family: str, seed: int) -> None:
    """The same steps as one plan, and as one plan each."""
    with tempfile.TemporaryDirectory() as folder:
        whole, single = Path(folder, "whole"), Path(folder, "single")
        for each in (whole, single):
            each.mkdir()
        steps = in_child(lambda: as_one_plan(node_of(whole, *FAMILIES[family]), seed))
        in_child(lambda: one_by_one(node_of(single, *FAMILIES[family]), steps))


def as_one_plan(node: Node, seed: int) -> Sequence[Step]:
    with node.host() as host:
        view = host.view()
        steps = tuple(random_steps(view, random.Random(seed)))
        foreseen = apply(Plan("random", steps), view)
        host.change(lambda view: Plan("random", steps))
        assert decided_on(host.view()) == decided_on(foreseen)
        return steps


def one_by_one(node: Node, steps: Sequence[Step]) -> None:
    with node.host() as host:
        uuids = {gpu.uuid for gpu in host.view().node}
        for step in steps:
            assert step.gpu_uuid in uuids
            plan = Plan("single", (step,))
            foreseen = apply(plan, host.view())
            host.change(lambda view, plan=plan: plan)  # type: ignore[misc]
            assert decided_on(host.view()) == decided_on(foreseen), str(step)


@pytest.mark.parametrize("board", ["A30-24GB", "A100-40GB", "H100-80GB-SXM", "RTX-PRO-6000-96GB"])
def test_compute_slices_come_to_lie_where_foreseen(tmp_path: Path, board: str) -> None:
    """Every way to fill an instance with the sizes that its profile has."""

    def compare() -> int:
        with node.host() as host:
            change(host, *enable(host.view().node.gpus[0]))
            gpu = host.view().node.gpus[0]
            largest = max((each for each in gpu.profiles if each.starts), key=lambda each: each.slices)
            spot = Placement(largest.starts[0], largest.size)
            fillings = ways_to_fill(largest, largest.slices)
            for inside in fillings:
                step = CreateInstance(gpu.uuid, largest.name, spot, inside)
                change(host, step)
                (shown,), (foreseen,) = host.view().node.gpus[0].instances, step.apply(gpu).instances
                starts = [sorted((ci.start, ci.name) for ci in each.compute_instances) for each in (shown, foreseen)]
                assert starts[0] == starts[1]
                change(host, DestroyInstance(gpu.uuid, largest.name, spot))
            return len(fillings)

    node = node_of(tmp_path, board)
    assert in_child(compare) >= 5


def ways_to_fill(profile: GpuInstanceProfile, room: int, most: int = 99) -> list[tuple[ProfileName, ...]]:
    ways: list[tuple[ProfileName, ...]] = [()]
    for ci in profile.compute_profiles:
        if ci.slices <= min(room, most):
            ways += [(ci.name, *rest) for rest in ways_to_fill(profile, room - ci.slices, ci.slices)]
    return ways


@given(node_views(), st.integers(0, 2**32))
def test_nothing_but_the_plan_s_gpus_changes(view: NodeView, seed: int) -> None:
    steps = tuple(random_steps(view, random.Random(seed)))
    plan = Plan("random", steps)
    after = apply(plan, view)
    for before, gpu in zip(view.node, after.node, strict=True):
        alone = replace(view, node=replace(view.node, gpus=(before,)))
        assert (gpu,) == apply(Plan("its own", plan.steps_on(before.uuid)), alone).node.gpus
        assert (gpu is before) or gpu.uuid in plan.gpu_uuids
    assert (after.allocations, after.changing) == (view.allocations, view.changing)
    assert {key for key in after.owned ^ view.owned if key.gpu_uuid not in plan.gpu_uuids} == set()


@given(node_views(), st.integers(0, 2**32))
def test_a_plan_that_is_in_effect_changes_nothing_again(view: NodeView, seed: int) -> None:
    step = next(iter(random_steps(view, random.Random(seed))), None)
    if step is not None:
        once = apply(Plan("", (step,)), view)
        assert step.in_effect(once.node.gpu(step.gpu_uuid))
        assert apply(Plan("", (step,)), once) == once


def test_a_plan_for_a_gpu_that_is_not_there_cannot_be_foreseen() -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    view = view_of(gpu_on(board))
    step = DestroyInstance("GPU-nowhere", parse_profile("1g.5gb"), Placement(0, 1))
    with pytest.raises(GpuNotFound):
        apply(Plan("", (step,)), replace(view))
