"""From state and layout to plan: what is wanted comes, what is used stays, and the fewest instances are touched."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests.grid_model import arrangements, carry_out, filled_instance
from tests.strategies import (
    PLACEABLE_BOARDS,
    gpu_on,
    instance_of,
    node_views,
    uncuttable_gpu,
    view_of,
)
from tests.support.length import cases
from tranche.core.allocation import Allocation, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import Board, board_by_key, catalogue
from tranche.core.errors import GpuBusy, HardwareError, LayoutImpossible, MigNotSupported, ProfileUnknown
from tranche.core.grid import PlacedInstance, Placement
from tranche.core.layout import Layout, LayoutSpec, parse_device_filter
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.core.state import GpuInstance, GpuProcess, GpuState, MigMode
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.present_layout import find_mismatches
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.layouts.recut import check_possible
from tranche.planning.occupancy.layout_occupancy import gpu_users
from tranche.planning.steps import CreateInstance, DestroyInstance, ResetGpu, SetMigMode

PYTHON = GpuProcess(4711, "python")


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


A100 = board("A100-40GB")
H100 = board("H100-80GB-SXM")
RTX = board("RTX-PRO-6000-96GB")


def layout(*slices: str, enabled: bool = True, devices: tuple[int, ...] | None = None) -> Layout:
    counts = Counter(map(parse_profile, slices))
    return Layout("wanted", (LayoutSpec(enabled, tuple(sorted(counts.items())), devices),))


def instance(of: Board, name: str, start: int, *inside: str, used: bool = False) -> GpuInstance:
    profile = of.profile(parse_profile(name))
    assert profile is not None
    spot = Placement(start, profile.size)
    made = filled_instance(profile, spot, [parse_profile(each) for each in inside or (name,)])
    if used:
        first, *others = made.compute_instances
        made = made._replace(compute_instances=(first._replace(processes=(PYTHON,)), *others))
    return made


def actions(decision: LayoutDecision) -> list[str]:
    return [str(step) for step in decision.plan.steps]


def test_an_empty_gpu_is_cut_as_declared() -> None:
    view = view_of(gpu_on(H100))
    decision = plan_layout(view, layout("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"))
    after = carry_out(view, decision.plan)
    assert sorted(map(str, (i.profile for i in after.node.gpus[0].instances))) == [
        "1g.10gb",
        "1g.10gb",
        "2g.20gb",
        "3g.40gb",
    ]


def test_what_is_right_already_stays() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "1g.10gb", 6), instance(H100, "3g.40gb", 0)]))
    decision = plan_layout(view, layout("1g.10gb", "2g.20gb", "3g.40gb"))
    assert actions(decision) == ["create 2g.20gb at 4:2"]


def test_a_layout_that_is_there_needs_no_step_and_any_placement_will_do() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "3g.40gb", 4), instance(H100, "1g.10gb", 0)]))
    decision = plan_layout(view, layout("1g.10gb", "3g.40gb"))
    assert decision.plan.empty
    assert not decision.changes_mode
    assert not decision.changes_cut


def test_of_those_in_the_way_the_ones_to_be_spared_stay_where_that_can_be() -> None:
    gpu = gpu_on(A100, instances=[instance(A100, "1g.5gb", start) for start in range(7)])
    small = parse_profile("1g.5gb")
    here = [
        Allocation(
            f"a-{start}", Request(MigSlice(small)), (Slice(gpu.uuid, small, Placement(start, 1)),), Phase.ACTIVE, 0.0
        )
        for start in (0, 1, 3, 4, 5, 6)
    ]
    view = view_of(gpu, allocations=here)
    balanced = layout("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")

    def leaving(*protected: str) -> set[str]:
        return {
            each.id for user in plan_layout(view, balanced, protected=protected).blockers for each in user.allocations
        }

    assert leaving() == {"a-3", "a-4", "a-5", "a-6"}
    assert leaving("a-3") == {"a-0", "a-1", "a-4", "a-5", "a-6"}
    assert len(leaving("a-0", "a-3", "a-5")) == 4, "not all can stay: as few leave as without them"


def test_an_instance_moves_only_when_it_has_to() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "1g.10gb", 1), instance(H100, "1g.10gb", 5)]))
    decision = plan_layout(view, layout("1g.10gb", "1g.10gb", "3g.40gb"))
    assert actions(decision) == [
        "destroy 1g.10gb at 1:1",
        "create 3g.40gb at 0:4",
        "create 1g.10gb at 4:1",
    ] or actions(decision) == ["destroy 1g.10gb at 5:1", "create 1g.10gb at 0:1", "create 3g.40gb at 4:4"]


def test_a_count_with_nines_too_many_is_refused_and_compared_without_being_written_out() -> None:
    spec = LayoutSpec(mig_enabled=True, slices=((parse_profile("1g.10gb"), 10**15),))
    view, huge = view_of(gpu_on(H100)), Layout("wanted", (spec,))
    with pytest.raises(LayoutImpossible, match="1000000000000000x"):
        plan_layout(view, huge)
    (mismatch,) = find_mismatches(view.node, huge)
    assert str(mismatch).endswith("it has no slices, not 1000000000000000x 1g.10gb")


def test_mig_on_without_slices_clears_what_is_idle() -> None:
    empty = instance_of(H100.profiles[0], Placement(3, 1), filled=False)
    view = view_of(gpu_on(H100, instances=[instance(H100, "3g.40gb", 4), empty]))
    assert actions(plan_layout(view, layout())) == ["destroy 1g.10gb at 3:1", "destroy 3g.40gb at 4:4"]


def test_mig_off_on_hopper_destroys_and_switches_without_reset() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "3g.40gb", 4)]))
    decision = plan_layout(view, layout(enabled=False))
    assert actions(decision) == ["destroy 3g.40gb at 4:4", "disable MIG mode"]
    assert decision.changes_mode
    assert not decision.changes_cut


def test_only_ampere_gpus_whose_mode_changes_are_reset() -> None:
    view = view_of(gpu_on(A100, 0), gpu_on(A100, 1, mode=MigMode.DISABLED), gpu_on(H100, 2, mode=MigMode.DISABLED))
    decision = plan_layout(view, layout())
    first, second, third = view.node.gpus
    assert decision.plan.steps_on(first.uuid) == ()
    assert decision.plan.steps_on(second.uuid) == (SetMigMode(second.uuid, True), ResetGpu(second.uuid))
    assert decision.plan.steps_on(third.uuid) == (SetMigMode(third.uuid, True),)
    assert set(decision.plan.fingerprints) == {second.uuid, third.uuid}


def test_a_pending_mode_change_is_finished_or_taken_back() -> None:
    pending = replace(gpu_on(A100, mode=MigMode.DISABLED), pending_mode=MigMode.ENABLED)
    assert actions(plan_layout(view_of(pending), layout())) == ["reset the GPU"]
    assert actions(plan_layout(view_of(pending), layout(enabled=False))) == ["disable MIG mode"]


def test_taking_a_pending_change_back_empties_the_gpu_first_or_is_blocked() -> None:
    idle = replace(gpu_on(A100, instances=[instance(A100, "3g.20gb", 4)]), pending_mode=MigMode.DISABLED)
    assert actions(plan_layout(view_of(idle), layout("3g.20gb"))) == [
        "destroy 3g.20gb at 4:4",
        "enable MIG mode",
        "create 3g.20gb at 0:4",
    ]
    used = replace(idle, instances=(instance(A100, "3g.20gb", 4, used=True),))
    assert plan_layout(view_of(used), layout("3g.20gb")).blockers


def test_a_gpu_that_another_layout_is_changing_is_blocked() -> None:
    view = replace(view_of(gpu_on(H100)), changing=frozenset({gpu_on(H100).uuid}))
    with pytest.raises(GpuBusy, match="GPU 0 is in use by another change of layout"):
        plan_layout(view, layout()).refuse_if_blocked()
    assert not plan_layout(view, layout(devices=(3,))).blockers


def test_skipping_the_reset_leaves_the_cut_undone_and_says_so() -> None:
    view = view_of(gpu_on(A100, mode=MigMode.DISABLED), gpu_on(H100, 1, mode=MigMode.DISABLED))
    decision = plan_layout(view, Layout("x", layout("3g.20gb", devices=(0,)).specs), skip_reset=True)
    assert actions(decision) == ["enable MIG mode"]
    assert decision.waiting_for_reset == (view.node.gpus[0],)
    switched = replace(view.node.gpus[0], pending_mode=MigMode.ENABLED)
    again = plan_layout(view_of(switched), layout("3g.20gb"), skip_reset=True)
    assert again.plan.empty
    assert again.waiting_for_reset == (switched,)


def test_mode_only_leaves_instances_alone() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "3g.40gb", 4)]), gpu_on(H100, 1, mode=MigMode.DISABLED))
    assert actions(plan_layout(view, layout("1g.10gb"), mode_only=True)) == ["enable MIG mode"]


def test_a_used_instance_is_kept_and_worked_around() -> None:
    used = instance(H100, "1g.10gb", 0, used=True)
    view = view_of(gpu_on(H100, instances=[used, instance(H100, "3g.40gb", 4)]))
    decision = plan_layout(view, layout(*["1g.10gb"] * 7))
    after = carry_out(view, decision.plan).node.gpus[0]
    assert used in after.instances
    assert len(after.instances) == 7
    assert decision.changes[0].cut.kept == (used,)


def test_a_used_instance_that_the_layout_lacks_blocks_and_is_named() -> None:
    used = instance(H100, "1g.10gb", 6, used=True)
    view = view_of(gpu_on(H100, instances=[used]), gpu_on(H100, 1))
    decision = plan_layout(view, layout("2g.20gb"))
    assert decision.plan.gpu_uuids == (view.node.gpus[1].uuid,), "nothing on the blocked GPU is touched"
    with pytest.raises(GpuBusy) as caught:
        decision.refuse_if_blocked()
    assert "1g.10gb at 6:1 of GPU 0" in caught.value.message
    assert used.compute_instances[0].uuid in caught.value.message
    assert "python (pid 4711)" in caught.value.message


def test_a_used_instance_in_the_wrong_place_blocks() -> None:
    view = view_of(
        gpu_on(
            H100,
            instances=[instance(H100, "1g.10gb", 1, used=True), instance(H100, "1g.10gb", 5, used=True)],
        )
    )
    decision = plan_layout(view, layout("1g.10gb", "1g.10gb", "3g.40gb"))
    assert len(decision.blockers) == 1, "one of the two is enough"


def test_an_allocation_blocks_like_a_process() -> None:
    gpu = gpu_on(H100, instances=[instance(H100, "1g.10gb", 6)])
    grant = Slice(gpu.uuid, parse_profile("1g.10gb"), Placement(6, 1))
    allocation = Allocation("a-7", Request(MigSlice(parse_profile("1g.10gb"))), (grant,), Phase.ACTIVE, 0.0, "train.py")
    view = view_of(gpu, allocations=[allocation])
    with pytest.raises(GpuBusy, match=r"allocation a-7 \(train.py\)"):
        plan_layout(view, layout("2g.20gb")).refuse_if_blocked()
    assert plan_layout(view, layout("1g.10gb", "2g.20gb")).blockers == ()


def test_a_slice_that_is_held_and_gone_is_no_part_of_a_layout_unless_it_is_about_to_be_made() -> None:
    """A restart of the machine takes every slice, and the register still says who holds them."""
    gpu = gpu_on(A100)
    grant = Slice(gpu.uuid, parse_profile("7g.40gb"), Placement(0, 8))
    for phase, blocked in ((Phase.ACTIVE, 1), (Phase.PREPARING, 0)):
        allocation = Allocation("a-7", Request(MigSlice(grant.profile)), (grant,), phase, 0.0, "train.py")
        decision = plan_layout(view_of(gpu, allocations=[allocation]), layout("7g.40gb"))
        assert decision.plan.empty
        assert len(decision.blockers) == blocked
    with pytest.raises(GpuBusy, match=r"7g.40gb at 0:8 of GPU 0 does not exist, but is held by allocation a-7"):
        plan_layout(
            view_of(gpu, allocations=[allocation._replace(phase=Phase.ACTIVE)]), layout("7g.40gb")
        ).refuse_if_blocked()


def test_no_slice_is_made_beside_one_that_is_held_and_gone() -> None:
    """The layout could not be complete, so it must not be called applied."""
    gpu = gpu_on(A100)
    grant = Slice(gpu.uuid, parse_profile("1g.5gb"), Placement(6, 1))
    allocation = Allocation("a-7", Request(MigSlice(grant.profile)), (grant,), Phase.ACTIVE, 0.0, "train.py")
    decision = plan_layout(view_of(gpu, allocations=[allocation]), layout(*7 * ("1g.5gb",)))
    assert decision.plan.empty
    with pytest.raises(GpuBusy, match=r"1g.5gb at 6:1 of GPU 0 does not exist, but is held by allocation a-7"):
        decision.refuse_if_blocked()


def test_a_gpu_that_is_granted_whole_is_not_cut() -> None:
    gpu = gpu_on(H100, mode=MigMode.DISABLED)
    allocation = Allocation("a-1", Request(WholeGpus(1)), (WholeGpu(gpu.uuid),), Phase.ACTIVE, 0.0)
    view = view_of(gpu, allocations=[allocation])
    assert plan_layout(view, layout()).blockers
    assert plan_layout(view, layout(enabled=False)).plan.empty


def test_a_process_on_the_whole_gpu_blocks_a_change_of_mode() -> None:
    view = view_of(gpu_on(H100, mode=MigMode.DISABLED, processes=[PYTHON]))
    with pytest.raises(GpuBusy, match=r"GPU 0 is in use by python \(pid 4711\)"):
        plan_layout(view, layout()).refuse_if_blocked()


def test_compute_slices_are_packed_into_as_few_instances_as_possible() -> None:
    view = view_of(gpu_on(A100))
    decision = plan_layout(view, layout("1c.3g.20gb", "1c.3g.20gb", "2c.3g.20gb", "2c.3g.20gb"))
    created = [step for step in decision.plan.steps if isinstance(step, CreateInstance)]
    pair = (parse_profile("2c.3g.20gb"), parse_profile("1c.3g.20gb"))
    assert [step.slices for step in created] == [pair, pair]


def test_an_instance_with_room_inside_is_filled_up() -> None:
    begun = instance(A100, "3g.20gb", 4, "2c.3g.20gb")
    view = view_of(gpu_on(A100, instances=[begun]))
    decision = plan_layout(view, layout("1c.3g.20gb", "2c.3g.20gb"))
    assert actions(decision) == ["create 3g.20gb at 4:4 with 2c.3g.20gb, 1c.3g.20gb"]
    assert carry_out(view, decision.plan).node.gpus[0].instances[0].compute_instances[0] == begun.compute_instances[0]


def test_a_slice_without_room_in_an_instance_begun_comes_into_another_one() -> None:
    """A 2c of a 3g starts at 0 or not at all, and there is a 1c."""
    view = view_of(gpu_on(A100, instances=[instance(A100, "3g.20gb", 4, "1c.3g.20gb")]))
    decision = plan_layout(view, layout("1c.3g.20gb", "2c.3g.20gb"))
    assert actions(decision) == ["create 3g.20gb at 0:4 with 2c.3g.20gb"]
    carry_out(view, decision.plan)


def test_an_instance_without_room_for_the_slice_is_made_anew_where_there_is_no_other_place() -> None:
    view = view_of(gpu_on(A100, instances=[instance(A100, "7g.40gb", 0, "1c.7g.40gb")]))
    decision = plan_layout(view, layout("4c.7g.40gb", "1c.7g.40gb"))
    assert actions(decision) == ["destroy 7g.40gb at 0:8", "create 7g.40gb at 0:8 with 4c.7g.40gb, 1c.7g.40gb"]
    carry_out(view, decision.plan)


def test_compute_slices_that_fit_in_one_order_only_are_made_in_that_order() -> None:
    view = view_of(gpu_on(A100))
    decision = plan_layout(view, layout("3c.7g.40gb", "2c.7g.40gb", "2c.7g.40gb"))
    assert len(decision.plan.steps) == 1
    carry_out(view, decision.plan)


def test_of_two_ways_to_keep_the_same_number_the_one_that_makes_less_is_taken() -> None:
    begun = instance(A100, "3g.20gb", 0, "1c.3g.20gb")
    full = instance(A100, "3g.20gb", 4, "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb")
    view = view_of(gpu_on(A100, instances=[begun, full]))
    assert actions(plan_layout(view, layout(*["1c.3g.20gb"] * 3))) == ["destroy 3g.20gb at 0:4"]


def test_an_instance_that_is_used_without_a_slice_of_its_own_blocks() -> None:
    profile = H100.profiles[0]
    stray = instance_of(profile, Placement(3, 1), filled=False, stray=[PYTHON])
    view = view_of(gpu_on(H100, instances=[stray]))
    for wanted in (layout(), layout("3g.40gb"), layout("1g.10gb")):
        assert [str(user) for user in plan_layout(view, wanted).blockers] == [
            "1g.10gb at 3:1 of GPU 0 is in use by python (pid 4711)"
        ]


def test_a_gpu_that_is_about_to_be_granted_whole_is_not_cut_anew() -> None:
    gpu = gpu_on(H100, instances=[instance(H100, "1g.10gb", 6)])
    allocation = Allocation("a-1", Request(WholeGpus(1)), (WholeGpu(gpu.uuid),), Phase.PREPARING, 0.0)
    view = view_of(gpu, allocations=[allocation])
    assert plan_layout(view, layout("3g.40gb")).blockers
    assert not plan_layout(view, layout("1g.10gb")).blockers


def test_a_gpu_that_the_layout_does_not_name_is_left_alone() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "3g.40gb", 4)]), gpu_on(H100, 1))
    decision = plan_layout(view, layout("1g.10gb", devices=(1,)))
    assert decision.plan.gpu_uuids == (view.node.gpus[1].uuid,)
    assert not find_mismatches(carry_out(view, decision.plan).node, layout("1g.10gb", devices=(1,)))


def test_the_last_spec_that_matches_counts() -> None:
    both = Layout("x", (*layout("1g.10gb").specs, *layout("3g.40gb", devices=(0,)).specs))
    view = view_of(gpu_on(H100), gpu_on(H100, 1))
    after = carry_out(view, plan_layout(view, both).plan).node
    assert [[str(i.profile) for i in gpu.instances] for gpu in after] == [["3g.40gb"], ["1g.10gb"]]


def test_gpus_without_mig() -> None:
    view = view_of(uncuttable_gpu(0), gpu_on(H100, 1))
    assert plan_layout(view, layout("3g.40gb")).plan.gpu_uuids == (view.node.gpus[1].uuid,)
    assert plan_layout(view, layout(enabled=False, devices=(0,))).plan.empty
    with pytest.raises(MigNotSupported, match="cannot set MIG mode on non MIG-capable GPU 0"):
        plan_layout(view, layout(devices=(0,)))


def test_a_lost_gpu_keeps_a_layout_from_being_complete_only_when_it_is_named() -> None:
    view = view_of(replace(gpu_on(H100), lost=True), gpu_on(H100, 1))
    with_the_lost_one = plan_layout(view, layout("1g.10gb"))
    assert with_the_lost_one.plan.gpu_uuids == (view.node.gpus[1].uuid,)
    with pytest.raises(HardwareError, match=r"GPU 0 \(GPU-.*\) is lost"):
        with_the_lost_one.refuse_if_lost()
    without_it = plan_layout(view, layout("1g.10gb", devices=(1,)))
    assert without_it.plan.steps
    without_it.refuse_if_lost()
    with pytest.raises(HardwareError, match=r"GPU 0 \(GPU-.*\) is lost"):
        plan_layout(view, layout("1g.10gb", devices=(0,)))


@pytest.mark.parametrize(
    ("of", "slices", "reason"),
    [
        (H100, ["1g.10gb"] * 8, "it has room for at most 7x 1g.10gb"),
        (H100, ["1g.10gb+me"] * 2, r"it has room for at most 1x 1g.10gb\+me"),
        (H100, ["7g.80gb", "1g.10gb"], "they need 9 memory slices, but it has only 8"),
        (H100, ["3g.40gb", "3g.40gb", "1g.10gb"], "they need 9 memory slices, but it has only 8"),
        (RTX, ["1g.24gb+me.all", "1g.24gb"], "exclude each other"),
        (H100, ["4c.4g.40gb", "4g.40gb"], "it has room for at most 1x 4g.40gb"),
        (H100, ["2g.20gb", "2g.20gb", "2g.20gb", "1g.20gb", "1g.10gb"], "need 9 memory slices"),
        (A100, ["1g.5gb"] * 1000, "it has room for at most 7x 1g.5gb"),
    ],
)
def test_what_no_gpu_can_hold_is_impossible_and_says_why(of: Board, slices: list[str], reason: str) -> None:
    used = view_of(gpu_on(of, mode=MigMode.DISABLED))
    with pytest.raises(LayoutImpossible, match=reason) as caught:
        plan_layout(used, layout(*slices))
    assert "GPU 0" in caught.value.message


def test_a_profile_that_nobody_offers_is_unknown_and_one_that_another_gpu_offers_is_impossible_here() -> None:
    with pytest.raises(ProfileUnknown, match=r"no GPU on this machine offers the profile 9g\.99gb"):
        plan_layout(view_of(gpu_on(H100)), layout("9g.99gb"))
    with pytest.raises(LayoutImpossible, match=r"it has no profile 1g\.5gb"):
        plan_layout(view_of(gpu_on(H100), gpu_on(A100, 1)), layout("1g.5gb"))
    with pytest.raises(LayoutImpossible, match=r"3g\.40gb has no compute instance"):
        plan_layout(view_of(gpu_on(H100)), Layout("x", (LayoutSpec(True, ((ProfileName(3, 40, 9), 1),)),)))


def test_filters_and_indexes_that_match_nothing_are_warned_of() -> None:
    strange = tuple(map(parse_device_filter, ["0x20B210DE", "0xFFFF10DE", "A100", "0x233010DE"]))
    spec = LayoutSpec(True, (), (0, 5), strange)
    decision = plan_layout(view_of(gpu_on(H100)), Layout("x", (spec,)))
    assert decision.warnings == (
        "layout 'x', entry 1: device-filter '0xFFFF10DE' matches no GPU on this machine",
        "layout 'x', entry 1: device-filter 'A100' is not a PCI id and matches no GPU",
        "layout 'x', entry 1: device index 5 matches no GPU: this machine has 1",
    )


def test_a_layout_written_for_many_boards_is_no_mistake_where_one_of_them_is() -> None:
    specs = tuple(
        LayoutSpec(True, (), None, (parse_device_filter(pci_id),)) for b in catalogue() for pci_id in b.pci_device_ids
    )
    assert plan_layout(view_of(gpu_on(H100)), Layout("all", specs)).warnings == ()
    others = tuple(spec for spec in specs if not spec.matches(gpu_on(H100)))
    assert plan_layout(view_of(gpu_on(H100)), Layout("others", others)).warnings == (
        f"layout 'others': none of its {len(others)} entries matches a GPU on this machine",
    )
    (one,) = (spec for spec in others if spec.filters[0].text == "0x20B210DE")
    assert plan_layout(view_of(gpu_on(H100)), Layout("one", (one,))).warnings == (
        "layout 'one', entry 1: device-filter '0x20B210DE' matches no GPU on this machine",
    )


@st.composite
def wanted_slices(draw: st.DrawFn, gpu: GpuState) -> list[ProfileName]:
    """Slices for that GPU: mostly near what it has, cut inside or not, possible or not."""
    names = [ci.name for p in gpu.profiles if p.starts for ci in p.compute_profiles]
    wanted = [name for i in gpu.instances for name in i.slices if draw(st.integers(0, 4))]
    wanted += draw(st.lists(st.sampled_from([n for n in names if n.spans_gpu_instance]), max_size=3))
    if draw(st.integers(0, 3)) == 0:
        wanted += draw(st.lists(st.sampled_from(names), max_size=3))
    return wanted


@st.composite
def views_with_layouts(draw: st.DrawFn) -> tuple[NodeView, Layout]:
    view = draw(node_views(max_gpus=3))
    view = replace(view, node=replace(view.node, gpus=tuple(g for g in view.node if not g.lost)))
    assume(view.node.gpus)
    specs = []
    for gpu in view.node:
        if not gpu.mig_capable or draw(st.integers(0, 5)) == 0:
            continue
        enabled = draw(st.integers(0, 4)) > 0
        counts = Counter(draw(wanted_slices(gpu)) if enabled else [])
        specs.append(LayoutSpec(enabled, tuple(sorted(counts.items())), (gpu.index,)))
    return view, Layout("random", tuple(specs))


@settings(max_examples=cases(300))
@given(views_with_layouts())
def test_a_plan_gives_the_layout_touches_nothing_in_use_and_is_then_done(case: tuple[NodeView, Layout]) -> None:
    view, wanted = case
    try:
        decision = plan_layout(view, wanted)
    except (LayoutImpossible, ProfileUnknown) as error:
        event(type(error).__name__)
        return
    event("blocked" if decision.blockers else "clear")
    after = carry_out(view, decision.plan)
    blocked = {change.gpu.uuid for change in decision.changes if change.blockers}
    for mismatch in find_mismatches(after.node, wanted):
        filled = {after.node.gpu(mismatch.gpu.uuid).key(i) for i in mismatch.gpu.instances if i.compute_instances}
        soon = [each for each in view.allocations if each.phase is Phase.PREPARING]
        promised = {grant.slot for grant in replace(view, allocations=tuple(soon)).grants_on(mismatch.gpu.uuid)}
        assert mismatch.gpu.uuid in blocked or promised - filled, str(mismatch)
    for gpu in view.node:
        spec = wanted.spec_for(gpu)
        if spec is None or gpu.uuid in blocked:
            assert after.node.gpu(gpu.uuid) == gpu
    again = plan_layout(after, wanted)
    assert again.plan.empty
    assert {user.gpu.uuid for user in again.blockers} == blocked


@settings(max_examples=cases(300))
@given(views_with_layouts())
def test_the_largest_possible_number_of_idle_instances_is_kept(case: tuple[NodeView, Layout]) -> None:
    view, wanted = case
    try:
        decision = plan_layout(view, wanted)
    except (LayoutImpossible, ProfileUnknown):
        return
    for change in decision.changes:
        spec = wanted.spec_for(change.gpu)
        users = gpu_users(view, change.gpu)
        if spec is None or change.blockers or not spec.mig_enabled or change.mode_steps:
            continue
        whole = all(name.spans_gpu_instance for name in spec.slice_list)
        if not whole or any(not i.slices or not i.slices[0].spans_gpu_instance for i in change.gpu.instances):
            continue
        fixed = tuple(user.occupant for user in users.slice_users if user.occupant is not None)
        idle = {PlacedInstance(i.profile, i.placement) for i in users.idle}
        rest = Counter(spec.slice_list) - Counter(spot.profile for spot in fixed)
        possible = [len(idle & found) for found in _beside(change.gpu, rest, fixed)]
        kept = len([i for i in users.idle if i not in change.cut.destroyed])
        assert kept == max(possible)


def _beside(
    gpu: GpuState, rest: Counter[ProfileName], fixed: tuple[PlacedInstance, ...]
) -> list[frozenset[PlacedInstance]]:
    """Arrangements of the rest beside the fixed: the model places equal instances in rising order, so fixed ones go first."""
    everything = arrangements(gpu, rest + Counter(spot.profile for spot in fixed))
    return [found for found in everything if set(fixed) <= found]


@settings(max_examples=cases(300))
@given(views_with_layouts())
def test_blocked_means_that_those_users_and_no_fewer_are_in_the_way(case: tuple[NodeView, Layout]) -> None:
    view, wanted = case
    try:
        decision = plan_layout(view, wanted)
    except (LayoutImpossible, ProfileUnknown):
        return
    for change in decision.changes:
        if not change.blockers or change.gpu.uuid in view.changing:
            continue
        gone = {user.occupant for user in change.blockers}
        assert change.steps == ()
        freed_gpu = replace(
            change.gpu,
            processes=(),
            instances=tuple(
                i._replace(
                    stray_processes=(),
                    compute_instances=tuple(ci._replace(processes=()) for ci in i.compute_instances),
                )
                if PlacedInstance(i.profile, i.placement) in gone
                else i
                for i in change.gpu.instances
            ),
        )
        ids = {each.id for user in change.blockers for each in user.allocations}
        freed = NodeView(
            replace(view.node, gpus=tuple(freed_gpu if g.uuid == change.gpu.uuid else g for g in view.node)),
            tuple(a for a in view.allocations if a.id not in ids),
        )
        assert not [u for u in plan_layout(freed, wanted).blockers if u.gpu.uuid == change.gpu.uuid]


@pytest.mark.parametrize("of", PLACEABLE_BOARDS, ids=lambda b: b.key)
def test_every_generated_layout_of_every_board_can_be_had_from_every_other(of: Board) -> None:
    view = view_of(gpu_on(of, mode=MigMode.DISABLED))
    layouts = generate_layouts(view.node).layouts
    for wanted in (*layouts, *reversed(layouts)):
        decision = plan_layout(view, wanted)
        view = carry_out(view, decision.plan)
        assert not find_mismatches(view.node, wanted)
        assert plan_layout(view, wanted).plan.empty


def test_check_possible_agrees_with_every_arrangement_of_the_model() -> None:
    gpu = gpu_on(board("A30-24GB"))
    names = [p.name for p in gpu.profiles]
    for first in names:
        for second in names:
            for third in names:
                wanted = [first, second, third]
                possible = next(arrangements(gpu, Counter(wanted)), None) is not None
                if possible:
                    check_possible(gpu, wanted, "layout x")
                else:
                    with pytest.raises(LayoutImpossible):
                        check_possible(gpu, wanted, "layout x")


def test_destroying_comes_before_creating() -> None:
    view = view_of(gpu_on(H100, instances=[instance(H100, "7g.80gb", 0)]))
    steps = plan_layout(view, layout("3g.40gb", "3g.40gb")).plan.steps
    assert isinstance(steps[0], DestroyInstance)
    assert all(isinstance(step, CreateInstance) for step in steps[1:])
