"""candidate(): the smallest profile that holds what was asked, by what the driver reports."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, boards, gpu_on, placed, uncuttable_gpu, view_of
from tranche.core.board import Board, board_by_key
from tranche.core.errors import SharingUnavailable, TooManyGpus
from tranche.core.quantity import GIB, MIB
from tranche.core.request import GpuMemory, GpuShare, Request, parse_request
from tranche.core.sharing import GpuPolicy
from tranche.planning.decide.candidates import Candidate, candidate, check_possible, plain_profiles
from tranche.planning.decide.obstacle import Obstacle

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")


def answer(board_key: str, **options: str) -> str:
    """The profile's name, with `or whole` when the uncut GPU does as well; or the reason word."""
    board = board_by_key(board_key)
    assert board is not None
    found = candidate(parse_request(**options), gpu_on(board))
    if isinstance(found, Obstacle):
        return found.reason
    if found.profile is None:
        return "whole"
    return f"{found.profile.name} or whole" if found.whole else str(found.profile.name)


@pytest.mark.parametrize(
    ("board", "amount", "expected"),
    [
        ("A100-40GB", "4Gi", "1g.5gb"),
        ("A100-40GB", "4864Mi", "1g.5gb"),
        ("A100-40GB", "5Gi", "1g.10gb"),  # 1g.5gb holds 4864 MiB, 5 GiB are 5120
        ("A100-40GB", "10G", "1g.10gb"),
        ("A100-40GB", "10Gi", "3g.20gb"),
        ("A100-40GB", "20G", "3g.20gb"),
        ("A100-40GB", "20Gi", "7g.40gb or whole"),  # 3g.20gb holds 20096 MiB, 20 GiB are 20480
        ("A100-40GB", "40320Mi", "7g.40gb or whole"),
        ("A100-40GB", "40Gi", "whole"),  # 7g.40gb holds 40320 MiB
        ("A100-40GB", "40961Mi", "MemoryTooSmall"),
        ("A100-80GB", "4Gi", "1g.10gb"),
        ("A100-80GB", "10Gi", "1g.20gb"),
        ("A30-24GB", "4Gi", "1g.6gb"),
        ("A30-24GB", "6Gi", "2g.12gb"),
        ("A30-24GB", "12Gi", "4g.24gb or whole"),
        ("H100-80GB-SXM", "10Gi", "1g.20gb"),
        ("H200-141GB", "16Gi", "1g.18gb"),
        ("H200-141GB", "18Gi", "1g.35gb"),
        ("B200", "20Gi", "1g.23gb"),
        ("RTX-PRO-6000-96GB", "23Gi", "1g.24gb"),
        ("RTX-PRO-6000-96GB", "24Gi", "2g.48gb"),
        ("RTX-PRO-6000-96GB", "48Gi", "4g.96gb or whole"),
    ],
)
def test_memory(board: str, amount: str, expected: str) -> None:
    assert answer(board, gpu_memory=amount) == expected


@pytest.mark.parametrize(
    ("board", "share", "expected"),
    [
        ("A100-40GB", "0.05", "1g.5gb"),
        ("A100-40GB", "0.125", "1g.5gb"),
        ("A100-40GB", "0.25", "1g.10gb"),
        ("A100-40GB", "0.26", "3g.20gb"),
        ("A100-40GB", "0.5", "3g.20gb"),
        ("A100-40GB", "0.6", "7g.40gb or whole"),
        ("A100-40GB", "1", "7g.40gb or whole"),
        ("A30-24GB", "0.25", "1g.6gb"),
        ("A30-24GB", "0.5", "2g.12gb"),
        ("A30-24GB", "0.51", "4g.24gb or whole"),
        ("RTX-PRO-6000-96GB", "0.2", "1g.24gb"),
        ("RTX-PRO-6000-96GB", "0.5", "2g.48gb"),
    ],
)
def test_share(board: str, share: str, expected: str) -> None:
    assert answer(board, gpu=share) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mig_profile": "1g.5gb+me"}, "1g.5gb+me"),
        ({"mig_profile": "7g.40gb"}, "7g.40gb"),
        ({"mig_profile": "1g.6gb"}, "ProfileNotSupported"),
        ({"gpus": "1"}, "whole"),
        ({"gpus": "1", "gpu_model": "sxm4"}, "whole"),
        ({"gpus": "1", "gpu_model": "H100"}, "GpuModelMismatch"),
    ],
)
def test_named_profiles_whole_gpus_and_models(options: dict[str, str], expected: str) -> None:
    assert answer("A100-40GB", **options) == expected


@pytest.mark.parametrize(
    ("options", "served"),
    [
        ({"gpus": "1"}, True),
        ({"gpu": "1"}, True),
        ({"gpu": "0.75"}, True),
        ({"gpu": "0.5"}, False),
        ({"gpu_memory": "14Gi"}, True),
        ({"gpu_memory": "4Gi"}, False),
    ],
)
def test_a_gpu_without_mig_serves_only_what_leaves_no_room_for_another_like_it(
    options: dict[str, str], served: bool
) -> None:
    found = candidate(parse_request(**options), uncuttable_gpu())
    if served:
        assert found == Candidate(None, True, named="gpus" in options)
    else:
        assert isinstance(found, Obstacle)
        assert found.reason == "SharingUnavailable"


def test_only_gpus_that_could_serve_one_share_count_for_several() -> None:
    view = view_of(gpu_on(FAMILY_BOARDS[0]), uncuttable_gpu(1), uncuttable_gpu(2))
    check_possible(view, parse_request(gpu="0.2"))
    with pytest.raises(
        SharingUnavailable, match="asks for 2 GPUs, but only 1 GPU on this machine can serve one of its"
    ):
        check_possible(view, parse_request(gpu="0.2", count="2"))
    with pytest.raises(TooManyGpus, match="asks for 4 GPUs, but this machine has 1 that could serve one of its shares"):
        check_possible(view, parse_request(gpu="0.2", count="4"))


def test_several_shares_that_a_policy_refuses_are_not_called_too_large() -> None:
    two = view_of(gpu_on(A100, 0), gpu_on(A100, 1))
    two = replace(two, uses={two.node.gpus[1].uuid: GpuPolicy.OFF})
    with pytest.raises(
        SharingUnavailable,
        match=r"only 1 GPU on this machine can serve one of its shares; every other GPU is only granted whole",
    ) as caught:
        check_possible(two, parse_request(gpu="0.2", count="2"))
    assert caught.value.hint == "ask for fewer GPUs"
    with pytest.raises(TooManyGpus, match="asks for 3 GPUs"):
        check_possible(two, parse_request(gpu="0.2", count="3"))


def test_a_whole_gpu_has_no_more_memory_than_programs_can_use() -> None:
    t4 = uncuttable_gpu()
    assert isinstance(candidate(Request(GpuMemory(t4.usable_memory)), t4), Candidate)
    found = candidate(Request(GpuMemory(t4.usable_memory + MIB)), t4)
    assert isinstance(found, Obstacle)
    assert (found.reason, found.missing_memory) == ("MemoryTooSmall", MIB)
    assert found.text == "has 14.56 GiB available to programs"
    a100 = replace(gpu_on(A100), memory_reserved=GIB)
    largest = max(profile.memory or 0 for profile in placed(A100))
    found = candidate(Request(GpuMemory(largest)), a100)
    assert isinstance(found, Candidate)
    assert not found.whole


@given(boards(), st.integers(1, 200_000))
def test_a_memory_request_gets_enough_and_no_smaller_profile_would_do(board: Board, mib: int) -> None:
    gpu = gpu_on(board)
    found = candidate(Request(GpuMemory(mib * MIB)), gpu)
    if not isinstance(found, Candidate) or found.profile is None:
        assert all((profile.memory or 0) < mib * MIB for profile in placed(board))
        return
    chosen = found.profile
    assert chosen.memory is not None
    assert chosen.memory >= mib * MIB
    assert not chosen.name.has_attributes
    for profile in plain_profiles(gpu):
        if (profile.size, profile.slices) < (chosen.size, chosen.slices):
            assert profile.memory is not None
            assert profile.memory < mib * MIB


@given(boards(), st.integers(1, 100))
def test_a_share_is_at_least_what_was_asked(board: Board, percent: int) -> None:
    gpu = gpu_on(board)
    found = candidate(Request(GpuShare(Fraction(percent, 100))), gpu)
    assert isinstance(found, Candidate)
    assert found.profile is not None
    assert found.profile.size * 100 >= percent * gpu.memory_slices


def test_a_profile_whose_memory_no_source_shows_is_not_chosen_for_memory() -> None:
    board = board_by_key("A100-40GB")
    assert board is not None
    gpu = replace(gpu_on(board), profiles=tuple(p._replace(memory=None) for p in board.profiles))
    assert candidate(parse_request(gpu_memory="4Gi"), gpu) == Candidate(None, True)
