"""Device UUIDs and the grants that they stand for."""

from __future__ import annotations

from dataclasses import replace

from tests.strategies import FAMILY_BOARDS, gpu_on
from tranche.core.allocation import ComputeSlice, FractionalShare, NodeView, Slice, WholeGpu, device_uuid, devices
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeInstance, GpuInstance, NodeState

(A100,) = (board for board in FAMILY_BOARDS if board.key == "A100-40GB")


def slice_at(start: int, uuid: str) -> GpuInstance:
    name = parse_profile("1g.5gb")
    compute = ComputeInstance(0, name, 0, 0, 1, uuid, start)
    return GpuInstance(start + 7, name, 19, Placement(start, 1), None, (compute,))


def view() -> NodeView:
    cut = gpu_on(A100, 0, instances=[slice_at(0, "MIG-a"), slice_at(1, "MIG-b"), slice_at(2, "MIG-c")])
    return NodeView(NodeState((cut, gpu_on(A100, 1))))


def test_every_gpu_and_every_slice_is_a_device() -> None:
    node = view().node
    found = devices(node)
    assert set(found) == {node.gpus[0].uuid, node.gpus[1].uuid, "MIG-a", "MIG-b", "MIG-c"}
    assert found["MIG-b"] == Slice(node.gpus[0].uuid, parse_profile("1g.5gb"), Placement(1, 1))
    assert found[node.gpus[1].uuid] == WholeGpu(node.gpus[1].uuid)


def test_a_compute_instance_beside_others_is_a_device_of_its_own() -> None:
    inside = Slice("GPU-a", parse_profile("3g.20gb"), Placement(0, 4))
    names = parse_profile("1c.3g.20gb"), parse_profile("2c.3g.20gb")
    pieces = (ComputeInstance(0, names[0], 0, 0, 1, "MIG-x", 0), ComputeInstance(1, names[1], 1, 1, 2, "MIG-y", 1))
    gpu = replace(
        gpu_on(A100, 0), uuid="GPU-a", instances=(GpuInstance(1, inside.profile, 9, inside.placement, None, pieces),)
    )
    assert devices(NodeState((gpu,)))["MIG-y"] == ComputeSlice(inside, names[1], 1, 2)
    assert device_uuid(ComputeSlice(inside, names[0], 0, 1), gpu) == "MIG-x"
    assert device_uuid(FractionalShare(inside, 1, Sharing.MPS), gpu) == "", "no device spans the instance"
    assert device_uuid(FractionalShare(WholeGpu("GPU-a"), 1, Sharing.MPS), gpu) == "GPU-a"


def test_every_device_is_found_again_by_its_grant() -> None:
    for gpu in view().node:
        for uuid, grant in devices(NodeState((gpu,))).items():
            assert device_uuid(grant, gpu) == uuid


def test_a_grant_whose_instance_is_not_there_has_no_device() -> None:
    gpu = view().node.gpus[0]
    assert device_uuid(Slice(gpu.uuid, parse_profile("1g.5gb"), Placement(6, 1)), gpu) == ""
    assert device_uuid(Slice(gpu.uuid, parse_profile("2g.10gb"), Placement(0, 2)), gpu) == ""
