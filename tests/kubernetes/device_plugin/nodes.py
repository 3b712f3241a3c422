"""Nodes for the pure tests: boards cut as a test says."""

from __future__ import annotations

from dataclasses import replace

from tests.strategies import gpu_on, instance_of, uncuttable_gpu
from tranche.core.board import Board, board_by_key
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import ComputeInstance, GpuState, MigMode, NodeState


def board(key: str) -> Board:
    found = board_by_key(key)
    assert found is not None
    return found


def cut(index: int, *slices: str, key: str = "A100-40GB") -> GpuState:
    """A GPU in MIG mode; slices are written `3g.20gb@4`. MIG indexes follow the order given."""
    made = []
    for number, text in enumerate(slices):
        name, _, start = text.partition("@")
        profile = board(key).profile(parse_profile(name))
        assert profile is not None
        instance = instance_of(profile, Placement(int(start or 0), profile.size))
        (piece,) = instance.compute_instances
        piece = piece._replace(uuid=f"MIG-{index}-{name}-{start or 0}", mig_index=number)
        made.append(instance._replace(compute_instances=(piece,)))
    return gpu_on(board(key), index, instances=made)


def shared(index: int) -> GpuState:
    """A GPU whose 3g.20gb instance is divided among three compute instances."""
    gpu = cut(index, "3g.20gb@4")
    name = parse_profile("1c.3g.20gb")
    pieces = tuple(ComputeInstance(n, name, 0, n, 1, f"MIG-{index}-c{n}", n) for n in range(3))
    return replace(gpu, instances=(gpu.instances[0]._replace(compute_instances=pieces),))


def whole(index: int, *, key: str = "A100-40GB") -> GpuState:
    return gpu_on(board(key), index, mode=MigMode.DISABLED)


def t4(index: int) -> GpuState:
    return uncuttable_gpu(index)


def lost(gpu: GpuState) -> GpuState:
    return replace(gpu, lost=True, mode=MigMode.UNSUPPORTED, pending_mode=MigMode.UNSUPPORTED, instances=())


def node(*gpus: GpuState) -> NodeState:
    return NodeState(gpus, "580.95.05", "13.580")


ALL_1G = tuple(f"1g.5gb@{start}" for start in range(7))
BALANCED = ("1g.5gb@0", "1g.5gb@1", "2g.10gb@2", "3g.20gb@4")
