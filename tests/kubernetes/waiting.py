"""Waiting for something to become true, without a guess at how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_SECONDS = 60.0

Result = TypeVar("Result")


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; TimeoutError after a minute."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def patiently(awaitable: Awaitable[Result]) -> Result:
    """The result; TimeoutError after a minute."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable
