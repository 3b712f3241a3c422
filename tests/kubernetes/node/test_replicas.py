"""Replicas: each device whole or in parts and never both, parts that fit together, and the ids of NVIDIA's plugin."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.kubernetes.device_plugin.nodes import ALL_1G, cut, lost, node, t4, whole
from tests.strategies import node_views
from tranche.core.allocation import FractionalShare, NodeView, WholeGpu
from tranche.core.sharing import NO_SHARING, GpuPolicy, Sharing
from tranche.kubernetes.node.pod_settlement import HeldGrants
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy, SharedResource, held_with, replicated
from tranche.kubernetes.node.resources import MigStrategy, advertise

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
QUARTERS = ReplicaPolicy((SharedResource(GPU, 4, GPU),))


def devices_of(rules: ReplicaPolicy, *gpus: int) -> list[str]:
    advertised = replicated(advertise(node(*map(whole, gpus)), MigStrategy.NONE), rules, NO_SHARING)
    return [device.id for device in advertised.devices]


def test_ids_are_those_of_nvidias_plugin() -> None:
    uuid = whole(0).uuid
    assert devices_of(QUARTERS, 0) == [f"{uuid}::{number}" for number in range(4)]
    assert devices_of(NOT_SHARED, 0) == [uuid]


def test_devices_are_chosen_by_index_uuid_old_name_and_number() -> None:
    gpu = cut(1, *ALL_1G)
    state = node(whole(0), gpu)
    third = gpu.instances[2]
    (piece,) = third.compute_instances
    old = f"MIG-{gpu.uuid}/{third.id}/{piece.id}"
    for devices, chosen in ((("1:2",), 1), ((piece.uuid,), 1), ((old,), 1), (3, 3), (("1:0", old), 2), (("0",), 0)):
        rules = ReplicaPolicy((SharedResource(SLICE, 5, f"{SLICE}.part", devices),))
        found = {
            each.name: len(each.devices)
            for each in replicated(advertise(state, MigStrategy.MIXED), rules, NO_SHARING).resources
        }
        assert found == {GPU: 1, SLICE: 7 - chosen, **({f"{SLICE}.part": 5 * chosen} if chosen else {})}


def test_the_first_rule_that_chooses_a_device_counts() -> None:
    rules = ReplicaPolicy((SharedResource(GPU, 2, GPU, ("0",)), SharedResource(GPU, 3, GPU, (whole(0).uuid, "1"))))
    assert Counter(each.partition("::")[0] for each in devices_of(rules, 0, 1)) == {whole(0).uuid: 2, whole(1).uuid: 3}


def test_a_gpu_that_the_administrator_will_not_have_shared_is_not_offered_in_parts() -> None:
    plain = advertise(node(whole(0), whole(1)), MigStrategy.NONE)
    for use, count in ((GpuPolicy.AUTO, 8), (GpuPolicy.SHARED, 8), (GpuPolicy.OFF, 4), (GpuPolicy.MIG, 4)):
        shared = replicated(plain, QUARTERS, NO_SHARING, {whole(1).uuid: use})
        assert len(shared.devices) == count
        assert shared.unshared == (
            () if count == 8 else (f"nvidia.com/gpu is not offered on GPU 1: its policy is sharing={use}",)
        )


def test_slices_that_are_to_be_shared_where_no_gpu_has_mig_are_named() -> None:
    rules = ReplicaPolicy((SharedResource(SLICE, 4, SLICE), SharedResource(GPU, 2, GPU)))
    plain = replicated(advertise(node(t4(0)), MigStrategy.MIXED), rules, NO_SHARING)
    assert plain.unshared == ("nvidia.com/mig-1g.5gb is not offered: no GPU of this node supports MIG",)
    assert len(plain.devices) == 2
    for gpus in ((whole(0),), (t4(0), whole(1)), (lost(whole(0)),)):
        assert replicated(advertise(node(*gpus), MigStrategy.MIXED), rules, NO_SHARING).unshared == ()


def test_several_replicas_of_a_device_are_one_part_of_it() -> None:
    advertised = replicated(advertise(node(whole(0), whole(1)), MigStrategy.NONE), QUARTERS, NO_SHARING)
    first, second, _, _, other, *_ = advertised.devices
    whole_memory = whole(0).memory
    parts = tuple(
        FractionalShare(WholeGpu(whole(index).uuid), share * (whole_memory // 4), Sharing.TIME_SLICING)
        for index, share in ((0, 2), (1, 1))
    )
    memory = {part.device: whole_memory for part in parts}
    assert held_with([first, other, second]) == HeldGrants(parts, (first.id, other.id, second.id), memory)


RULES = st.lists(
    st.builds(
        lambda name, replicas, renamed, devices: SharedResource(
            name, replicas, f"{name}.shared" if renamed else name, devices
        ),
        st.sampled_from([GPU, SLICE, "nvidia.com/mig-3g.20gb"]),
        st.integers(2, 12),
        st.booleans(),
        st.none() | st.integers(1, 3) | st.lists(st.sampled_from(["0", "1", "0:0", "1:1"]), min_size=1).map(tuple),
    ),
    max_size=4,
).map(lambda rules: ReplicaPolicy(tuple(rules)))


@given(node_views(), st.sampled_from(MigStrategy), RULES)
def test_each_device_is_offered_whole_or_in_as_many_parts_as_fit(
    view: NodeView, strategy: MigStrategy, rules: ReplicaPolicy
) -> None:
    plain = advertise(view.node, strategy)
    assume(len({device.uuid for device in plain.devices}) == len(plain.devices))
    shared = replicated(plain, rules, NO_SHARING)
    ids = [device.id for device in shared.devices]
    assert len(set(ids)) == len(ids)
    assert {device.uuid for device in shared.devices} == {device.uuid for device in plain.devices}
    assert {resource.name for resource in plain.resources} <= {resource.name for resource in shared.resources}
    for uuid in {device.uuid for device in shared.devices}:
        mine = [device for device in shared.devices if device.uuid == uuid]
        numbers = [device.replica for device in mine]
        assert numbers in ([None], list(range(mine[0].replicas)))
        if numbers != [None]:
            held = held_with(mine)
            assert len(held.grants) == 1
            assert len(held.replicas) == len(mine) > 1
            (part,) = held.grants
            assert isinstance(part, FractionalShare)
            assert part.memory <= mine[0].memory
