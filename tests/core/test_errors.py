"""The error tree: stable words and codes, drawn once and true."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from itertools import combinations

import pytest

import tranche
from tranche.core import errors
from tranche.core.errors import TrancheError, UsageError, all_errors


def test_an_error_that_names_a_long_text_keeps_both_its_ends() -> None:
    error = UsageError(f"'{'A' * 200_000}' is no memory", hint="B" * 200_000)
    assert str(error) == error.message
    assert error.message.startswith("'AAA")
    assert error.message.endswith("AAA' is no memory")
    assert max(len(error.message), len(error.hint)) <= 4096


def test_the_groups_hold_the_codes_they_promise() -> None:
    group = range(2, 4)
    source = inspect.getsource(errors).partition("class UsageError")[2]
    for heading, last, code in re.findall(r"^# (\d+)(?: to (\d+))?, |exit_code=(\d+)", source, re.MULTILINE):
        if heading:
            group = range(int(heading), int(last or heading) + 1)
        else:
            assert int(code) in group


def test_reason_words_are_unique_and_only_a_special_case_has_the_code_of_another() -> None:
    classes = all_errors()
    assert len({cls.reason for cls in classes}) == len(classes)
    alike = [(one, other) for one, other in combinations(classes, 2) if one.exit_code == other.exit_code]
    assert all(issubclass(other, one) for one, other in alike)
    assert len(alike) == 1


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_each_class_is_fit_for_programs_and_people(cls: type[TrancheError]) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]+", cls.reason)
    assert 1 < cls.exit_code < 126 or cls is errors.CommandNotFound, (
        "1 is for the unforeseen, 126 and up are the shell's"
    )
    assert cls.__doc__
    assert "reason" in vars(cls)
    assert "exit_code" in vars(cls)


def test_every_error_lives_in_the_one_tree() -> None:
    """A class elsewhere would be in the list, and in the documents made from it, only when its module happens to be imported."""
    for module in pkgutil.walk_packages(tranche.__path__, "tranche."):
        importlib.import_module(module.name)
    assert {cls.__module__ for cls in all_errors()} == {"tranche.core.errors"}


def test_an_error_carries_message_and_hint() -> None:
    error = errors.GpuBusy("GPU 0 is in use", hint="wait")
    assert (str(error), error.message, error.hint) == ("GPU 0 is in use", "GPU 0 is in use", "wait")
    assert errors.GpuBusy("x").hint == ""
