"""Waiting for something to become true, without a guess at how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.last_look import last_look

PATIENCE_SECONDS = 180.0

Result = TypeVar("Result")


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; TimeoutError after three minutes, with what it saw last."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.001)
    except TimeoutError as error:
        raise TimeoutError(f"this did not come true in {PATIENCE_SECONDS:g} s:\n{last_look(condition)}") from error


async def patiently(awaitable: Awaitable[Result]) -> Result:
    """The result; TimeoutError after three minutes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable
