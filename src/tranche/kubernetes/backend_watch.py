"""Asks the API server from time to time how this cluster can give shares by demand; an upgrade changes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.claims.allocation_backend import AllocationBackend, backend_by_version
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.latest_value import LatestValue, within

_PERIOD_SECONDS = 600.0
"""Each agent asks: with 5,000 nodes, there are 17 requests a second."""
_RETRY_SECONDS = 2.0
LOOK_SECONDS = 5.0
"""How often a part checks whether it still owes something in another backend."""

_log = logging.getLogger(__name__)


async def ask_backend(connection: ApiConnection) -> AllocationBackend:
    """The backend, by the APIs and the version of the API server; KubernetesUnavailable when it does not answer."""
    version = (await connection.ask("ask for the version", "GET", "/version")).accepted()
    served = await connection.ask("ask for resource claims", "GET", "/apis/resource.k8s.io/v1")
    return backend_by_version(str(version.get("gitVersion") or ""), served=served.unless(404) is not None)


class BackendWatch:
    """A component that publishes the backend. `said` is the administrator's choice, None to find out."""

    name = "tier"

    def __init__(self, connection: ApiConnection, said: AllocationBackend | None = None) -> None:
        self.latest: LatestValue[AllocationBackend] = LatestValue()
        self._connection = connection
        self._said = said
        if said is not None:
            self.latest.publish(said)

    def ready(self) -> Readiness:
        """Ready once it is known."""
        known = self.latest.synced
        return Readiness(known, "" if known else "the API server has not reported its APIs yet")

    async def run(self) -> None:
        """Ask until cancelled. While there is no answer, the last one stands."""
        while True:
            pause = _PERIOD_SECONDS
            if self._said is None:
                try:
                    found = await ask_backend(self._connection)
                    if not self.latest.synced or found is not self.latest.value:
                        _log.info("shares are assigned", extra={"by": str(found)})
                    self.latest.publish(found)
                except TrancheError as error:
                    _log.info("cannot determine the tier", extra={"error": str(error)})
                    pause = _RETRY_SECONDS if not self.latest.synced else pause
            await self._connection.sleep(pause)


@dataclass(frozen=True, slots=True)
class CleanupTask:
    """What a component still owes in another backend: `settle` works on it while `left` says so, until cancelled."""

    left: Callable[[], Awaitable[bool]]
    settle: Callable[[], Coroutine[None, None, None]]


class BackendComponent:
    """Runs a component only while the cluster's backend is one of `backends`; else it is ready, and only does what it owes."""

    def __init__(
        self,
        component: Component,
        backend: LatestValue[AllocationBackend],
        backends: frozenset[AllocationBackend],
        *,
        owed: CleanupTask | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.name = component.name
        self._component = component
        self._backend = backend
        self._backends = backends
        self._owed = owed
        self._look_seconds = look_seconds

    def ready(self) -> Readiness:
        """The component's readiness while it runs."""
        if not self._backend.synced:
            return Readiness(False, "the agent does not yet know how this cluster assigns shares")
        return self._component.ready() if self._backend.value in self._backends else Readiness(True)

    async def run(self) -> None:
        """Follow the backend until cancelled."""
        while True:
            if await self._backend.first() in self._backends:
                await self._during(self._component.run(), self._until(False))
            elif self._owed is None:
                await self._until(True)
            elif await self._owed.left():
                _log.info("cleaning up after another tier", extra={"part": self.name})
                await self._during(self._owed.settle(), self._settled(self._owed))
            else:
                await within(self._look_seconds, self._until(True))

    async def _during(self, work: Coroutine[None, None, None], end: Coroutine[None, None, None]) -> None:
        """Run the work until the end comes. Raises what the work fails with."""
        tasks = (asyncio.ensure_future(work), asyncio.ensure_future(end))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = tasks[0].done()
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if done:
            tasks[0].result()
            raise RuntimeError(f"{self.name} exited unexpectedly")

    async def _until(self, inside: bool) -> None:
        """Return once the backend is one of ours; with `inside` false, once it is not."""
        await self._backend.until(lambda backend: (backend in self._backends) is inside)

    async def _settled(self, owed: CleanupTask) -> None:
        """Return once two looks in a row find nothing owed, so that the last answer has gone out, or once the backend is ours
        again.
        """
        found = [True, True]
        while any(found[-2:]) and self._backend.value not in self._backends:
            await within(self._look_seconds, self._until(True))
            found.append(await owed.left())
