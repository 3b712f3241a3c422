"""The devices of a node: their names, what they give and take, and the limits of the API."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given

from tests.strategies import PLACEABLE_BOARDS, gpu_on, means, node_views, uncuttable_gpu
from tranche.core.allocation import FractionalShare, NodeView, Slice, WholeGpu
from tranche.core.board import Board, board_by_key
from tranche.core.quantity import MIB
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import MigMode, NodeState
from tranche.kubernetes.claims.vocabulary import AttributeName, CapacityName, DeviceType
from tranche.kubernetes.devices.devices import NodeDevice, OfferKind, VersionValue, counter_sets, devices_of, version_of

ALL_MEANS = MachineSharing(frozenset(Sharing), mps_clients=48)
NO_LIMITS = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), mps_clients=48)
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def a100() -> Board:
    board = board_by_key("A100-40GB")
    assert board is not None
    return board


def of_kind(kind: OfferKind, devices: tuple[NodeDevice, ...]) -> list[NodeDevice]:
    return [each for each in devices if each.kind is kind]


def test_an_a100_has_its_placements_its_shared_devices_and_itself() -> None:
    devices = devices_of(NodeState((gpu_on(a100()),), sharing=NO_LIMITS))
    slices = of_kind(OfferKind.SLICE, devices)
    assert [each.name for each in slices][:8] == [*(f"gpu-0-1g-5gb-{start}" for start in range(7)), "gpu-0-1g-5gb-me-0"]
    assert len(slices) == 7 + 7 + 4 + 3 + 2 + 1 + 1
    assert len(of_kind(OfferKind.SHARED_SLICE, devices)) == len(slices) - 7  # none inside +me
    assert [each.name for each in of_kind(OfferKind.SHARED_GPU, devices)] == ["gpu-0-shared"]
    assert [each.name for each in of_kind(OfferKind.WHOLE, devices)] == ["gpu-0"]


def test_a_gpu_without_mig_is_whole_or_shared() -> None:
    devices = devices_of(NodeState((uncuttable_gpu(),), sharing=ALL_MEANS))
    assert [each.name for each in devices] == ["gpu-0-shared", "gpu-0"]
    shared, whole = devices
    assert shared.sharing is Sharing.MPS, "no container has a control group before it is prepared"
    assert shared.counters == whole.counters == counter_sets(NodeState((uncuttable_gpu(),)))["gpu-0"]
    assert whole.capacity[CapacityName.MEMORY].value == (15360 - 446) * MIB
    assert shared.attributes[AttributeName.ISOLATION] == "soft"
    assert whole.attributes[AttributeName.ISOLATION] == "hard"


def test_what_a_claim_consumed_is_what_its_part_has() -> None:
    (shared, whole) = devices_of(NodeState((uncuttable_gpu(),), sharing=NO_LIMITS))
    device = WholeGpu(uncuttable_gpu().uuid)
    assert whole.grant({}) == device
    assert shared.grant({"memory": 4 << 30, "compute": 25, "clients": 1}) == FractionalShare(
        device, 4 << 30, Sharing.MPS, 25
    )
    assert shared.grant({"memory": 4 << 30, "compute": 0}) == FractionalShare(device, 4 << 30, Sharing.MPS)
    everything = shared.capacity[CapacityName.MEMORY].value
    assert shared.grant({}) == FractionalShare(device, everything, Sharing.MPS)


def test_a_slice_is_shared_by_what_works_inside_slices() -> None:
    devices = devices_of(NodeState((gpu_on(a100()),), sharing=ALL_MEANS))
    assert {each.sharing for each in of_kind(OfferKind.SHARED_SLICE, devices)} == {Sharing.MPS}
    assert {each.sharing for each in of_kind(OfferKind.SHARED_GPU, devices)} == {Sharing.MPS}


def test_the_least_part_of_a_slice_holds_a_context_also_where_its_size_is_not_known() -> None:
    gpu = gpu_on(a100())
    unknown = replace(gpu, profiles=tuple(each._replace(sm=None) for each in gpu.profiles))
    for one, multiprocessors in ((gpu, 14), (unknown, 108), (replace(unknown, multiprocessors=None), 188)):
        devices = devices_of(NodeState((one,), sharing=NO_LIMITS))
        first, *_ = of_kind(OfferKind.SHARED_SLICE, devices)
        assert first.capacity[CapacityName.MEMORY].least == (96 + 4 * multiprocessors) * MIB


def test_without_means_nothing_is_shared() -> None:
    devices = devices_of(NodeState((gpu_on(a100()), uncuttable_gpu(1))))
    assert {each.kind for each in devices} == {OfferKind.SLICE, OfferKind.WHOLE}


def test_a_compute_ceiling_is_offered_by_mps_alone() -> None:
    slicing = MachineSharing(frozenset({Sharing.TIME_SLICING}))
    (shared, _) = devices_of(NodeState((uncuttable_gpu(),), sharing=slicing))
    assert CapacityName.COMPUTE not in shared.capacity
    assert shared.attributes[AttributeName.ISOLATION] == "none"


def test_a_gpu_is_named_by_its_minor_number_and_a_lost_one_is_not_named() -> None:
    first, second, third = (replace(uncuttable_gpu(index), minor=minor) for index, minor in enumerate((1, 0, None)))
    node = NodeState((first, second, replace(third, lost=True)))
    assert [(each.name, each.gpu_uuid) for each in devices_of(node)] == [("gpu-1", first.uuid), ("gpu-0", second.uuid)]


def test_no_two_gpus_have_one_name() -> None:
    node = NodeState((replace(uncuttable_gpu(0), minor=1), replace(uncuttable_gpu(1), minor=None)))
    assert [each.name for each in devices_of(node)] == ["gpu-1"]


@pytest.mark.parametrize(
    ("text", "version"),
    [("580.65.06", "580.65.6"), ("535.129", "535.129.0"), ("13.0", "13.0.0"), ("570.133.20.1", "570.133.20")],
)
def test_versions_are_as_the_api_wants_them(text: str, version: str) -> None:
    assert version_of(text) == VersionValue(version)
    assert version_of("") is None


def test_attributes_name_what_users_select_by() -> None:
    gpu = replace(gpu_on(a100()), numa_node=1, minor=0)
    node = NodeState((gpu,), driver_version="580.65.06", cuda_version=(13, 0))
    first = devices_of(node, {gpu.uuid: "pci0000:10"})[0]
    assert first.attributes == {
        "type": DeviceType.SLICE,
        "model": gpu.name,
        "architecture": "Ampere",
        "profile": "1g.5gb",
        "uuid": gpu.uuid,
        "parentUUID": gpu.uuid,
        "minor": 0,
        "memorySlices": 1,
        "cardMemoryMiB": 40960,
        "isolation": "hard",
        "memoryWall": "own",
        "computeWall": "own",
        "faultWall": "own",
        "bandwidthWall": "own",
        "mechanism": "mig",
        "numaNode": 1,
        "driverVersion": VersionValue("580.65.6"),
        "cudaDriverVersion": VersionValue("13.0.0"),
        "resource.kubernetes.io/pcieRoot": "pci0000:10",
    }


@pytest.mark.parametrize("board", PLACEABLE_BOARDS, ids=lambda board: board.key)
def test_the_share_of_a_slice_is_its_part_of_the_card(board: Board) -> None:
    for each in of_kind(OfferKind.SLICE, devices_of(NodeState((gpu_on(board),)))):
        assert isinstance(each.offered, Slice)
        share = each.capacity[CapacityName.SHARE].value
        assert share <= 100 * each.offered.placement.size / (board.memory_slices or 0) < share + 1


@pytest.mark.parametrize("board", PLACEABLE_BOARDS, ids=lambda board: board.key)
def test_the_limits_of_the_api_hold_for_every_board(board: Board) -> None:
    """The numbers are those of resource.k8s.io/v1 from Kubernetes 1.35 on."""
    node = NodeState(
        (replace(gpu_on(board), numa_node=0),), driver_version="580.65.06", cuda_version=(13, 0), sharing=ALL_MEANS
    )
    for counters in counter_sets(node).values():
        assert len(counters) <= 32
    for each in devices_of(node, {gpu_on(board).uuid: "pci0000:10"}):
        assert LABEL.fullmatch(each.name)
        assert len(each.attributes) + len(each.capacity) <= 32
        assert all(len(value) <= 64 for value in each.attributes.values() if isinstance(value, str))
        assert 0 < len(each.counters) <= 32
        for amount in each.capacity.values():
            if amount.default is not None:
                assert amount.least <= amount.default <= amount.value
                assert (amount.value - amount.least) % amount.step == (amount.default - amount.least) % amount.step == 0


@given(node_views(max_gpus=3), means())
def test_the_devices_depend_on_the_gpus_and_not_on_what_is_cut_or_held(view: NodeView, have: MachineSharing) -> None:
    node = replace(view.node, sharing=have)
    bare = replace(
        node,
        gpus=tuple(
            replace(gpu, instances=(), processes=(), mode=gpu.mode if not gpu.mig_capable else MigMode.DISABLED)
            for gpu in node
        ),
    )
    devices = devices_of(node)
    assert devices == devices_of(bare)
    assert len({each.name for each in devices}) == len(devices)
    sets = counter_sets(node)
    for each in devices:
        assert each.counters.items() <= dict(sets[each.counter_set]).items() or each.kind is not OfferKind.WHOLE
        assert set(each.counters) <= set(sets[each.counter_set])
        assert isinstance(each.grant({}), FractionalShare if each.sharing is not None else (WholeGpu, Slice))
