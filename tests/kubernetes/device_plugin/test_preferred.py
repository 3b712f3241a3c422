"""Preferred allocation: slices packed by GPU, whole GPUs aligned by link."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.device_plugin.nodes import cut, whole
from tranche.kubernetes.device_plugin.offers import Links, preferred
from tranche.kubernetes.device_plugin.settings import SharedPolicy
from tranche.kubernetes.node.resources import PluginDevice, slices_of


def slices(counts: list[int]) -> list[PluginDevice]:
    """Free 1g slices: so many on each GPU."""
    gpus = [cut(index, *(f"1g.5gb@{start}" for start in range(count))) for index, count in enumerate(counts)]
    return [device for gpu in gpus for device in slices_of(gpu)]


def gpus_of(uuids: tuple[str, ...]) -> Counter[int]:
    return Counter(int(uuid.split("-")[1]) for uuid in uuids)


@pytest.mark.parametrize(
    ("free", "size", "expected"),
    [
        ([7, 3, 5], 1, {1: 1}),
        ([7, 3, 5], 3, {1: 3}),
        ([7, 3, 5], 4, {2: 4}),
        ([7, 3, 5], 8, {0: 7, 1: 1}),
        ([7, 7], 2, {0: 2}),
        ([2, 2], 4, {0: 2, 1: 2}),
        ([1, 1], 5, {0: 1, 1: 1}),
    ],
)
def test_slices_are_packed(free: list[int], size: int, expected: dict[int, int]) -> None:
    assert gpus_of(preferred(slices(free), (), size, {})) == expected


def test_slices_beside_the_required_ones_come_first() -> None:
    assert gpus_of(preferred(slices([1, 7]), ("MIG-1-1g.5gb-4",), 3, {})) == {1: 3}


FREE = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@given(FREE, st.integers(1, 20), st.data())
def test_packing_uses_the_fewest_gpus(free: list[int], size: int, data: st.DataObject) -> None:
    devices = slices(free)
    uuids = [device.uuid for device in devices]
    must = data.draw(st.lists(st.sampled_from(uuids), unique=True, max_size=size)) if uuids else []
    chosen = preferred(data.draw(st.permutations(devices)), must, size, {})
    assert len(chosen) == len(set(chosen)) == min(size, len(devices))
    assert set(must) <= set(chosen) <= set(uuids)
    used = set(gpus_of(chosen))
    entered = set(gpus_of(tuple(must)))
    for fewer in range(len(used)):
        for parents in combinations(range(len(free)), fewer):
            room = sum(free[index] for index in parents)
            assert room < len(chosen) or not entered <= set(parents), f"{parents} would have done"


def links(pairs: dict[tuple[int, int], int]) -> Links:
    return {frozenset(whole(index).uuid for index in pair): worth for pair, worth in pairs.items()}


def numbers(uuids: tuple[str, ...]) -> list[int]:
    return [int(uuid.removeprefix("GPU-").split("-")[0], 16) for uuid in uuids]


def test_whole_gpus_are_aligned_by_link() -> None:
    free = [PluginDevice(whole(index)) for index in range(4)]
    bridged = links({(0, 3): 400, (1, 2): 400, (0, 1): 50, (2, 3): 50})
    assert numbers(preferred(free, (), 2, bridged)) == [0, 3]
    assert numbers(preferred(free, (whole(2).uuid,), 2, bridged)) == [2, 1]
    assert numbers(preferred(free, (), 1, {})) == [0]


def test_among_equal_sets_the_one_that_leaves_the_better_rest_is_taken() -> None:
    free = [PluginDevice(whole(index)) for index in range(3)]
    assert numbers(preferred(free, (), 1, links({(0, 1): 400}))) == [2], "the bridged pair stays together"


PAIRS = list(combinations(range(6), 2))


@given(st.lists(st.sampled_from([0, 20, 400]), min_size=len(PAIRS), max_size=len(PAIRS)), st.integers(1, 6))
def test_no_other_set_is_better_linked(worths: list[int], size: int) -> None:
    table = links(dict(zip(PAIRS, worths, strict=True)))
    devices = [PluginDevice(whole(index)) for index in range(6)]

    def together(chosen: tuple[int, ...]) -> int:
        return sum(worth for pair, worth in zip(PAIRS, worths, strict=True) if set(pair) <= set(chosen))

    chosen = tuple(numbers(preferred(devices, (), size, table)))
    assert len(chosen) == size
    assert together(chosen) == max(together(other) for other in combinations(range(6), size))


def test_more_gpus_than_can_be_compared_set_by_set() -> None:
    devices = [PluginDevice(whole(index)) for index in range(24)]
    even = links(dict.fromkeys(combinations(range(0, 24, 2), 2), 400))
    assert numbers(preferred(devices, (), 12, even)) == list(range(0, 24, 2))


def replicas(free: list[int], of: int = 4) -> list[PluginDevice]:
    """Free replicas: so many of each GPU's."""
    return [
        PluginDevice(whole(index), replica=number, replicas=of)
        for index, count in enumerate(free)
        for number in range(count)
    ]


def taken(ids: tuple[str, ...]) -> dict[int, int]:
    return dict(Counter(numbers(tuple(each.partition("::")[0] for each in ids))))


@pytest.mark.parametrize(
    ("free", "size", "packed", "spread"),
    [
        ([4, 4, 4], 1, {0: 1}, {0: 1}),
        ([3, 4, 1], 1, {2: 1}, {1: 1}),
        ([3, 4, 1], 2, {0: 2}, {1: 2}),
        ([3, 4, 1], 5, {1: 4, 2: 1}, {0: 1, 1: 4}),
        ([2, 2], 4, {0: 2, 1: 2}, {0: 2, 1: 2}),
        ([1], 3, {0: 1}, {0: 1}),
    ],
)
def test_replicas_of_one_container_are_of_one_device_where_there_is_room(
    free: list[int], size: int, packed: dict[int, int], spread: dict[int, int]
) -> None:
    assert taken(preferred(replicas(free), (), size, {}, SharedPolicy.PACKED)) == packed
    for policy in (SharedPolicy.SPREAD, SharedPolicy.DISTRIBUTED):
        assert taken(preferred(replicas(free), (), size, {}, policy)) == spread


def test_replicas_beside_the_required_ones_come_first() -> None:
    required = f"{whole(0).uuid}::1"
    for policy in SharedPolicy:
        chosen = preferred(replicas([2, 4]), (required,), 2, {}, policy)
        assert chosen == (required, f"{whole(0).uuid}::0")


def test_a_gpu_with_fewer_replicas_is_used_more_by_each() -> None:
    halves = [PluginDevice(whole(0), replica=1, replicas=2)]
    quarters = [PluginDevice(whole(1), replica=number, replicas=4) for number in (1, 2, 3)]
    assert taken(preferred(halves + quarters, (), 1, {}, SharedPolicy.SPREAD)) == {1: 1}
    assert taken(preferred(halves + quarters, (), 1, {}, SharedPolicy.PACKED)) == {0: 1}


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 18), st.sampled_from(SharedPolicy), st.data()
)
def test_replicas_are_of_the_fewest_devices(
    free: list[int], size: int, policy: SharedPolicy, data: st.DataObject
) -> None:
    devices = replicas(free)
    chosen = preferred(data.draw(st.permutations(devices)), (), size, {}, policy)
    assert len(chosen) == len(set(chosen)) == min(size, len(devices))
    assert set(chosen) <= {device.id for device in devices}
    largest = sorted(free, reverse=True)
    used = len(taken(chosen))
    assert sum(largest[: used - 1]) < len(chosen) or not chosen
