"""What is asked at boot as a layout: numbers are those of each GPU, and the decision is that of any other layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import PLACEABLE_BOARDS, gpu_on, uncuttable_gpu, view_of
from tranche.core.board import Board, board_by_key
from tranche.core.errors import HardwareError, LayoutImpossible, LayoutUnknown, MigNotSupported, ProfileUnknown
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.partition import parse_partition
from tranche.core.profile import parse_profile
from tranche.core.state import GpuState, MigMode, NodeState
from tranche.planning.layouts.named_layouts import boot_layout
from tranche.planning.layouts.reconfigure import plan_layout

SEVEN = parse_partition("19,19,19,19,19,19,19")
CUSTOM = Layout("custom", (LayoutSpec(False),))


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


A100, A100_80, A30 = board("A100-40GB"), board("A100-80GB"), board("A30-24GB")


def cut(*gpus: GpuState, text: str = "7*19") -> list[list[str]]:
    """The slices that each GPU is planned to have, in the order of the GPUs."""
    layout = boot_layout(parse_partition(text), LayoutFile(), NodeState(gpus))
    plan_layout(view_of(*gpus), layout)
    specs = [layout.spec_for(gpu) for gpu in gpus]
    return [[] if spec is None else [str(name) for name in spec.slice_list] for spec in specs]


def test_seven_slices_on_each_of_eight_gpus_with_mig_off() -> None:
    gpus = [gpu_on(A100, index, mode=MigMode.DISABLED) for index in range(8)]
    layout = boot_layout(SEVEN, LayoutFile(), NodeState(tuple(gpus)))
    plan = plan_layout(view_of(*gpus), layout).plan
    assert [step.action for step in plan.steps].count("CreateInstance") == 56


def test_a_number_means_on_each_gpu_the_profile_that_has_it_there() -> None:
    assert cut(gpu_on(A100, 0), gpu_on(A100_80, 1), gpu_on(A100, 2)) == [
        ["1g.5gb"] * 7,
        ["1g.10gb"] * 7,
        ["1g.5gb"] * 7,
    ]


@given(st.sampled_from(PLACEABLE_BOARDS), st.data())
def test_a_number_and_its_name_are_the_same(board: Board, data: st.DataObject) -> None:
    profile = data.draw(st.sampled_from([each for each in board.profiles if each.id is not None]))
    node = NodeState((gpu_on(board),))
    by_number, by_name = (
        boot_layout(parse_partition(text), LayoutFile(), node).specs for text in (str(profile.id), str(profile.name))
    )
    assert by_number == by_name


def test_a_number_that_one_gpu_lacks_refuses_everything() -> None:
    with pytest.raises(ProfileUnknown, match=r"GPU 1 \(.*A30.*\) has no profile with the number 19") as refused:
        cut(gpu_on(A100, 0), gpu_on(A30, 1))
    assert "14 (1g.6gb)" in refused.value.hint


def test_more_slices_than_a_gpu_has_are_refused() -> None:
    with pytest.raises(LayoutImpossible, match=r"8x 1g\.5gb"):
        cut(gpu_on(A100), text="8*19")


def test_gpus_without_mig_are_passed_over_but_one_must_have_it() -> None:
    assert cut(gpu_on(A100, 0), text="19")[0] == ["1g.5gb"]
    mixed = (gpu_on(A100, 0), uncuttable_gpu(1))
    changes = plan_layout(view_of(*mixed), boot_layout(SEVEN, LayoutFile(), NodeState(mixed))).changes
    assert [change.gpu.index for change in changes] == [0]
    with pytest.raises(MigNotSupported, match="this machine has Tesla T4"):
        cut(uncuttable_gpu(0))


@pytest.mark.parametrize("others", [(A100,), (A100, A100_80)])
def test_a_lost_gpu_is_named_and_the_others_are_cut(others: tuple[Board, ...]) -> None:
    lost = replace(gpu_on(A100, 9), lost=True, profiles=())
    gpus = (*(gpu_on(each, index) for index, each in enumerate(others)), lost)
    decision = plan_layout(view_of(*gpus), boot_layout(SEVEN, LayoutFile(), NodeState(gpus)))
    assert len(decision.lost) == 1
    assert len(decision.plan.gpu_uuids) == len(others)
    with pytest.raises(HardwareError):
        plan_layout(view_of(lost), boot_layout(SEVEN, LayoutFile(), NodeState((lost,))))


def test_layouts_by_name() -> None:
    node, file = NodeState((gpu_on(A100),)), LayoutFile((CUSTOM,), "layouts.yaml")
    named = parse_partition
    assert boot_layout(named("custom"), file, node) is CUSTOM
    assert boot_layout(named("all-1g.5gb"), file, node).specs[0].slices == ((parse_profile("1g.5gb"), 7),)
    assert boot_layout(named("all-disabled"), file, NodeState((uncuttable_gpu(0),))).specs == (LayoutSpec(False),)
    with pytest.raises(LayoutUnknown) as refused:
        boot_layout(named("all-1g.6gb"), file, node)
    assert "did you mean" in refused.value.hint
    assert "layouts.yaml has the layouts custom" in refused.value.hint
