"""The loop of a component that keeps something true: it looks at each piece of news, and retries failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tranche.core.errors import TrancheError
from tranche.kubernetes.latest_value import LatestValue, within

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0


class LookResult(NamedTuple):
    """After a look: news within `rest` seconds shares one look. `again` is in how many seconds to look without news, None for
    never.
    """

    rest: float = 0.0
    again: float | None = None


Look = Callable[[], Awaitable[LookResult | None]]
"""Compares the present with the wanted state, and repairs differences. None means a `LookResult` that waits for the next news."""


class Reconciler:
    """`trouble` says why the last look failed, "" if it succeeded. `failure` is what `log` calls a failure; repeats are not
    logged.

    Failures are retried at their own pace, no matter how much news there is: after twice as long each time, `longest` seconds at
    most.
    """

    def __init__(
        self,
        log: logging.Logger,
        failure: str,
        *,
        trouble: str,
        longest: float = LAST_RETRY_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.trouble = trouble
        self._log = log
        self._failure = failure
        self._longest = longest
        self._sleep = sleep
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Report news."""
        self._wake.set()

    async def run(
        self, look: Look, needed: Sequence[LatestValue[Any]], news: Iterable[AsyncIterator[object]] = ()
    ) -> None:
        """Look until cancelled, for the first time when all `needed` are known; their changes are news."""
        async with asyncio.TaskGroup() as group:
            for each in (*(value.changes() for value in needed), *news):
                group.create_task(self._listen(each))
            group.create_task(self._keep(look, needed))

    async def _listen(self, news: AsyncIterator[object]) -> None:
        async for _ in news:
            self._wake.set()

    async def _keep(self, look: Look, needed: Sequence[LatestValue[Any]]) -> None:
        for each in needed:
            await each.first()
        pause = FIRST_RETRY_SECONDS
        while True:
            self._wake.clear()
            try:
                rest, again = await look() or LookResult()
            except TrancheError as error:
                if str(error) != self.trouble:
                    self._log.warning(self._failure, extra={"reason": error.reason, "error": str(error)})
                self.trouble = str(error)
                await self._sleep(pause)
                pause = min(2 * pause, self._longest)
                continue
            self.trouble, pause = "", FIRST_RETRY_SECONDS
            await self._sleep(rest)
            await within(None if again is None else max(0.0, again - rest), self._wake.wait())
