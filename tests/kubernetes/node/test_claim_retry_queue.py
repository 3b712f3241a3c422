"""Who meets what time alone mends waits for news of it, and is refused with the last reason when the time is over."""

from __future__ import annotations

import asyncio

import pytest

from tests.kubernetes.waiting import patiently, until
from tranche.core.errors import GpuBusy, GpuNotFound, HardwareError, NotOffered, TrancheError
from tranche.kubernetes.node.claim_queue import PASSING, ClaimRetryQueue

LONG = 3600.0


async def _until_it_waits(room: ClaimRetryQueue) -> None:
    await until(lambda: bool(room.waiting))


@pytest.mark.parametrize("kind", PASSING)
def test_what_time_mends_is_waited_for(kind: type[TrancheError]) -> None:
    async def test() -> None:
        room, told, errors = ClaimRetryQueue(), list[str](), [kind("one"), kind("two")]

        async def attempt() -> str:
            if errors:
                raise errors.pop(0)
            return "done"

        deadline = asyncio.get_running_loop().time() + LONG
        work = asyncio.create_task(room.persist("a", attempt, deadline, lambda error: told.append(error.message)))
        while not work.done():
            await asyncio.sleep(0)
            room.tell()
        assert (await patiently(work), told, room.waiting) == ("done", ["one"], frozenset())

    asyncio.run(test())


@pytest.mark.parametrize("kind", [NotOffered, HardwareError, GpuNotFound])
def test_what_somebody_has_to_mend_is_refused_at_once(kind: type[TrancheError]) -> None:
    async def test() -> None:
        async def attempt() -> None:
            raise kind("no")

        deadline = asyncio.get_running_loop().time() + LONG
        with pytest.raises(kind):
            await patiently(ClaimRetryQueue().persist("a", attempt, deadline, lambda error: None))

    asyncio.run(test())


def test_the_last_reason_is_told_when_the_time_is_over() -> None:
    async def test() -> None:
        tries = 0

        async def attempt() -> None:
            nonlocal tries
            tries += 1
            raise GpuBusy(f"try {tries}")

        loop = asyncio.get_running_loop()
        with pytest.raises(GpuBusy, match=r"try 1$"):
            await ClaimRetryQueue().persist("a", attempt, loop.time(), lambda error: None)
        tries = 0
        with pytest.raises(GpuBusy, match=r"try 2$"):
            await patiently(ClaimRetryQueue().persist("a", attempt, loop.time() + 0.01, lambda error: None))

    asyncio.run(test())


def test_who_is_given_up_waits_no_longer_and_the_others_do() -> None:
    async def test() -> None:
        room, free = ClaimRetryQueue(), False

        async def attempt() -> None:
            if not free:
                raise GpuBusy("held")

        deadline = asyncio.get_running_loop().time() + LONG
        one, other = (asyncio.create_task(room.persist(uid, attempt, deadline, lambda _: None)) for uid in "ab")
        await until(lambda: room.waiting == {"a", "b"})
        room.give_up("a")
        room.give_up("nobody")
        with pytest.raises(GpuBusy):
            await patiently(one)
        await _until_it_waits(room)
        assert not other.done()
        free = True
        room.tell()
        await patiently(other)

    asyncio.run(test())


def test_who_is_given_up_amid_a_try_does_not_wait_after_it() -> None:
    async def test() -> None:
        room, begun, end = ClaimRetryQueue(), asyncio.Event(), asyncio.Event()

        async def attempt() -> None:
            begun.set()
            await end.wait()
            raise GpuBusy("held")

        deadline = asyncio.get_running_loop().time() + LONG
        work = asyncio.create_task(room.persist("a", attempt, deadline, lambda _: None))
        await begun.wait()
        room.give_up("a")
        end.set()
        with pytest.raises(GpuBusy):
            await patiently(work)

    asyncio.run(test())
