"""decide(): what it grants is free, legal and reached by its plan; what it prefers; what it refuses for good."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.grid_model import carry_out
from tests.strategies import (
    boards,
    gpu_on,
    holders_of,
    instance_of,
    node_views,
    placed,
    repeated,
    requests,
    requests_for,
    uncuttable_gpu,
    view_of,
)
from tranche.core.allocation import Allocation, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import Board, board_by_key
from tranche.core.errors import DoesNotFit, GpuNotFound, ProfileUnknown, SharingUnavailable, TooManyGpus, TrancheError
from tranche.core.grid import PlacedInstance, Placement, profiles_exclude
from tranche.core.profile import parse_profile
from tranche.core.quantity import GIB
from tranche.core.request import MigSlice, Request, parse_request
from tranche.core.state import GpuInstance, GpuProcess, InstanceKey, MigMode
from tranche.planning.decide.allocate import Granted, Waiting, decide
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode

PLACEMENT_ERRORS = (GpuNotFound, ProfileUnknown, DoesNotFit, SharingUnavailable)


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


A100, H100, A30 = board("A100-40GB"), board("H100-80GB-SXM"), board("A30-24GB")


def on_a100(name: str, start: int, *, used: bool = False, filled: bool = True, which: Board = A100) -> GpuInstance:
    profile = which.profile(parse_profile(name))
    assert profile is not None
    processes = (GpuProcess(77, "python"),) if used else ()
    return instance_of(profile, Placement(start, profile.size), filled=filled, processes=processes)


def grant_now(view: NodeView, request: Request, *, adopt_foreign_destroy: bool = False) -> Granted:
    decision = decide(view, request, adopt_foreign_destroy=adopt_foreign_destroy)
    assert isinstance(decision, Granted), decision
    return decision


def allocated(view: NodeView, decision: Granted, request: Request) -> NodeView:
    number = len(view.allocations)
    allocation = Allocation(f"a-{number}", request, decision.grants, Phase.ACTIVE, float(number))
    made = {grant.slot for grant in decision.grants if grant.slot is not None}
    return replace(view, allocations=(*view.allocations, allocation), owned=view.owned | made)


@given(st.data(), st.booleans())
def test_a_grant_is_free_and_its_plan_reaches_it(data: st.DataObject, foreign: bool) -> None:
    view = data.draw(node_views())
    request = data.draw(requests_for(view))
    try:
        decision = decide(view, request, adopt_foreign_destroy=foreign)
    except TrancheError:
        return
    if isinstance(decision, Waiting):
        assert decision.obstacles
        return
    after = carry_out(view, decision.plan)
    assert len({grant.gpu_uuid for grant in decision.grants}) == len(decision.grants)
    for grant in decision.grants:
        before, gpu = view.node.gpu(grant.gpu_uuid), after.node.gpu(grant.gpu_uuid)
        assert not gpu.lost
        assert gpu.uuid not in view.changing
        assert not gpu.mode_pending
        slot = grant.slot
        if slot is None:
            assert not gpu.mig_enabled
            assert not view.grants_on(grant.gpu_uuid)
            assert not before.all_processes
            continue
        instance = gpu.instance_at(slot.placement)
        assert instance is not None
        assert instance.profile == slot.profile
        assert instance.whole_slice is not None
        assert not instance.processes
        for promised in view.promised_on(grant.gpu_uuid):
            assert not promised.placement.overlaps(slot.placement)
            assert not profiles_exclude(promised.profile, slot.profile)
        assert not any(each.slot is None for each in view.grants_on(grant.gpu_uuid))
    for step in decision.plan.steps:
        if isinstance(step, DestroyInstance) and not foreign:
            assert InstanceKey(step.gpu_uuid, step.profile, step.placement) in view.owned


@given(node_views(), requests())
def test_what_waits_says_why_for_each_gpu_that_fails(view: NodeView, request: Request) -> None:
    try:
        decision = decide(view, request)
    except PLACEMENT_ERRORS:
        return
    if isinstance(decision, Waiting):
        indexes = [each.gpu_index for each in decision.obstacles]
        assert indexes == sorted(set(indexes))
        assert all(each.text for each in decision.obstacles)


@given(st.data())
def test_slices_are_granted_until_the_grid_is_full(data: st.DataObject) -> None:
    """Every profile alone fills an empty GPU as often as the driver allows."""
    chosen = data.draw(boards())
    profile = data.draw(st.sampled_from(placed(chosen)))
    view = view_of(gpu_on(chosen))
    count = 0
    while isinstance(decision := decide(view, Request(MigSlice(profile.name))), Granted):
        view = allocated(carry_out(view, decision.plan), decision, Request(MigSlice(profile.name)))
        count += 1
    assert count == profile.max_instances


def test_fifty_six_slices_of_a_p4d_and_not_one_more() -> None:
    view = view_of(*(gpu_on(A100, index, mode=MigMode.DISABLED) for index in range(8)))
    request = parse_request(mig_profile="1g.5gb")
    for _ in range(56):
        decision = grant_now(view, request)
        view = allocated(carry_out(view, decision.plan), decision, request)
    assert len({grant.slot for each in view.allocations for grant in each.grants}) == 56
    assert isinstance(decide(view, request), Waiting)


def test_an_idle_instance_is_reused_without_a_plan() -> None:
    gpu = gpu_on(A100, instances=[on_a100("1g.5gb", 2)])
    decision = grant_now(view_of(gpu), parse_request(mig_profile="1g.5gb"))
    assert decision.plan.empty
    assert decision.grants == (Slice(gpu.uuid, parse_profile("1g.5gb"), Placement(2, 1)),)


def test_an_idle_slice_that_a_request_had_made_gives_way_where_another_place_costs_less() -> None:
    gpu = gpu_on(A100, instances=[on_a100("1g.5gb", 0), on_a100("2g.10gb", 4, used=True), on_a100("1g.10gb", 6)])
    ours = [gpu.key(each) for each in gpu.instances]
    decision = grant_now(view_of(gpu, owned=ours, requested=ours), parse_request(mig_profile="1g.5gb"))
    assert [str(step) for step in decision.plan.steps] == ["destroy 1g.10gb at 6:2", "create 1g.5gb at 6:1"]


def test_a_slice_goes_beside_those_that_keep_their_gpu_longest() -> None:
    """A GPU with one large slice is empty again when one holder leaves, a GPU with two small ones when both do."""
    large = gpu_on(A100, 0, instances=[on_a100("4g.20gb", 0, used=True)])
    small = gpu_on(A100, 1, instances=[on_a100("2g.10gb", 0, used=True), on_a100("2g.10gb", 2, used=True)])
    decision = grant_now(view_of(large, small), parse_request(mig_profile="1g.5gb"))
    assert decision.grants[0].gpu_uuid == small.uuid


@pytest.mark.parametrize("start", [4, 5])
def test_an_idle_slice_is_given_again_where_no_place_costs_enough_less(start: int) -> None:
    gpu = gpu_on(A100, instances=[on_a100("1g.5gb", start), on_a100("1g.5gb", 6, used=True)])
    ours = [gpu.key(each) for each in gpu.instances]
    assert grant_now(view_of(gpu, owned=ours, requested=ours), parse_request(mig_profile="1g.5gb")).plan.empty


@pytest.mark.parametrize("ours", [True, False], ids=["a-layouts", "another-tools"])
def test_an_idle_slice_that_no_request_had_made_is_given_as_it_is_wherever_it_lies(ours: bool) -> None:
    gpu = gpu_on(A100, instances=[on_a100("1g.5gb", 0)])
    view = view_of(gpu, owned=[gpu.key(gpu.instances[0])] if ours else [])
    assert grant_now(view, parse_request(mig_profile="1g.5gb")).plan.empty


def test_a_layouts_idle_slice_is_destroyed_only_where_there_is_no_other_room() -> None:
    gpu = gpu_on(A100, instances=[on_a100("3g.20gb", 4)])
    view, request = view_of(gpu, owned=[gpu.key(gpu.instances[0])]), parse_request(mig_profile="1g.5gb")
    decision = grant_now(view, request)
    assert [str(step) for step in decision.plan.steps] == ["create 1g.5gb at 0:1"]
    full = replace(gpu, instances=(*gpu.instances, on_a100("4g.20gb", 0, used=True)))
    assert "destroy 3g.20gb at 4:4" in map(str, grant_now(replace(view, node=view_of(full).node), request).plan.steps)


@given(st.data())
def test_only_what_a_request_had_made_is_destroyed_for_a_better_place(data: st.DataObject) -> None:
    """What a layout had made is destroyed only where nothing else would do; another tool's, and what is in use, never."""
    view = data.draw(node_views())
    request = data.draw(requests_for(view))
    try:
        decision = decide(view, request)
    except TrancheError:
        return
    if isinstance(decision, Waiting):
        return
    destroyed = {
        InstanceKey(step.gpu_uuid, step.profile, step.placement)
        for step in decision.plan.steps
        if isinstance(step, DestroyInstance)
    }
    assert destroyed <= view.owned
    for slot in destroyed:
        instance = view.node.gpu(slot.gpu_uuid).instance_at(slot.placement)
        assert instance is not None
        assert not instance.processes
        assert not holders_of(view, slot)
    sizes = [view.node.gpu(slot.gpu_uuid).memory_slices - slot.placement.size for slot in slots_of(decision)]
    if isinstance(request.demand, MigSlice) and all(sizes) and destroyed - view.requested:
        as_another_tools = decide(replace(view, owned=view.requested & view.owned), request)
        assert isinstance(as_another_tools, Waiting) or any(step.changes_mode for step in as_another_tools.plan.steps)


def slots_of(decision: Granted) -> list[InstanceKey]:
    return [grant.slot for grant in decision.grants if grant.slot is not None]


def test_an_empty_instance_is_filled_before_another_is_made() -> None:
    gpu = gpu_on(A100, instances=[on_a100("1g.5gb", 2, filled=False)])
    decision = grant_now(view_of(gpu), parse_request(mig_profile="1g.5gb"))
    name = parse_profile("1g.5gb")
    assert decision.plan.steps == (CreateInstance(gpu.uuid, name, Placement(2, 1), (name,)),)


def test_an_instance_with_a_process_but_no_allocation_is_left_alone() -> None:
    gpu = gpu_on(A100, instances=[on_a100("7g.40gb", 0, used=True)])
    view = view_of(gpu, owned=[gpu.key(gpu.instances[0])])
    decision = decide(view, parse_request(mig_profile="1g.5gb"))
    assert isinstance(decision, Waiting)
    assert [p.pid for each in decision.obstacles for p in each.processes] == [77]


def test_the_fewest_own_idle_instances_are_destroyed() -> None:
    singles = [on_a100("1g.5gb", start) for start in range(3)]
    gpu = gpu_on(A100, instances=[*singles, on_a100("3g.20gb", 4)])
    view = view_of(gpu, owned=[gpu.key(instance) for instance in gpu.instances])
    decision = grant_now(view, parse_request(mig_profile="2g.10gb"))
    assert sum(isinstance(step, DestroyInstance) for step in decision.plan.steps) == 1


def test_foreign_idle_instances_are_destroyed_only_when_told() -> None:
    gpu = gpu_on(A100, instances=[on_a100("7g.40gb", 0)])
    request = parse_request(mig_profile="1g.5gb")
    waiting = decide(view_of(gpu), request)
    assert isinstance(waiting, Waiting)
    assert waiting.obstacles[0].reason == "ForeignInstances"
    decision = grant_now(view_of(gpu), request, adopt_foreign_destroy=True)
    assert isinstance(decision.plan.steps[0], DestroyInstance)


def test_free_room_goes_before_a_change_of_mode() -> None:
    view = view_of(gpu_on(A100, 0, mode=MigMode.DISABLED), gpu_on(A100, 1))
    assert grant_now(view, parse_request(mig_profile="1g.5gb")).grants[0].gpu_uuid == view.node.gpus[1].uuid


@pytest.mark.parametrize(("chosen", "reset"), [(A100, True), (H100, False), (A30, True)])
def test_mode_is_turned_on_with_a_reset_only_where_one_is_needed(chosen: Board, reset: bool) -> None:
    gpu = gpu_on(chosen, mode=MigMode.DISABLED)
    decision = grant_now(view_of(gpu), parse_request(gpu="0.25"))
    kinds = [type(step) for step in decision.plan.steps]
    assert kinds == ([SetMigMode, ResetGpu, CreateInstance] if reset else [SetMigMode, CreateInstance])


def test_whole_gpus_take_uncut_ones_first_and_uncut_an_idle_one_next() -> None:
    cut = gpu_on(A100, 0, instances=[on_a100("1g.5gb", 0)])
    view = view_of(cut, gpu_on(A100, 1, mode=MigMode.DISABLED), owned=[cut.key(cut.instances[0])])
    assert grant_now(view, parse_request(gpus="1")).grants == (WholeGpu(view.node.gpus[1].uuid),)
    both = grant_now(view, parse_request(gpus="2"))
    assert [type(step) for step in both.plan.steps] == [DestroyInstance, SetMigMode, ResetGpu]


def test_a_request_for_all_the_memory_takes_an_uncut_gpu_or_the_full_slice() -> None:
    request = parse_request(gpu_memory="20Gi")
    uncut, cut = gpu_on(A100, 1, mode=MigMode.DISABLED), gpu_on(A100, 0)
    assert grant_now(view_of(cut, uncut), request).grants == (WholeGpu(uncut.uuid),)
    grant = grant_now(view_of(cut), request).grants[0]
    assert grant.slot is not None
    assert str(grant.slot.profile) == "7g.40gb"


def test_a_slice_that_is_being_prepared_is_an_occupant_before_it_exists() -> None:
    gpu = gpu_on(A100)
    grant = Slice(gpu.uuid, parse_profile("7g.40gb"), Placement(0, 8))
    view = view_of(gpu, allocations=[Allocation("a-1", parse_request(gpus="1"), (grant,), Phase.PREPARING, 0.0)])
    decision = decide(view, parse_request(mig_profile="1g.5gb"))
    assert isinstance(decision, Waiting)
    assert decision.obstacles[0].allocation_ids == ("a-1",)


def test_an_instance_under_a_promise_is_neither_reused_nor_destroyed() -> None:
    """The idle 3g lies where a 4g is being prepared: the plan of that allocation owns it now."""
    gpu = gpu_on(A100, instances=[on_a100("3g.20gb", 0), on_a100("3g.20gb", 4, used=True)])
    grant = Slice(gpu.uuid, parse_profile("4g.20gb"), Placement(0, 4))
    allocation = Allocation("a-1", parse_request(mig_profile="4g.20gb"), (grant,), Phase.PREPARING, 0.0)
    view = view_of(gpu, allocations=[allocation], owned=[gpu.key(each) for each in gpu.instances])
    assert isinstance(decide(view, parse_request(mig_profile="3g.20gb")), Waiting)


def test_a_gpu_that_a_layout_is_changing_is_left_alone() -> None:
    view = view_of(gpu_on(A100, instances=[on_a100("1g.5gb", 0)]), changing=[gpu_on(A100).uuid])
    decision = decide(view, parse_request(mig_profile="1g.5gb"))
    assert isinstance(decision, Waiting)
    assert decision.obstacles[0].reason == "LayoutChanging"


def test_the_slice_with_media_extensions_waits_for_the_other_one() -> None:
    gpu = gpu_on(A100, instances=[on_a100("1g.5gb+me", 0, used=True)])
    waiting = decide(view_of(gpu), parse_request(mig_profile="1g.5gb+me"))
    assert isinstance(waiting, Waiting)
    assert "media" in waiting.obstacles[0].text
    idle = gpu_on(A100, instances=[on_a100("1g.5gb+me", 0)])
    assert grant_now(view_of(idle), parse_request(mig_profile="1g.5gb+me")).plan.empty


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"gpus": "3"}, TooManyGpus, "this machine has 2"),
        ({"gpu_memory": "500G"}, DoesNotFit, "largest has 40 GiB"),
        ({"mig_profile": "1g.7gb"}, ProfileUnknown, "1g.7gb"),
        ({"mig_profile": "1g.5gb", "gpu_model": "T4"}, ProfileUnknown, "none supports MIG"),
        ({"gpu": "0.5", "gpu_model": "t4"}, SharingUnavailable, "MPS"),
        ({"gpu_memory": "4Gi", "gpu_model": "t4"}, SharingUnavailable, "MPS"),
        ({"gpu": "0.5", "gpu_model": "H100"}, GpuNotFound, "'H100'"),
        ({"gpus": "2", "gpu_model": "T4"}, TooManyGpus, "with 'T4' in the name"),
    ],
)
def test_what_can_never_be_served_is_an_error(options: dict[str, str], error: type[TrancheError], words: str) -> None:
    with pytest.raises(error, match=words):
        decide(view_of(gpu_on(A100, 0), uncuttable_gpu(1)), parse_request(**options))


def test_an_unknown_profile_names_what_the_machine_offers() -> None:
    with pytest.raises(ProfileUnknown) as caught:
        decide(view_of(gpu_on(A100)), parse_request(mig_profile="9g.90gb"))
    assert "1g.5gb, 1g.5gb+me, 1g.10gb" in caught.value.hint


def test_a_machine_without_gpus_says_so() -> None:
    with pytest.raises(GpuNotFound, match="no GPU"):
        decide(view_of(), parse_request(gpus="1"))


def test_a_promised_slot_counts_even_with_occupant_equality() -> None:
    gpu = gpu_on(A100)
    grant = Slice(gpu.uuid, parse_profile("1g.5gb"), Placement(6, 1))
    view = view_of(
        gpu, allocations=[Allocation("a-1", parse_request(mig_profile="1g.5gb"), (grant,), Phase.ACTIVE, 0.0)]
    )
    assert view.promised_on(gpu.uuid) == (PlacedInstance(parse_profile("1g.5gb"), Placement(6, 1)),)
    assert grant_now(view, parse_request(mig_profile="1g.5gb")).grants[0] != grant


@given(st.data(), st.integers(17, 40))
def test_on_a_large_machine_every_gpu_that_is_in_the_way_is_counted(data: st.DataObject, gpus: int) -> None:
    view = repeated(data.draw(node_views()), gpus)
    try:
        decision = decide(view, data.draw(requests_for(view)))
    except PLACEMENT_ERRORS:
        return
    if isinstance(decision, Waiting):
        assert len(decision.obstacles) <= 16
        assert sum(1 + each.alike for each in decision.obstacles) + decision.unnamed + decision.ready == gpus


def test_a_full_machine_of_many_gpus_is_told_in_one_line() -> None:
    view = view_of(*(gpu_on(A100, index) for index in range(100)))
    held = tuple(
        Allocation(f"a-{gpu.index}", parse_request(gpus="1"), (WholeGpu(gpu.uuid),), Phase.ACTIVE, 0.0)
        for gpu in view.node
    )
    decision = decide(replace(view, allocations=held), parse_request(mig_profile="1g.5gb"))
    assert isinstance(decision, Waiting)
    assert decision.reasons == ("GPU 0: held whole by a-0 (and 99 more GPUs like it)",)


def test_obstacles_that_are_not_alike_are_named_up_to_a_number_and_the_rest_is_counted() -> None:
    small = [uncuttable_gpu(index, memory=(index + 1) * GIB) for index in range(20)]
    large = uncuttable_gpu(20, memory=80 * GIB)
    held = Allocation("a-1", parse_request(gpus="1"), (WholeGpu(large.uuid),), Phase.ACTIVE, 0.0)
    decision = decide(view_of(*small, large, allocations=[held]), parse_request(gpu_memory="70Gi"))
    assert isinstance(decision, Waiting)
    assert [each.gpu_index for each in decision.obstacles] == list(range(16))
    assert decision.unnamed == 5
    assert decision.reasons[-1] == "and 5 more GPUs"
