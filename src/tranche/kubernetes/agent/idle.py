"""An agent on a machine without a GPU: it serves only its health pages, says so, and checks for a GPU from time to time.

It imports nothing that serves a node until there is a GPU: this process may run on every node of a cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from tranche.hardware.host_facts import has_nvidia_gpu
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import within
from tranche.kubernetes.serving.http_server import serve_health

LOOK_SECONDS = 60.0

_log = logging.getLogger(__name__)


def machine_has_gpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this machine, or the environment's simulated one, has a GPU; True when nothing says otherwise."""
    simulated = environ.get("TRANCHE_SIM_STATE")
    return Path(simulated).exists() if simulated else has_nvidia_gpu() is not False


def idle_until_gpu(host: str, port: int, has_gpu: Callable[[], bool], *, period: float = LOOK_SECONDS) -> bool:
    """Serve the health pages, ready, until the machine has a GPU: returns True then, False at SIGTERM or SIGINT.

    `period` is in seconds. UsageError when the port is taken.
    """
    return has_gpu() or asyncio.run(_idle(host, port, has_gpu, period))


async def _idle(host: str, port: int, has_gpu: Callable[[], bool], period: float) -> bool:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    health = await serve_health(host, port, lambda: {"gpus": Readiness(True, "this machine has no GPU")})
    _log.info("no GPU: the agent serves nothing", extra={"health_port": health.port, "look_again_seconds": period})
    try:
        while not stopped.is_set():
            await within(period, stopped.wait())
            if not stopped.is_set() and has_gpu():
                _log.info("a GPU appeared")
                return True
        return False
    finally:
        health.stop()
