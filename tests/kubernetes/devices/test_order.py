"""The list of devices is the placement policy, for one pod after another and for many at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gpu_on, instance_of, node_views, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request, parse_request
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import InstanceKey, MigMode, NodeState
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind, devices_of
from tranche.kubernetes.devices.order import in_order
from tranche.kubernetes.dra.pool import grouped
from tranche.planning.decide.allocate import Granted, decide

MEANS = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), mps_clients=48)
A100 = board_by_key("A100-40GB")


def names(view: NodeView, profile: str) -> list[str]:
    wanted = parse_profile(profile)
    devices = [each for each in devices_of(view.node) if each.kind is OfferKind.SLICE and each.profile == wanted]
    return [each.name for each in in_order(devices, view)]


def a100s(count: int, mode: MigMode = MigMode.ENABLED) -> NodeView:
    assert A100 is not None
    return view_of(*(gpu_on(A100, index, mode=mode) for index in range(count)))


def claimed(view: NodeView, *grants: Slice | WholeGpu | FractionalShare) -> NodeView:
    request = Request(MigSlice(parse_profile("1g.5gb")))
    made = [
        Allocation(f"c-{number}", request, (grant,), Phase.ACTIVE, 0.0, keeper=ClaimKeeper("ns", "c", str(number)))
        for number, grant in enumerate(grants)
    ]
    return replace(view, allocations=(*view.allocations, *made))


@given(st.sampled_from(["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb"]))
def test_many_pods_at_once_are_placed_as_one_after_another(profile: str) -> None:
    """Whoever takes the list from the top without its being written anew gets what Tranche would have chosen each time."""
    view = a100s(2)
    listed = names(view, profile)
    request = parse_request(mig_profile=profile)
    for name in listed:
        decision = decide(view, request)
        if not isinstance(decision, Granted):
            break
        (grant,) = decision.grants
        assert isinstance(grant, Slice)
        device = next(each for each in devices_of(view.node) if each.name == name)
        assert device.offered == grant
        view = claimed(view, grant)


def test_a_slice_that_a_claim_gave_back_comes_first_only_where_no_place_costs_less() -> None:
    assert A100 is not None
    profile = A100.profile(parse_profile("1g.5gb"))
    assert profile is not None
    gpu = gpu_on(A100, instances=[instance_of(profile, Placement(0, 1))])
    left = [gpu.key(gpu.instances[0])]
    a_layouts, of_a_claim = view_of(gpu, owned=left), view_of(gpu, owned=left, requested=left)
    assert names(a_layouts, "1g.5gb")[0] == "gpu-0-1g-5gb-0"
    assert names(of_a_claim, "1g.5gb")[0] == "gpu-0-1g-5gb-6"


@given(node_views(max_gpus=3))
def test_each_list_holds_each_device_once(view: NodeView) -> None:
    view = replace(view, node=replace(view.node, sharing=MEANS))
    for members in grouped(devices_of(view.node)).values():
        ordered = in_order(members, view)
        assert len(ordered) == len(members)
        assert set(ordered) == set(members)


@given(node_views(max_gpus=3, mixed=False))
def test_a_free_place_on_an_untouched_gpu_comes_before_one_that_is_taken(view: NodeView) -> None:
    untouched = {gpu.uuid for gpu in view.node if not view.grants_on(gpu.uuid) and not gpu.instances}
    for members in grouped(devices_of(view.node)).values():
        ordered = in_order(members, view)
        if members[0].kind is OfferKind.SLICE and untouched & {each.gpu_uuid for each in ordered}:
            assert not overlaps_a_grant(ordered[0], view)


def overlaps_a_grant(device: NodeDevice, view: NodeView) -> bool:
    assert isinstance(device.offered, Slice)
    slots = [grant.slot for grant in view.grants_on(device.gpu_uuid)]
    return any(slot is None or slot.placement.overlaps(device.offered.placement) for slot in slots)


@pytest.mark.parametrize("ours", [True, False])
def test_an_idle_instance_is_used_again_before_another_is_made(ours: bool) -> None:
    assert A100 is not None
    profile = A100.profile(parse_profile("1g.5gb"))
    assert profile is not None
    made = instance_of(profile, Placement(1, 1))
    gpus = [gpu_on(A100, 0), gpu_on(A100, 1, instances=[made])]
    view = view_of(*gpus, owned=[InstanceKey(gpus[1].uuid, profile.name, Placement(1, 1))] if ours else [])
    assert names(view, "1g.5gb")[0] == "gpu-1-1g-5gb-1"
    # A larger slice leaves it alone where there is room elsewhere.
    assert names(view, "7g.40gb") == ["gpu-0-7g-40gb-0", "gpu-1-7g-40gb-0"]


def test_a_gpu_in_mig_mode_is_filled_before_another_is_switched() -> None:
    assert A100 is not None
    view = view_of(gpu_on(A100, 0, mode=MigMode.DISABLED), gpu_on(A100, 1))
    assert [name[:5] for name in names(view, "1g.5gb")] == ["gpu-1"] * 7 + ["gpu-0"] * 7


def test_whole_gpus_are_taken_from_the_other_end() -> None:
    view = a100s(3, MigMode.DISABLED)
    whole = [each for each in devices_of(view.node) if each.kind is OfferKind.WHOLE]
    assert [each.name for each in in_order(whole, view)] == ["gpu-2", "gpu-1", "gpu-0"]


def test_a_gpu_that_is_shared_already_is_filled_before_another_is_opened() -> None:
    node = NodeState((uncuttable_gpu(0), uncuttable_gpu(1), uncuttable_gpu(2)), sharing=MEANS)
    shared = [each for each in devices_of(node) if each.kind is OfferKind.SHARED_GPU]
    view = claimed(
        NodeView(node),
        FractionalShare(WholeGpu(node.gpus[0].uuid), 1 << 30, Sharing.MPS),
        FractionalShare(WholeGpu(node.gpus[1].uuid), 4 << 30, Sharing.MPS),
    )
    assert [each.name for each in in_order(shared, view)] == ["gpu-1-shared", "gpu-0-shared", "gpu-2-shared"]


def test_an_instance_that_is_shared_already_is_filled_first() -> None:
    view = replace(a100s(1), node=replace(a100s(1).node, sharing=MEANS))
    inside = [
        each
        for each in devices_of(view.node)
        if each.kind is OfferKind.SHARED_SLICE and each.profile == parse_profile("3g.20gb")
    ]
    slot = Slice(view.node.gpus[0].uuid, parse_profile("3g.20gb"), Placement(0, 4))
    view = claimed(view, FractionalShare(slot, 1 << 30, Sharing.MPS))
    assert [each.name for each in in_order(inside, view)] == ["gpu-0-3g-20gb-0-shared", "gpu-0-3g-20gb-4-shared"]


def test_groups_come_in_the_order_in_which_they_shall_be_tried() -> None:
    node = NodeState((*a100s(1).node, uncuttable_gpu(1)), sharing=MEANS)
    titles = [group.title for group in grouped(devices_of(node))]
    assert titles == sorted(titles)
    assert titles[:4] == ["1-0004864-1g-5gb", "1-0004864-1g-5gb-me", "1-0009984-1g-10gb", "1-0009984-2g-10gb"]
    assert titles[7] == "2-shared-gpu"
    assert titles[-1] == "4-whole"
