"""Checkpoints: the recorded format, and the plan that puts things back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.grid_model import carry_out, filled_instance
from tests.strategies import gpu_on, node_views, uncuttable_gpu, view_of
from tests.support.length import cases
from tranche.core.allocation import NodeView
from tranche.core.board import Board, board_by_key
from tranche.core.checkpoint import Checkpoint, checkpoint_to_data, parse_checkpoint, take_checkpoint
from tranche.core.errors import CheckpointInvalid
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import GpuInstance, GpuProcess, MigMode, NodeState
from tranche.planning.layouts.restore import plan_restore


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


H100 = board("H100-80GB-SXM")


def instance(name: str, start: int, *inside: str) -> GpuInstance:
    profile = H100.profile(parse_profile(name))
    assert profile is not None
    made = filled_instance(profile, Placement(start, profile.size), [parse_profile(each) for each in inside or (name,)])
    enums = {each.name: each.enum for each in profile.compute_profiles}
    computes = tuple(ci._replace(profile_id=enums[ci.name]) for ci in made.compute_instances)
    return made._replace(compute_instances=computes)


def test_the_recorded_json() -> None:
    gpu = gpu_on(H100, instances=[instance("1g.20gb", 6), instance("3g.40gb", 0, "2c.3g.40gb", "1c.3g.40gb")])
    off = gpu_on(H100, 1, mode=MigMode.DISABLED)
    data = checkpoint_to_data(take_checkpoint(NodeState((gpu, off, uncuttable_gpu(2)))))
    assert json.dumps(data, separators=(",", ":")) == (
        '{"Version":"v1","MigState":{"Devices":['
        '{"UUID":"GPU-00000000-0000-4000-8000-000000000000","MigMode":1,"GpuInstances":['
        '{"ProfileID":2,"Placement":{"Start":0,"Size":4},'
        '"ComputeInstances":[{"ProfileID":0,"EngProfileID":0},{"ProfileID":1,"EngProfileID":0}]},'
        '{"ProfileID":9,"Placement":{"Start":6,"Size":2},"ComputeInstances":[{"ProfileID":7,"EngProfileID":0}]}]},'
        '{"UUID":"GPU-00000001-0000-4000-8000-000000000000","MigMode":0,"GpuInstances":null}]}}'
    )


def test_what_is_right_already_stays_and_the_rest_returns_to_its_place() -> None:
    before = gpu_on(H100, instances=[instance("1g.10gb", 6), instance("3g.40gb", 0), instance("1g.10gb", 4)])
    now = replace(before, instances=(instance("1g.10gb", 6), instance("2g.20gb", 0)))
    decision = plan_restore(view_of(now), take_checkpoint(NodeState((before,))))
    assert [str(step) for step in decision.plan.steps] == [
        "destroy 2g.20gb at 0:2",
        "create 3g.40gb at 0:4",
        "create 1g.10gb at 4:1",
    ]


def test_what_is_used_now_and_was_not_there_then_blocks() -> None:
    used = instance("2g.20gb", 0)
    running = used.compute_instances[0]._replace(processes=(GpuProcess(9, "python"),))
    now = gpu_on(H100, instances=[used._replace(compute_instances=(running,))])
    decision = plan_restore(view_of(now), take_checkpoint(NodeState((gpu_on(H100),))))
    assert [str(user) for user in decision.blockers] == [
        f"2g.20gb at 0:2 of GPU 0 ({running.uuid}) is in use by python (pid 9)"
    ]
    assert decision.plan.empty


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "this is not a v1 checkpoint"),
        ([], "this is not a v1 checkpoint"),
        ({"Version": "v2"}, "this is not a v1 checkpoint"),
        ({"Version": "v1"}, "not a v1 checkpoint: the file has no 'MigState'"),
        ({}, "not a v1 checkpoint: the file has no 'Version'"),
        ({"Version": "v1", "MigState": {"Devices": [{"UUID": "GPU-1", "MigMode": 2}]}}, "MIG mode 2"),
        (
            {"Version": "v1", "MigState": {"Devices": [{"UUID": "GPU-1", "MigMode": 1}]}},
            "device 0 has no 'GpuInstances'",
        ),
        ({"Version": "v1", "MigState": {"Devices": "x"}}, "'Devices' of MigState is not a list"),
    ],
)
def test_malformed_checkpoints(data: object, message: str) -> None:
    with pytest.raises(CheckpointInvalid, match=message):
        parse_checkpoint(data)


def _recorded(instances: list[dict[str, object]], uuid: str = gpu_on(H100).uuid) -> Checkpoint:
    devices = [{"UUID": uuid, "MigMode": 1, "GpuInstances": instances}]
    return parse_checkpoint({"Version": "v1", "MigState": {"Devices": devices}})


def _entry(profile: int, start: int, size: int, *computes: int) -> dict[str, object]:
    inside = [{"ProfileID": enum, "EngProfileID": 0} for enum in computes]
    return {"ProfileID": profile, "Placement": {"Start": start, "Size": size}, "ComputeInstances": inside}


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (_recorded([], "GPU-elsewhere"), "names GPU-elsewhere, which is not on this machine"),
        (_recorded([], uncuttable_gpu(1).uuid), "which does not support MIG"),
        (_recorded([_entry(10, 0, 1, 0)]), "has no GPU-instance profile 10"),
        (_recorded([_entry(0, 0, 1, 3)]), "has no compute-instance profile 3"),
        (_recorded([_entry(2, 2, 4, 2)]), "which is not possible"),
        (_recorded([_entry(2, 0, 3, 2)]), "which is not possible"),
        (_recorded([_entry(2, 0, 4, 2), _entry(0, 1, 1, 0)]), "which is not possible"),
        (_recorded([_entry(2, 0, 4, 1, 1)]), "which is not possible"),
    ],
)
def test_checkpoints_that_this_machine_cannot_have(checkpoint: Checkpoint, message: str) -> None:
    with pytest.raises(CheckpointInvalid, match=message):
        plan_restore(view_of(gpu_on(H100), uncuttable_gpu(1)), checkpoint)


@settings(max_examples=cases(300))
@given(node_views(mixed=False), node_views(mixed=False))
def test_restoring_gives_back_what_was_recorded_and_touches_nothing_in_use(before: NodeView, now: NodeView) -> None:
    known = {gpu.uuid for gpu in now.node if not gpu.lost and gpu.mig_capable}
    gpus = [gpu for gpu in before.node if gpu.uuid in known and gpu.profiles == now.node.gpu(gpu.uuid).profiles]
    recorded = take_checkpoint(NodeState(tuple(gpus)))
    assert parse_checkpoint(json.loads(json.dumps(checkpoint_to_data(recorded)))) == recorded
    decision = plan_restore(now, recorded)
    after = carry_out(now, decision.plan)
    blocked = {user.gpu.uuid for user in decision.blockers}
    again = take_checkpoint(after.node)
    for then in recorded:
        if then.uuid not in blocked and not now.promised_on(then.uuid):
            shown = next(gpu for gpu in again if gpu.uuid == then.uuid)
            assert _shape(shown.uuid, again) == _shape(then.uuid, recorded)
        if then.uuid in blocked:
            assert after.node.gpu(then.uuid) == now.node.gpu(then.uuid)


def _shape(uuid: str, checkpoint: Checkpoint) -> object:
    gpu = next(each for each in checkpoint if each.uuid == uuid)
    instances = {(i.profile_enum, i.placement, tuple(sorted(i.compute_enums))) for i in gpu.instances}
    return gpu.mig_enabled, instances
