"""The error tree: stable words and codes, drawn once and true."""

from __future__ import annotations

import importlib
import pkgutil
import re
from itertools import combinations

import pytest

import tranche
from tranche.core import errors
from tranche.core.errors import TrancheError, UsageError, all_errors

RANGES = {
    "configuration": range(10, 20),
    "hardware": range(20, 30),
    "placement": range(30, 40),
    "drift": range(50, 60),
    "kubernetes": range(40, 50),
    "ledger": range(60, 70),
    "safety": range(80, 90),
}


def test_an_error_that_names_a_long_text_keeps_both_its_ends() -> None:
    error = UsageError(f"'{'A' * 200_000}' is no memory", hint="B" * 200_000)
    assert str(error) == error.message
    assert error.message.startswith("'AAA")
    assert error.message.endswith("AAA' is no memory")
    assert max(len(error.message), len(error.hint)) <= 4096


def drawn_classes() -> dict[str, int]:
    """The classes and codes of the tree in the module's docstring."""
    return {name: int(code) for name, code in re.findall(r"[├└]── ([A-Z]\w+) +(\d+)", errors.__doc__ or "")}


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    assert drawn_classes() == {cls.__name__: cls.exit_code for cls in all_errors()}


def test_the_drawn_groups_hold_the_codes_they_promise() -> None:
    group = ""
    for line in (errors.__doc__ or "").splitlines():
        if heading := re.search(r"── ([a-z]+) +(\d+) to (\d+)", line):
            group = heading[1]
            assert RANGES[group] == range(int(heading[2]), int(heading[3]) + 1)
        elif child := re.search(r"^    [│ ]   [├└]── (\w+) +(\d+)", line):
            assert int(child[2]) in RANGES[group], child[1]


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
