"""The events that pages show are read once, and are those of the register, also after another one has taken its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import LedgerUnavailable
from tranche.dashboard import app
from tranche.dashboard.app import EventLog


class Register:
    """Stands in for a register's events; counts what is read of it."""

    def __init__(self, time: str = "then", count: int = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.read = 0
        self._time = time
        self.add(count)

    def add(self, count: int) -> None:
        first = self.position + 1
        self.events += [{"position": position, "time": self._time} for position in range(first, first + count)]
        del self.events[: -app._KEPT]

    @property
    def position(self) -> int:
        return int(self.events[-1]["position"]) if self.events else 0

    @property
    def newest(self) -> dict[str, Any] | None:
        return self.events[-1] if self.events else None

    def after(self, position: int) -> list[dict[str, Any]]:
        found = [each for each in self.events if each["position"] > position]
        self.read += len(found)
        return found


@given(st.lists(st.integers(0, 50), max_size=10))
def test_every_event_is_read_once_and_the_last_one_again(added: list[int]) -> None:
    register = Register()
    log = EventLog(register.after)
    for count in added:
        register.add(count)
        assert list(log.up_to(register.newest)) == register.events
    assert register.read <= sum(added) + len(added)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12))
def test_no_event_is_of_a_register_that_was_replaced(happens: list[tuple[bool, int]]) -> None:
    """Each register begins anew at position 1, and often ends at the same one as the last."""
    registers = [Register("0")]
    log = EventLog(lambda position: registers[-1].after(position))
    for replaced, count in happens:
        if replaced:
            registers.append(Register(str(len(registers))))
        registers[-1].add(count)
        assert list(log.up_to(registers[-1].newest)) == registers[-1].events


@given(st.integers(1, 4), st.integers(0, 4), st.booleans())
def test_who_saw_the_machine_before_is_told_that_the_register_is_another_one(old: int, new: int, known: bool) -> None:
    registers = [Register("then", old)]
    log = EventLog(lambda position: registers[-1].after(position))
    seen = registers[0].newest
    if known:
        log.up_to(seen)
    registers.append(Register("now", new))
    log.up_to(registers[1].newest)
    with pytest.raises(LedgerUnavailable, match="replaced"):
        log.up_to(seen)
    assert list(log.up_to(registers[1].newest)) == registers[1].events


def test_who_looked_earlier_is_told_what_is_known_since() -> None:
    register = Register("then", 3)
    log = EventLog(register.after)
    before = register.newest
    register.add(2)
    log.up_to(register.newest)
    assert list(log.up_to(before)) == register.events


def test_no_more_is_kept_than_the_register_keeps() -> None:
    register = Register()
    log = EventLog(register.after)
    for _ in range(3):
        register.add(app._KEPT - 1)
        assert list(log.up_to(register.newest)) == register.events
