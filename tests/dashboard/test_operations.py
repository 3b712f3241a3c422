"""What was begun from a page, on threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import pytest

from tests.machines import wait_until
from tranche.core.errors import GpuBusy, HardwareError, StateMoved, TrancheError
from tranche.dashboard.acting.action_handler import Operation, OperationRunner, OperationState


def operations(news: Callable[[], None] = lambda: None) -> OperationRunner:
    numbers = count()
    return OperationRunner(news, lambda: str(next(numbers)))


def ended(found: OperationRunner, id: str | None) -> Operation:
    assert id is not None

    def operation() -> Operation:
        known = found.get(id)
        assert known is not None
        return known

    wait_until(lambda: operation().state is not OperationState.RUNNING)
    return operation()


def test_each_step_and_the_end_are_news() -> None:
    told: list[None] = []
    found = operations(lambda: told.append(None))
    go_on = threading.Event()

    def work(tell: Callable[[str], None]) -> str:
        tell("one")
        go_on.wait(60)
        tell("two")
        return "both"

    id = found.begin("t", "/again", 2, work)
    assert id is not None
    wait_until(lambda: len(told) == 1)
    now = found.get(id)
    assert now is not None
    assert (now.state, now.steps) == (OperationState.RUNNING, ("one",))
    go_on.set()
    now = ended(found, id)
    assert (now.state, now.steps, now.said) == (OperationState.DONE, ("one", "two"), "both")
    wait_until(lambda: len(told) == 3)


@pytest.mark.parametrize(
    ("error", "steps", "state"),
    [
        (StateMoved("moved"), 0, OperationState.REFUSED),
        (GpuBusy("busy", hint="wait"), 0, OperationState.REFUSED),
        (GpuBusy("busy"), 1, OperationState.FAILED),
        (HardwareError("broken"), 0, OperationState.FAILED),
        (RuntimeError("a mistake of ours"), 0, OperationState.FAILED),
    ],
)
def test_what_goes_wrong_is_told(error: Exception, steps: int, state: OperationState) -> None:
    def work(tell: Callable[[str], None]) -> str:
        for number in range(steps):
            tell(str(number))
        raise error

    found = operations()
    now = ended(found, found.begin("t", "/again", 1, work))
    assert now.state is state
    assert str(error.message if isinstance(error, TrancheError) else error) in now.said


def test_only_so_many_run_at_a_time() -> None:
    go_on = threading.Event()
    found = operations()

    def work(tell: Callable[[str], None]) -> str:
        go_on.wait(60)
        return ""

    begun = [found.begin("t", "/again", 1, work) for _ in range(9)]
    assert [each is None for each in begun] == [False] * 8 + [True]
    go_on.set()
    ended(found, begun[0])
    assert found.begin("t", "/again", 1, work) is not None


def test_the_oldest_that_ended_are_forgotten() -> None:
    found = operations()
    ids = []
    for _ in range(210):
        ids.append(found.begin("t", "/again", 1, lambda tell: ""))
        ended(found, ids[-1])
    assert found.get(str(ids[0])) is None
    assert found.get(str(ids[-2])) is not None
