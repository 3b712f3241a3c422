"""Hosts the components of a process, keeps them running, and reports how each is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Component, Readiness

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
