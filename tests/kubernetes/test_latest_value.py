"""A live value and its listeners."""

from __future__ import annotations

import asyncio

import pytest

from tests.kubernetes.waiting import patiently
from tranche.kubernetes.latest_value import LatestValue


def test_there_is_no_value_before_the_first() -> None:
    live: LatestValue[int] = LatestValue()
    assert not live.synced
    with pytest.raises(RuntimeError):
        live.value  # noqa: B018


def test_first_waits_for_a_value_even_if_it_is_none() -> None:
    async def run() -> None:
        live: LatestValue[int | None] = LatestValue()
        waiting = asyncio.create_task(live.first())
        await asyncio.sleep(0)
        assert not waiting.done()
        live.publish(None)
        assert await patiently(waiting) is None
        assert live.synced

    asyncio.run(run())


def test_a_listener_sees_the_present_value_then_the_latest_and_nothing_twice() -> None:
    async def run() -> None:
        live: LatestValue[int] = LatestValue()
        live.publish(1)
        changes = live.changes()
        assert await patiently(anext(changes)) == 1
        live.publish(2)
        live.publish(3)
        assert await patiently(anext(changes)) == 3
        live.publish(3)
        following = asyncio.ensure_future(anext(changes))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not following.done(), "an equal value is no change"
        live.publish(4)
        assert await patiently(following) == 4

    asyncio.run(run())
