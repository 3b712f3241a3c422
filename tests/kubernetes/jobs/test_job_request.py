"""What a person may write about a job, and what each mistake is answered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import UsageError
from tranche.kubernetes.jobs.manifest import (
    JobMount,
    checked_name,
    name_from,
    parse_environment,
    parse_pairs,
    parse_volume,
)


@given(st.lists(st.text(max_size=60)))
def test_any_command_gives_a_name_that_a_job_can_have(words: list[str]) -> None:
    name = name_from(words, "x7k2p")
    assert checked_name(name) == name
    assert name.endswith("-x7k2p")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "-u", "src/Train_Me.py", "--lr", "1"], "train-me-1"),
        (["nvidia-smi", "-L"], "nvidia-smi-1"),
        (["python3.11", "-m", "train"], "python3-1"),
        ([], "job-1"),
        (["--", "+"], "job-1"),
    ],
)
def test_a_name_is_that_of_the_script_or_program(words: list[str], name: str) -> None:
    assert name_from(words, "1") == name


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a.b", "ä", "a" * 53, "a/b"])
def test_a_name_that_no_job_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid job name"):
        checked_name(name)


def test_variables_have_values_of_their_own_or_the_callers() -> None:
    environ = {"HOME": "/root"}
    assert parse_environment(["A=1", "B=", "C=x=y", "HOME"], environ) == {
        "A": "1",
        "B": "",
        "C": "x=y",
        "HOME": "/root",
    }
    for wrong in (["NONE"], ["=1"], ["A=1", "A=2"], ["1A=2"], ["A B=1"]):
        with pytest.raises(UsageError):
            parse_environment(wrong, environ)


def test_pairs_have_a_name_and_a_value() -> None:
    assert parse_pairs(["gpu=a100", "zone="], "--node-selector") == {"gpu": "a100", "zone": ""}
    with pytest.raises(UsageError, match="--node-selector gpu has no value"):
        parse_pairs(["gpu"], "--node-selector")


def test_volumes_are_claims_or_folders_of_the_node() -> None:
    assert parse_volume("data:/data") == JobMount("data", "/data")
    assert parse_volume("/raid:/data:ro") == JobMount("/raid", "/data", read_only=True)
    assert parse_volume("/raid:/data:rw").of_node
    for wrong in ("", "data", "data:data", "Data:/data", "data:/data:x", "a:/b:ro:c", ":/data"):
        with pytest.raises(UsageError, match="is not a volume"):
            parse_volume(wrong)
