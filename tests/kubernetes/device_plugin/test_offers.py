"""What may be offered of devices that several share: what pods have, and as many more as there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.device_plugin.nodes import node, whole
from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase, WholeGpu
from tranche.core.keeper import Keeper, PodKeeper, ProcessKeeper
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import NO_SHARING, Sharing
from tranche.kubernetes.device_plugin.offers import given_as, offered
from tranche.kubernetes.node.replicas import ReplicaPolicy, SharedResource, replicated
from tranche.kubernetes.node.resources import MigStrategy, PluginDevice, advertise

GPU = "nvidia.com/gpu"
GPU_0 = whole(0)


def replicas(count: int) -> tuple[PluginDevice, ...]:
    rules = ReplicaPolicy((SharedResource(GPU, count, GPU),))
    return replicated(advertise(node(GPU_0), MigStrategy.NONE), rules, NO_SHARING).devices


def numbers(devices: tuple[PluginDevice, ...]) -> list[int | None]:
    return [device.replica for device in devices]


def part(share: int, of: int, sharing: Sharing = Sharing.TIME_SLICING) -> FractionalShare:
    return FractionalShare(WholeGpu(GPU_0.uuid), share * (GPU_0.memory // of), sharing)


def held(keeper: Keeper, *grants: Grant) -> Allocation:
    return Allocation("a", Request(WholeGpus(1)), grants, Phase.ACTIVE, 0.0, keeper=keeper)


def pod(*ids: int, resource: str = GPU, lingers: bool = False) -> PodKeeper:
    return PodKeeper(resource, "ns", "a", lingers=lingers, replicas=tuple(f"{GPU_0.uuid}::{number}" for number in ids))


def test_what_pods_have_is_offered_on_beside_the_free() -> None:
    devices = replicas(4)
    assert numbers(offered(devices, GPU, ())) == [0, 1, 2, 3]
    assert numbers(offered(devices, GPU, [held(pod(2), part(1, 4))])) == [0, 1, 2, 3]
    assert numbers(offered(devices, GPU, [held(pod(0, 1, 2, 3), part(4, 4))])) == [0, 1, 2, 3]


def test_what_pods_have_is_told_from_what_is_free() -> None:
    alone = (PluginDevice(GPU_0),)
    assert not given_as(alone[0], GPU, ())
    assert given_as(alone[0], GPU, [held(pod(), WholeGpu(GPU_0.uuid))])
    assert not given_as(alone[0], GPU, [held(pod(resource="nvidia.com/other"), WholeGpu(GPU_0.uuid))])
    assert not given_as(alone[0], GPU, [held(ProcessKeeper(1, 2), WholeGpu(GPU_0.uuid))])
    assert [given_as(each, GPU, [held(pod(2), part(1, 4))]) for each in replicas(4)] == [False, False, True, False]


def test_what_a_kubelet_counts_otherwise_is_not_offered() -> None:
    devices = replicas(4)
    for keeper in (pod(2, resource=f"{GPU}.shared"), pod(2, lingers=True)):
        assert numbers(offered(devices, GPU, [held(keeper, part(1, 4))])) == [0, 1, 3]


def test_a_device_that_one_has_alone_is_not_offered_in_parts_and_the_reverse() -> None:
    for keeper in (ProcessKeeper(1, 2), PodKeeper(GPU, "ns", "a")):
        assert offered(replicas(4), GPU, [held(keeper, WholeGpu(GPU_0.uuid))]) == ()
    assert offered((PluginDevice(GPU_0),), GPU, [held(pod(0), part(1, 4))]) == ()


def test_a_device_that_is_shared_in_another_way_is_not_offered() -> None:
    assert offered(replicas(4), GPU, [held(ProcessKeeper(1, 2), part(1, 4, Sharing.MPS))]) == ()


def test_a_command_that_has_a_part_takes_the_room_of_replicas() -> None:
    assert numbers(offered(replicas(4), GPU, [held(ProcessKeeper(1, 2), part(3, 8))])) == [0, 1]


def test_after_a_change_of_the_number_no_more_are_free_than_there_is_room_for() -> None:
    ten = [held(pod(0, 7), part(2, 10)), held(pod(1, 2, 3), part(3, 10))]
    assert numbers(offered(replicas(2), GPU, ten)) == [0, 1]
    fours = [held(pod(0, 1, 2), part(3, 4))]
    assert numbers(offered(replicas(10), GPU, fours)) == [0, 1, 2, 3, 4]


@given(
    st.integers(2, 12),
    st.lists(st.tuples(st.integers(2, 12), st.sets(st.integers(0, 11), max_size=3), st.booleans()), max_size=5),
)
def test_whatever_is_held_the_free_ones_fit_beside_it(
    count: int, held_before: list[tuple[int, set[int], bool]]
) -> None:
    taken: set[int] = set()
    allocations = []
    room = GPU_0.memory
    for of, ids, lingers in held_before:
        ids = ids - taken
        share = part(len(ids), of)
        if not ids or share.memory > room:
            continue
        taken |= ids
        room -= share.memory
        allocations.append(held(pod(*sorted(ids), lingers=lingers), share))
    found = numbers(offered(replicas(count), GPU, allocations))
    free = [number for number in found if number not in taken]
    assert len(free) * (GPU_0.memory // count) <= room
    assert found == sorted(set(found), key=lambda number: number or 0)
