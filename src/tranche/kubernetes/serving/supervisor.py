"""Hosts the components of a process, keeps them running, and reports how each is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.latest_value import LatestValue, within

_FIRST_RESTART_SECONDS = 1.0
_LAST_RESTART_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs components side by side until cancelled. A component that fails is started again; the others run on."""

    def __init__(
        self,
        components: Sequence[Component],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._components = tuple(components)
        self._clock = clock
        self._sleep = sleep
        self._failures: dict[str, str] = {}

    async def run(self) -> None:
        """Keep every component running until cancelled."""
        async with asyncio.TaskGroup() as group:
            for component in self._components:
                group.create_task(self._keep(component), name=component.name)

    def readiness(self) -> Mapping[str, Readiness]:
        """Each component's present readiness. One that failed and was not ready since is not ready because of that failure."""
        found = {}
        for component in self._components:
            readiness = component.ready()
            if readiness.ready:
                self._failures.pop(component.name, None)
            elif failure := self._failures.get(component.name):
                readiness = Readiness(False, failure)
            found[component.name] = readiness
        return found

    async def _keep(self, component: Component) -> None:
        pause = _FIRST_RESTART_SECONDS
        while True:
            begun = self._clock()
            error = await _outcome(component)
            if error is None:
                failure = "it exited unexpectedly"
                _log.error("component exited", extra={"component": component.name})
            elif isinstance(error, TrancheError):
                failure = str(error)
                _log.error(
                    "component failed", extra={"component": component.name, "error": failure, "hint": error.hint}
                )
            else:
                failure = f"{type(error).__name__}: {error}"
                _log.error("component failed", extra={"component": component.name}, exc_info=error)
            self._failures[component.name] = failure
            if self._clock() - begun > _LAST_RESTART_SECONDS:
                pause = _FIRST_RESTART_SECONDS
            await self._sleep(pause)
            pause = min(2 * pause, _LAST_RESTART_SECONDS)


async def _outcome(component: Component) -> BaseException | None:
    """What the component failed with; None if it simply ended.

    It runs as its own task. In the caller's task a failure of the component's own tasks, which arrives as a group, would hide a
    cancellation at the same moment.
    """
    work = asyncio.ensure_future(component.run())
    try:
        await asyncio.wait({work})
    finally:
        work.cancel()
        # Always retrieved: asyncio complains about an error that is not.
        (error,) = await asyncio.gather(work, return_exceptions=True)
    if isinstance(error, asyncio.CancelledError):
        return None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
