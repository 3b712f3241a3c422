"""A look that hangs holds nobody up and is not joined by others; what was seen last stays known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.kubernetes.waiting import until
from tranche.core.errors import HardwareError
from tranche.kubernetes.agent.metrics_server import BackgroundReader


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def failing(error: Exception) -> Callable[[], str]:
    def look() -> str:
        raise error

    return look


def threads() -> int:
    return sum(thread.name == "test-look" for thread in threading.enumerate())


def test_while_one_look_hangs_no_other_begins_and_the_last_sight_stays() -> None:
    async def run() -> None:
        clock, released = Clock(), threading.Event()
        look: BackgroundReader[str] = BackgroundReader("test-look", clock=clock)

        def hang() -> str:
            released.wait()
            return "late"

        assert await look.latest(lambda: "first", 60) == ("first", 10.0)
        clock.now = 20.0
        answers = await asyncio.gather(*(look.latest(hang, 0.0) for _ in range(50)))
        assert answers == [("first", 10.0)] * 50
        await until(lambda: threads() == 1)  # the thread of the first look may still be about to end
        released.set()
        assert await look.latest(lambda: "never asked", 60) == ("late", 20.0)
        await until(lambda: threads() == 0)
        assert await look.latest(lambda: "fresh", 60) == ("fresh", 20.0)

    asyncio.run(run())


def test_the_end_of_a_look_can_be_waited_for() -> None:
    async def run() -> None:
        released = threading.Event()
        look: BackgroundReader[bool] = BackgroundReader("test-look", clock=Clock())
        look.join()
        await look.latest(released.wait, 0.0)
        waiting = threading.Thread(target=look.join)
        waiting.start()
        assert waiting.is_alive()
        released.set()
        await until(lambda: not waiting.is_alive())

    asyncio.run(run())


def test_nothing_was_seen_before_the_first_look_has_ended() -> None:
    async def run() -> None:
        released = threading.Event()
        look: BackgroundReader[bool] = BackgroundReader("test-look", clock=Clock())
        assert await look.latest(released.wait, 0.0) is None
        released.set()
        assert await look.latest(released.wait, 60) == (True, 10.0)

    asyncio.run(run())


@pytest.mark.parametrize("error", [HardwareError("broken"), ZeroDivisionError("oops")])
def test_a_look_that_fails_leaves_what_was_seen_and_is_logged_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        look: BackgroundReader[str] = BackgroundReader("test-look", clock=Clock())
        seen = await look.latest(lambda: "first", 60)
        for _ in range(3):
            assert await look.latest(failing(error), 60) == seen
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
        assert await look.latest(lambda: "second", 60) == ("second", 10.0)

    asyncio.run(run())
