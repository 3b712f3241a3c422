"""The events that pages show are read once, and are those of the register."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tranche.dashboard import event_log
from tranche.dashboard.event_log import EventLog


class Register:
    """Stands in for a register's events; counts what is read of it."""

    def __init__(self, time: str = "then") -> None:
        self.events: list[dict[str, Any]] = []
        self.read = 0
        self._time = time

    def add(self, count: int) -> None:
        first = self.newest + 1
        self.events += [{"position": position, "time": self._time} for position in range(first, first + count)]
        del self.events[: -event_log._KEPT]

    @property
    def newest(self) -> int:
        return int(self.events[-1]["position"]) if self.events else 0

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


@given(st.integers(1, 9), st.integers(1, 20))
def test_a_new_register_is_read_from_its_beginning(old: int, new: int) -> None:
    registers = [Register("then"), Register("now")]
    registers[0].add(old)
    registers[1].add(new)
    log = EventLog(lambda position: registers[0].after(position))
    log.up_to(old)
    del registers[0]
    found = list(log.up_to(new))
    # One that is exactly as long is seen with its next event.
    assert found == registers[0].events or new == old
    registers[0].add(1)
    assert list(log.up_to(new + 1)) == registers[0].events


def test_no_more_is_kept_than_the_register_keeps() -> None:
    register = Register()
    log = EventLog(register.after)
    for _ in range(3):
        register.add(event_log._KEPT - 1)
        assert list(log.up_to(register.newest)) == register.events
