"""Waiting on one event loop: for the next of a value that changes while others use it, and for something, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LatestValue(Generic[Value]):
    """Holds the latest value, at first the `initial` one, if given. Listeners see the newest one, not necessarily each one in
    between.

    To be used from one event loop.
    """

    def __init__(self, *initial: Value) -> None:
        self._value: Value
        self._version = len(initial)
        if initial:
            self._value = initial[0]
        self._changed = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether there is a value yet."""
        return self._version > 0

    @property
    def value(self) -> Value:
        """The latest value; RuntimeError before the first (see `synced`, `first`)."""
        if not self.synced:
            raise RuntimeError("no value has been published yet")
        return self._value

    def publish(self, value: Value) -> None:
        """Replace the value and wake the listeners; an equal value wakes no one."""
        if self.synced and value == self._value:
            return
        self._value = value
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def first(self) -> Value:
        """The value, as soon as there is one."""
        while not self.synced:
            await self._changed.wait()
        return self._value

    async def changes(self) -> AsyncIterator[Value]:
        """The present value as soon as there is one, then the latest after each change."""
        seen = 0
        while True:
            while self._version == seen:
                await self._changed.wait()
            seen = self._version
            yield self._value

    async def until(self, holds: Callable[[Value], bool]) -> None:
        """Return once that holds for the value."""
        async for value in self.changes():
            if holds(value):
                return

    async def tell(self, call: Callable[[], object]) -> None:
        """Make that call as soon as there is a value, and after each change."""
        async for _ in self.changes():
            call()


async def within(seconds: float | None, awaited: Awaitable[object]) -> None:
    """Await this for at most so many seconds; for None, until it ends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaited
