"""Keeps the cut at boot installed on the node's machine for as long as the agents' DaemonSet asks for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from tranche.core.errors import TrancheError
from tranche.kubernetes.api.cluster_client import DaemonSet
from tranche.kubernetes.component import Readiness

OPTION = "--boot-program"
"""The option of an agent that asks for the unit."""

_log = logging.getLogger(__name__)


class Installation(Protocol):
    """What is installed on the machine; each says in words what it did, and blocks."""

    def install(self) -> str:
        """Write what is not there as it should be."""
        ...

    def remove(self) -> str:
        """Take it away again."""
        ...


class BootUnit:
    """A component of the node agent: installs once, since nobody but an agent or a person changes it afterwards."""

    name = "boot-unit"

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._trouble = "the unit was not installed yet"

    def ready(self) -> Readiness:
        """Ready when the unit is installed."""
        return Readiness(not self._trouble, self._trouble)

    async def run(self) -> None:
        """Install it, and do nothing more until cancelled."""
        said = await asyncio.to_thread(self._installation.install)
        self._trouble = ""
        _log.info("boot unit installed", extra={"done": said})
        await asyncio.Event().wait()

    def end(self, daemon_set: DaemonSet | None) -> None:
        """Take the unit away when the DaemonSet is deleted, or asks for it no more.

        An upgrade or a restart of the machine ends an agent as well, and the unit stays. So it does when nobody knows (None).
        """
        if daemon_set is None or not (daemon_set.deleting or not daemon_set.has_option(OPTION)):
            return
        try:
            _log.info("boot unit removed", extra={"done": self._installation.remove()})
        except TrancheError as error:
            _log.error("boot unit not removed", extra={"error": str(error)})
