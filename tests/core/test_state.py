"""The snapshot of a node: its fingerprint, and what it answers about GPUs, instances and processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import boards, gpu_on, instance_of, occupant_lists, placed, uncuttable_gpu
from tranche.core.board import Board, board_by_key
from tranche.core.errors import GpuNotFound
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import ComputeInstance, GpuInstance, GpuProcess, GpuState, MigMode, NodeState

TRAINER = GpuProcess(4711, "python", 2**30)


def a100() -> Board:
    board = board_by_key("A100-40GB")
    assert board is not None
    return board


def slice_on(board: Board, name: str, start: int) -> GpuInstance:
    profile = board.profile(parse_profile(name))
    assert profile is not None
    return instance_of(profile, Placement(start, profile.size))


@st.composite
def gpus(draw: st.DrawFn) -> GpuState:
    board = draw(boards())
    instances = [
        instance_of(profile, spot, filled=draw(st.booleans())) for profile, spot in draw(occupant_lists(board))
    ]
    return gpu_on(board, instances=instances)


@given(gpus())
def test_what_is_not_the_cut_leaves_the_fingerprint(gpu: GpuState) -> None:
    instances = [
        instance._replace(
            id=instance.id + 20,
            memory=None,
            stray_processes=(TRAINER,),
            compute_instances=tuple(
                ci._replace(id=9, mig_index=None, processes=(TRAINER,)) for ci in instance.compute_instances
            ),
        )
        for instance in reversed(gpu.instances)
    ]
    busier = replace(gpu, instances=tuple(instances), processes=(TRAINER,), memory_free=0, index=7, lost=True)
    assert busier.fingerprint == gpu.fingerprint


@given(gpus(), gpus())
def test_two_cuts_have_one_fingerprint_only_when_they_are_the_same(one: GpuState, other: GpuState) -> None:
    def cut(gpu: GpuState) -> set[tuple[object, ...]]:
        return {(i.profile, i.placement, *((ci.name, ci.start) for ci in i.compute_instances)) for i in gpu.instances}

    assert (one.fingerprint == other.fingerprint) == (cut(one) == cut(other))


@given(gpus())
def test_each_instance_matters_to_the_fingerprint(gpu: GpuState) -> None:
    for instance in gpu.instances:
        rest = tuple(other for other in gpu.instances if other is not instance)
        assert replace(gpu, instances=rest).fingerprint != gpu.fingerprint


@pytest.mark.parametrize(
    "change",
    [{"mode": MigMode.DISABLED}, {"pending_mode": MigMode.DISABLED}, {"uuid": "GPU-another"}],
)
def test_mode_and_identity_matter_to_the_fingerprint(change: dict[str, object]) -> None:
    gpu = gpu_on(a100())
    assert replace(gpu, **change).fingerprint != gpu.fingerprint  # type: ignore[arg-type]


def test_the_inside_of_an_instance_matters_to_the_fingerprint() -> None:
    whole = slice_on(a100(), "2g.10gb", 0)
    part = ComputeInstance(0, parse_profile("1c.2g.10gb"), 0, 0, 1, "MIG-a", 0)
    prints = {
        gpu_on(a100(), instances=[whole._replace(compute_instances=inside)]).fingerprint
        for inside in ((), whole.compute_instances, (part,), (part._replace(start=1),), (part, part._replace(start=1)))
    }
    assert len(prints) == 5


def test_processes_are_counted_once() -> None:
    inside = slice_on(a100(), "1g.5gb", 0)
    busy = inside._replace(
        compute_instances=(inside.compute_instances[0]._replace(processes=(TRAINER,)),),
        stray_processes=(TRAINER, GpuProcess(4712, "")),
    )
    gpu = gpu_on(a100(), instances=[busy], processes=[TRAINER, GpuProcess(4713, "nvtop")])
    assert [process.pid for process in busy.processes] == [4711, 4712]
    assert sorted(process.pid for process in gpu.all_processes) == [4711, 4712, 4713]


def test_a_process_is_named_for_people() -> None:
    assert str(TRAINER) == "python (pid 4711)"
    assert str(GpuProcess(4712, "")) == "pid 4712"


def test_only_a_spanning_compute_instance_makes_a_whole_slice() -> None:
    whole = slice_on(a100(), "2g.10gb", 0)
    part = ComputeInstance(0, parse_profile("1c.2g.10gb"), 0, 0, 1, "MIG-a", 0)
    assert whole.whole_slice is whole.compute_instances[0]
    assert whole._replace(compute_instances=()).whole_slice is None
    assert whole._replace(compute_instances=(part,)).whole_slice is None
    assert whole._replace(compute_instances=(part, part._replace(id=1, start=1))).whole_slice is None


def test_instances_are_found_by_their_slot() -> None:
    instance = slice_on(a100(), "2g.10gb", 2)
    gpu = gpu_on(a100(), instances=[instance])
    assert gpu.instance_at(Placement(2, 2)) is instance
    assert gpu.instance_at(Placement(2, 1)) is None
    assert str(gpu.key(instance)) == f"2g.10gb at 2:2 of {gpu.uuid}"


@pytest.mark.parametrize(
    ("mode", "pending", "capable", "enabled", "waits"),
    [
        (MigMode.UNSUPPORTED, MigMode.UNSUPPORTED, False, False, False),
        (MigMode.DISABLED, MigMode.DISABLED, True, False, False),
        (MigMode.DISABLED, MigMode.ENABLED, True, False, True),
        (MigMode.ENABLED, MigMode.ENABLED, True, True, False),
        (MigMode.ENABLED, MigMode.DISABLED, True, True, True),
    ],
)
def test_mig_mode_now_and_after_a_reset(
    mode: MigMode, pending: MigMode, capable: bool, enabled: bool, waits: bool
) -> None:
    gpu = replace(gpu_on(a100(), mode=mode), pending_mode=pending)
    assert (gpu.mig_capable, gpu.mig_enabled, gpu.mode_pending) == (capable, enabled, waits)


def test_a_node_finds_its_gpus_and_names_those_it_has_not() -> None:
    node = NodeState((gpu_on(a100(), 0), uncuttable_gpu(1)))
    assert node.gpu(node.gpus[1].uuid) is node.gpus[1]
    assert node.by_index(0) is node.gpus[0]
    with pytest.raises(GpuNotFound, match="no GPU GPU-none on this machine"):
        node.gpu("GPU-none")
    with pytest.raises(GpuNotFound, match="no GPU 2 on this machine, which has 2"):
        node.by_index(2)


@given(boards())
def test_a_gpu_finds_the_profile_that_holds_a_slice(board: Board) -> None:
    gpu = gpu_on(board)
    for profile in placed(board):
        assert gpu.profile(profile.name) is profile
        for compute in profile.compute_profiles:
            assert gpu.profile(compute.name) is profile
