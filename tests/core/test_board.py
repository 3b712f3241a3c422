"""The catalogue: every board and profile keeps the rules that NVIDIA's own listings keep."""

from __future__ import annotations

import json
import re
from importlib import resources
from math import ceil, floor
from typing import Any

import pytest

from tranche.core.board import Board, GpuInstanceProfile, board_by_key, board_by_pci_id, board_of, catalogue
from tranche.core.grid import placements
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import GIB, MIB

BOARDS = pytest.mark.parametrize("board", catalogue(), ids=lambda board: board.key)
SEVEN_SLICE_BOARDS = tuple(board for board in catalogue() if board.compute_slices == 7)
# NVML_GPU_INSTANCE_PROFILE_*: the attributes that each enum value stands for, and its slices.
ATTRIBUTES_OF_ENUM: dict[int, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    0: (1, (), ()),
    1: (2, (), ()),
    2: (3, (), ()),
    3: (4, (), ()),
    4: (7, (), ()),
    7: (1, ("me",), ()),
    8: (2, ("me",), ()),
    9: (1, (), ()),
    10: (1, ("gfx",), ()),
    11: (2, ("gfx",), ()),
    12: (4, ("gfx",), ()),
    13: (1, (), ("me",)),
    14: (2, (), ("me",)),
    15: (1, ("me.all",), ()),
    16: (2, ("me.all",), ()),
}


def gigabytes_in_the_name(memory: int, total: int) -> int:
    """NVIDIA's rule: the board's gigabytes, rounded up, times the share rounded up to eighths; rounded half up."""
    eighths = ceil(8 * memory / total)
    return floor(eighths * ceil(total / 2**30) / 8 + 0.5)


def geometry(board: Board) -> list[tuple[Any, ...]]:
    return sorted((p.enum, p.id, p.slices, p.starts, p.size, p.max_instances) for p in board.profiles)


@pytest.mark.parametrize("board", [b for b in catalogue() if b.memory is not None], ids=lambda board: board.key)
def test_profile_names_follow_the_name_rule_where_memory_is_known(board: Board) -> None:
    assert board.memory is not None
    for profile in board.profiles:
        if profile.memory is not None:
            assert profile.name.memory_gb == gigabytes_in_the_name(profile.memory, board.memory), profile.name


@BOARDS
def test_placements_lie_inside_the_grid_and_do_not_meet(board: Board) -> None:
    for profile in board.profiles:
        if board.memory_slices is None:
            assert profile.starts == ()
            continue
        spots = placements(profile)
        assert spots, profile.name
        assert list(profile.starts) == sorted(set(profile.starts))
        for spot in spots:
            assert 0 <= spot.start < spot.start + spot.size <= board.memory_slices
        assert not any(one.overlaps(other) for one in spots for other in spots if one is not other)
        assert profile.max_instances == (1 if _once_per_gpu(profile) else len(spots))


def _once_per_gpu(profile: GpuInstanceProfile) -> bool:
    return "me" in profile.name.added or "me.all" in profile.name.added


@BOARDS
def test_profiles_are_told_apart_by_name_enum_and_id(board: Board) -> None:
    for values in (
        [profile.name for profile in board.profiles],
        [profile.enum for profile in board.profiles],
        [profile.id for profile in board.profiles if profile.id is not None],
    ):
        assert len(set(values)) == len(values)


@BOARDS
def test_the_name_says_what_the_enum_says(board: Board) -> None:
    for profile in board.profiles:
        assert (profile.slices, profile.name.added, profile.name.removed) == ATTRIBUTES_OF_ENUM[profile.enum]
        assert profile.name.slices == profile.slices
        assert profile.name.spans_gpu_instance


@BOARDS
def test_the_largest_profile_takes_the_whole_board(board: Board) -> None:
    plain = [profile for profile in board.profiles if not profile.name.has_attributes]
    largest = max(plain, key=lambda profile: profile.slices)
    assert largest.slices == board.compute_slices
    assert largest.max_instances == 1
    assert board.max_mig_devices == max(profile.max_instances for profile in plain)
    if board.memory is not None and largest.memory is not None:
        assert largest.memory <= board.memory


@BOARDS
def test_memory_is_in_steps_that_drivers_report(board: Board) -> None:
    for profile in board.profiles:
        if profile.memory is not None:
            assert profile.memory % (64 * MIB) == 0, profile.name


@BOARDS
def test_compute_instances_fit_their_gpu_instance(board: Board) -> None:
    for profile in board.profiles:
        assert profile.slices in {each.slices for each in profile.compute_profiles}, profile.name
        for compute in profile.compute_profiles:
            assert compute.name.gpu_instance == profile.name
            assert compute.name.compute == compute.slices <= profile.slices
            assert compute.max_instances == profile.slices // compute.slices
            assert parse_profile(str(compute.name)) == compute.name
        ids = [compute.id for compute in profile.compute_profiles]
        assert len(set(ids)) == len(ids)


def test_a_pci_id_names_one_board_and_is_nvidias() -> None:
    ids = [pci_id for board in catalogue() for pci_id in board.pci_device_ids]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"0x[0-9A-F]{4}10DE", pci_id) for pci_id in ids)


@BOARDS
def test_boards_are_found_by_key_and_pci_id(board: Board) -> None:
    assert board_by_key(board.key.upper()) is board
    assert board_by_key(board.key.lower()) is board
    assert board.pci_device_ids
    assert all(board_by_pci_id(pci_id) is board for pci_id in board.pci_device_ids)


def test_unknown_boards_are_not_guessed() -> None:
    assert board_by_key("A100") is None
    assert board_by_pci_id("0x1EB810DE") is None


def test_all_boards_of_seven_slices_share_one_geometry() -> None:
    assert len(SEVEN_SLICE_BOARDS) == 18
    assert {board.memory_slices for board in SEVEN_SLICE_BOARDS} == {8}
    for board in SEVEN_SLICE_BOARDS:
        assert geometry(board) == [
            (0, 19, 1, (0, 1, 2, 3, 4, 5, 6), 1, 7),
            (1, 14, 2, (0, 2, 4), 2, 3),
            (2, 9, 3, (0, 4), 4, 2),
            (3, 5, 4, (0,), 4, 1),
            (4, 0, 7, (0,), 8, 1),
            (7, 20, 1, (0, 1, 2, 3, 4, 5, 6), 1, 1),
            (9, 15, 1, (0, 2, 4, 6), 2, 4),
        ], board.key


@pytest.mark.parametrize("key", ["A30-24GB", "A30X-24GB"])
def test_the_geometry_of_the_a30(key: str) -> None:
    board = board_by_key(key)
    assert board is not None
    assert board.memory_slices == 4
    assert geometry(board) == [
        (0, 14, 1, (0, 1, 2, 3), 1, 4),
        (1, 5, 2, (0, 2), 2, 2),
        (3, 0, 4, (0,), 4, 1),
        (7, 21, 1, (0, 1, 2, 3), 1, 1),
        (8, 6, 2, (0, 2), 2, 1),
    ]


def test_the_geometry_of_the_rtx_pro_6000() -> None:
    board = board_by_key("RTX-PRO-6000-96GB")
    assert board is not None
    assert board.memory_slices == 12
    quarters, halves, whole = (0, 3, 6, 9), (0, 6), (0,)
    assert geometry(board) == [
        (0, 14, 1, quarters, 3, 4),
        (1, 5, 2, halves, 6, 2),
        (3, 0, 4, whole, 12, 1),
        (7, 21, 1, quarters, 3, 1),
        (10, 47, 1, quarters, 3, 4),
        (11, 35, 2, halves, 6, 2),
        (12, 32, 4, whole, 12, 1),
        (13, 67, 1, quarters, 3, 4),
        (14, 66, 2, halves, 6, 2),
        (15, 65, 1, quarters, 3, 1),
        (16, 64, 2, halves, 6, 1),
    ]


@pytest.mark.parametrize(
    ("key", "name", "mib", "sm"),
    [
        ("A30-24GB", "1g.6gb", 5952, 14),
        ("A100-40GB", "1g.5gb", 4864, 14),
        ("A100-40GB", "7g.40gb", 40320, 98),
        ("A100-80GB", "3g.40gb", 40192, 42),
        ("H100-80GB-SXM", "1g.20gb", 20096, 26),
        ("H100-80GB-SXM", "3g.40gb", 40448, 60),
        ("H100-80GB-PCIe", "1g.20gb", 20096, 14),
        ("H100-NVL-94GB", "2g.24gb", 22144, 32),
        ("GH200-96GB", "7g.96gb", 95232, 132),
        ("H200-141GB", "1g.18gb", 16384, 16),
        ("B200", "1g.23gb", 20992, 18),
        ("B200", "7g.180gb", 182784, 148),
        ("RTX-PRO-6000-96GB", "2g.48gb+gfx", 48512, 94),
    ],
)
def test_figures_of_driver_listings(key: str, name: str, mib: int, sm: int) -> None:
    board = board_by_key(key)
    assert board is not None
    profile = board.profile(parse_profile(name))
    assert profile is not None
    assert (profile.memory, profile.sm) == (mib * MIB, sm)


def test_only_ampere_needs_a_reset_to_change_mode() -> None:
    assert {board.architecture for board in catalogue() if board.mode_change_needs_reset} == {"Ampere"}
    assert "Ampere" not in {board.architecture for board in catalogue() if not board.mode_change_needs_reset}


def test_a_slice_finds_the_profile_of_its_gpu_instance() -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    whole, part = board.profile(parse_profile("3g.20gb")), board.profile(parse_profile("1c.3g.20gb"))
    assert whole is not None
    assert part is whole
    assert board.profile(ProfileName(3, 40, 3)) is None


@BOARDS
def test_what_is_missing_is_marked_as_unverified(board: Board) -> None:
    for profile in board.profiles:
        for value, field in ((profile.memory, "memory_mib"), (profile.sm, "sm"), (profile.id, "profile_id")):
            if value is None:
                assert field in profile.unverified or any("profile fields" in text for text in board.unverified)


def test_the_data_file_speaks_of_boards_alone() -> None:
    text = resources.files("tranche_simulator").joinpath("boards.json").read_text()
    assert not re.search(r"https?://|\.py\b|\bbrief\b|\bsession\b|\bTODO\b", text, re.IGNORECASE)
    unfinished = [
        value for value in _strings(json.loads(text)) if value != value.strip() or value.endswith(("e.g.", " from"))
    ]
    assert unfinished == []


def _strings(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else []
    return [text for child in children for text in _strings(child)]


@BOARDS
def test_a_board_is_known_by_its_id_and_its_memory(board: Board) -> None:
    memory = 100 * GIB if board.memory is None else board.memory
    for pci_id in board.pci_device_ids:
        assert board_of(pci_id, "a product that nobody knows", memory) == board
        assert board_of(pci_id, board.products[0], memory * 19 // 20) == board


def test_a_board_with_anothers_id_is_known_by_its_name_and_its_memory() -> None:
    gb200, gb300 = board_by_key("GB200"), board_by_key("GB300")
    assert gb200 is not None
    assert gb300 is not None
    assert gb300.memory is not None
    (pci_id,) = gb200.pci_device_ids
    assert board_of(pci_id, "NVIDIA GB300", gb300.memory) == gb300
    assert board_of(pci_id, "NVIDIA GB400", gb300.memory) is None
    assert board_of("0xFFFF10DE", "NVIDIA GB300", gb300.memory) is None, "an id that nobody knows"
