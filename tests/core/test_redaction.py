"""What may leave a machine: fields that a shape names, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.redaction import LOG_LINE, SHAPES, program, reduced

SECRET = "hunter2-planted"

NAMES = st.sampled_from(
    [
        "id",
        "name",
        "command",
        "message",
        "why",
        "env",
        "data",
        "keeper",
        "grants",
        "gpus",
        "text",
        "purpose",
        "keyDigest",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def planted(value: Any) -> Any:
    """The value with the secret beside everything, under names that no shape has."""
    if isinstance(value, dict):
        return {"env": SECRET, "annotations": {"x": SECRET}, **{key: planted(each) for key, each in value.items()}}
    return [planted(each) for each in value] if isinstance(value, list) else value


@given(st.sampled_from(sorted(SHAPES)), st.dictionaries(NAMES, JSON, max_size=5))
def test_what_no_shape_names_never_leaves(kind: str, data: dict[str, Any]) -> None:
    assert SECRET not in json.dumps(reduced(planted(data), SHAPES[kind]))


@given(st.sampled_from(sorted(SHAPES)), st.dictionaries(NAMES, JSON, max_size=5))
def test_reducing_again_changes_nothing(kind: str, data: dict[str, Any]) -> None:
    once = reduced(data, SHAPES[kind])
    assert reduced(once, SHAPES[kind]) == once


def test_an_object_where_a_value_should_be_is_not_kept() -> None:
    assert reduced({"id": {"password": SECRET}}, {"id": program}) == {"id": None}
    assert reduced(SECRET, {"id": program}) is None


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python train.py --key=x", "python (2 more words)"),
        ("/usr/bin/python3.11", "python3.11"),
        ("KEY=x env", "(a command) (1 more words)"),
        ("'; drop", "(a command) (1 more words)"),
        ("", ""),
        (None, None),
    ],
)
def test_of_a_command_the_program_is_kept(command: str | None, shown: str | None) -> None:
    assert program(command) == shown


def test_of_a_log_line_only_our_own_words_are_kept() -> None:
    line = {
        "message": "cannot apply the layout",
        "reason": "GpuBusy",
        "error": SECRET,
        "hint": SECRET,
        "traceback": SECRET,
    }
    assert reduced(line, LOG_LINE) == {"message": "cannot apply the layout", "reason": "GpuBusy"}
