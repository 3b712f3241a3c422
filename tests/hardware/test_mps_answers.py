"""What the MPS daemon prints, in the spellings that are documented or were seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.hardware.mps_control import (
    PrintedLimit,
    ServerStatus,
    limit_text,
    read_limit,
    read_numbers,
    read_status,
    read_terminated,
)

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", ()),
        ("7000\n", (7000,)),
        ("7000  8000\n", (7000, 8000)),
        ("7000\n8000\n", (7000, 8000)),
        ("No server\n", ()),
    ],
)
def test_pids_come_one_or_several_on_a_line(answer: str, expected: tuple[int, ...]) -> None:
    assert read_numbers(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (" ACTIVE\n", ServerStatus.ACTIVE),
        ("INITIALIZING", ServerStatus.INITIALIZING),
        ("FAULT\n", ServerStatus.FAULT),
        ("", ServerStatus.UNKNOWN),
        ("Server 12 not found\n", ServerStatus.UNKNOWN),
    ],
)
def test_a_status_may_have_blanks_around_it(answer: str, expected: ServerStatus) -> None:
    assert read_status(answer) is expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("1G\n", PrintedLimit(1, GIB)),
        ("3072M\n", PrintedLimit(3072, MIB)),
        ("512MB\n", PrintedLimit(512, MIB)),
        ("0 : 4 GiB\n", PrintedLimit(4, GIB)),
        ("", None),
        ("Invalid device\n", None),
    ],
)
def test_a_limit_is_read_with_its_unit(answer: str, expected: PrintedLimit | None) -> None:
    assert read_limit(answer) == expected


@given(st.integers(1, 200 * 1024))
def test_a_limit_that_was_kept_agrees_however_it_is_rounded(mebibytes: int) -> None:
    memory = mebibytes * MIB
    printed = f"{memory // GIB}G" if memory >= GIB else limit_text(memory)
    answer = read_limit(printed)
    assert answer is not None
    assert answer.agrees(memory)
    assert not answer.agrees(memory + GIB)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("0\n", True), ("CUDA_SUCCESS\n", True), ("", False), ("CUDA_ERROR_INVALID_VALUE\n", False), ("1\n", False)],
)
def test_a_termination_succeeded_only_where_it_is_said(answer: str, expected: bool) -> None:
    assert read_terminated(answer) is expected
