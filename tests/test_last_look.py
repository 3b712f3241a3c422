"""A wait that fails says what it waited for, and what it saw last."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests import machines
from tests.last_look import last_look
from tests.machines import wait_until


def holders(names: list[str]) -> list[str]:
    return sorted(names)


def said() -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess((), 3, "nothing is held\n", "one waits\n")


def gone() -> bool:
    raise LookupError("nobody is there")


@dataclass(frozen=True)
class Door:
    told: str

    @property
    def standing(self) -> str:
        if not self.told:
            raise LookupError("nobody is there")
        return self.told


def gone_through(*doors: Door) -> bool:
    return not doors


def test_the_condition_its_calls_and_their_answers_are_named() -> None:
    found = last_look(lambda: holders(["b", "a"]) == [] or "held" in said().stderr)
    assert 'holders(["b", "a"]) == []' in found
    assert "\n  holders: ['a', 'b']\n" in found
    assert "\n  said: exit code 3\nnothing is held\none waits\n" in found
    assert found.endswith("\n  asked once more: False")
    assert sys.getprofile() is None


def test_each_call_of_a_loop_is_named() -> None:
    assert last_look(lambda: all(holders([each]) for each in "xy")).count("\n  holders: ") == 2


def test_of_a_method_it_is_said_whose_it_is(tmp_path: Path) -> None:
    assert str(tmp_path / "there") in last_look((tmp_path / "there").exists)


def test_what_a_condition_speaks_of_tells_how_it_stands() -> None:
    door, broken = Door("the key is inside"), Door("")
    for condition in (lambda: door.told == "" or broken is door, partial(gone_through, door, broken)):
        found = last_look(condition)
        assert " stands so: the key is inside\n" in found
        assert found.count(" stands so: ") == 1


def test_what_a_condition_raises_is_said() -> None:
    assert last_look(lambda: gone()).endswith("asked once more: LookupError: nobody is there")


def test_a_wait_that_fails_says_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_DEADLINE_SECONDS", 0.0)
    with pytest.raises(AssertionError, match=r"holders: \['a'\]"):
        wait_until(lambda: holders(["a"]) == [])
    with subprocess.Popen(["false"], stderr=subprocess.PIPE, text=True) as ended:
        ended.wait()
        with pytest.raises(AssertionError, match=r"ended with 1: (?s:.*)holders: \['a'\]"):
            wait_until(lambda: holders(["a"]) == [], ended)
