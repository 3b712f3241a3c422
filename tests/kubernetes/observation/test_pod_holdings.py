"""Pods as allocations."""

from __future__ import annotations

from tests.strategies import FAMILY_BOARDS, gpu_on
from tranche.core.allocation import NodeView, Slice, WholeGpu
from tranche.core.devices import devices
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import ComputeInstance, GpuInstance, NodeState
from tranche.kubernetes.api.objects import PodRef
from tranche.kubernetes.observation.pod_holdings import view_with_pods
from tranche.planning.gpu_users import gpu_users

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


def test_what_pods_hold_is_in_use_by_name_and_the_rest_is_idle() -> None:
    first, second = PodRef("ns", "one"), PodRef("ns", "two")
    gpus = view().node.gpus
    held = view_with_pods(view(), {"MIG-a": first, "MIG-c": first, gpus[1].uuid: second})
    assert [allocation.id for allocation in held.allocations] == ["pod/ns/one", "pod/ns/two"]
    cut = gpu_users(held, gpus[0])
    assert [instance.placement.start for instance in cut.idle] == [1]
    assert all("pod ns/one" in str(user) for user in cut.users)
    whole = gpu_users(held, gpus[1])
    assert [user.occupant for user in whole.users] == [None]


def test_devices_that_the_node_has_no_more_hold_nothing() -> None:
    assert view_with_pods(view(), {"MIG-gone": PodRef("ns", "one")}).allocations == ()
