"""Removes the templates that no pod needs, now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tranche.core.errors import TrancheError
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.webhook.template_store import TemplateStore

SWEEP_SECONDS = 600.0

_log = logging.getLogger(__name__)


class TemplateCleanupTask:
    """Each replica sweeps: what one has removed is gone for the others. `random` gives numbers from 0 to 1."""

    name = "sweeper"

    def __init__(
        self,
        store: TemplateStore,
        *,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._random = random
        self._sleep = sleep

    def ready(self) -> Readiness:
        """Always: what is left lying is only untidy."""
        return Readiness(True)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self._sleep(SWEEP_SECONDS * (0.5 + self._random()))
            try:
                await self._store.sweep()
            except TrancheError as error:
                _log.warning("templates not swept", extra={"reason": error.reason, "error": error.message})
