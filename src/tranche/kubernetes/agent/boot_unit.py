"""Keeps the boot unit, which cuts the GPUs at boot, installed for as long as the agents' DaemonSet asks for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.objects import DaemonSet
from tranche.kubernetes.component import Readiness

OPTION = "--boot-program"
"""The option of an agent that asks for the unit."""

_log = logging.getLogger(__name__)


class Installation(Protocol):
    """Installs on the machine. Both methods block and return a description of what they did."""

    def install(self) -> str:
        """Write whatever is missing or differs."""
        ...

    def remove(self) -> str:
        """Remove it again."""
        ...


class BootUnit:
    """A component of the node agent. It installs once: only an agent or an administrator changes the unit later."""

    name = "boot-unit"

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._trouble = "the boot unit is not installed yet"

    def ready(self) -> Readiness:
        """Ready when the unit is installed."""
        return Readiness(not self._trouble, self._trouble)

    async def run(self) -> None:
        """Install the unit, then wait to be cancelled."""
        said = await asyncio.to_thread(self._installation.install)
        self._trouble = ""
        _log.info("boot unit installed", extra={"done": said})
        await asyncio.Event().wait()

    def end(self, daemon_set: DaemonSet | None) -> None:
        """Remove the unit if the DaemonSet is being deleted or no longer asks for it.

        The unit stays after an upgrade or a reboot, which end an agent too, and when the DaemonSet is unknown (None).
        """
        if daemon_set is None or not (daemon_set.deleting or not daemon_set.has_option(OPTION)):
            return
        try:
            _log.info("boot unit removed", extra={"done": self._installation.remove()})
        except TrancheError as error:
            _log.error("cannot remove the boot unit", extra={"error": str(error)})
