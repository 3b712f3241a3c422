"""What nvidia-smi says of time slices, in the forms in which it is known to say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranche.core.errors import HardwareError
from tranche.core.sharing import Timeslice
from tranche.hardware.nvml import read_timeslice


def saying(folder: Path, text: str) -> str:
    """A program that prints the text."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU  0: Timeslice: Default", Timeslice.DEFAULT),
        ("GPU  0: Timeslice: Short", Timeslice.SHORT),
        ("|   0     Timeslice            Long            |", Timeslice.LONG),
        ("timeslice: medium", Timeslice.MEDIUM),
    ],
)
def test_the_length_is_read_in_every_form(tmp_path: Path, text: str, expected: Timeslice) -> None:
    assert read_timeslice(saying(tmp_path, text), "GPU-0") is expected


@pytest.mark.parametrize("text", ["", "Timeslice: Longest", "GPU 0: Timeslice: Long\nGPU 1: Timeslice: Short"])
def test_anything_else_is_no_length(tmp_path: Path, text: str) -> None:
    with pytest.raises(HardwareError, match="read the time slice"):
        read_timeslice(saying(tmp_path, text), "GPU-0")


def test_the_numbers_are_those_of_nvidia_smi() -> None:
    assert [(str(each), each.number) for each in Timeslice] == [
        ("default", 0),
        ("short", 1),
        ("medium", 2),
        ("long", 3),
    ]
