"""Serves the dashboard on this machine's loopback until SIGTERM or Ctrl-C."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from tranche.core.errors import UsageError
from tranche.dashboard.access import TokenAuthenticator
from tranche.dashboard.app import MachineContext, MachineRequestHandler
from tranche.dashboard.background_writer import BackgroundWriter
from tranche.dashboard.connection import ACCEPTED_AT_ONCE, guarded, only_our_own

_LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 250
_KEPT_BY_THE_KERNEL = 1_024
"""Connections not yet accepted. The client of one more would have to try again after a second."""
_LAST_SECONDS = 2


def serve_dashboard(port: int, token: str, served: MachineContext, ready: Callable[[TokenAuthenticator], None]) -> None:
    """Answer on that port, or with 0 on any; calls `ready` once it takes connections."""
    with listening(_LOOPBACK, port) as listener:
        gate = TokenAuthenticator(token, listener.getsockname()[1])
        config = guarded_config(MachineRequestHandler(gate, served), _MOST_CONNECTIONS, lifespan="on")
        ready(gate)
        if sys.stderr is not None:
            logging.basicConfig(handlers=[logging.StreamHandler(BackgroundWriter(sys.stderr.fileno()))], force=True)
        # When the server has ended, Ctrl-C ends the process as SIGTERM does, without waiting for threads that a driver holds.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        GuardedServer(config).run([listener])


class GuardedServer(uvicorn.Server):
    """Accepts a few connections in each turn of the event loop; the kernel keeps many more until then."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_KEPT_BY_THE_KERNEL)


def guarded_config(app: ASGIApp, most: int, *, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    """How uvicorn serves among strangers: with a limit of connections, and no logs of what strangers send."""
    logging.getLogger("uvicorn.error").addFilter(only_our_own)
    return uvicorn.Config(
        app,
        http=guarded(most),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan=lifespan,
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections there; UsageError when it cannot be opened."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"--port {port}: another program listens there", hint="choose another port, or 0 for any"
            ) from error
        raise UsageError(f"--port {port}: cannot listen there: {error.strerror}") from error
    return listener
