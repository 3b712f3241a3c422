"""Serves the dashboard on this machine's loopback until SIGTERM or Ctrl-C."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable

import uvicorn

from tranche.core.errors import UsageError
from tranche.dashboard.access import Gate
from tranche.dashboard.app import Served, dashboard_app

_LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 200
_LAST_SECONDS = 2


def serve_dashboard(port: int, token: str, served: Served, ready: Callable[[Gate], None]) -> None:
    """Answer on that port, or with 0 on any; `ready` is called when connections are taken."""
    with listening(_LOOPBACK, port) as listener:
        gate = Gate(token, listener.getsockname()[1])
        config = uvicorn.Config(
            dashboard_app(gate, served),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
        ready(gate)
        # When the server has ended, Ctrl-C ends the process as SIGTERM does, and waits for no thread that a driver holds.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        uvicorn.Server(config).run([listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections there; UsageError when it cannot be had."""
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
