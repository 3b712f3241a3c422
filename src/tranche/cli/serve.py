"""`tranche serve`: the service that gets shares for users who are not root."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager

import click

from tranche.cli.output import say
from tranche.cli.runtime import Settings, TrancheCommand, open_host, register_places
from tranche.core.errors import UsageError
from tranche.local.connection import ClientProcess, listen
from tranche.local.service import RunService
from tranche.node.host import Host
from tranche.node.locks.locks import FileLock

_FIRST_PASSED = 3
"""The descriptor of systemd's first socket (sd_listen_fds(3))."""


@click.command(cls=TrancheCommand)
@click.pass_obj
def command(settings: Settings, /) -> None:
    """Let users of this machine run commands without root.

    The service listens on the socket in the state folder. When a user who may not write the state folder calls tranche
    run, the service gets the share, and the user's own process runs the command. The kernel tells the service who the
    user is. The service never executes anything for a user.

    Run the service as root. If it ends, commands keep running and keep their shares.
    """
    places = register_places(settings)
    try:
        lock = FileLock(places.service_lock, wait=False)
    except BlockingIOError as error:
        raise UsageError(
            f"another service already serves {places.state_dir}", hint="find it with: ss -lxp | grep tranche"
        ) from error

    def open_for(peer: ClientProcess) -> AbstractContextManager[Host]:
        return open_host(settings, uid=peer.uid)

    with lock, _passed_socket() or listen(places.socket) as listener:
        whom = "every user of this machine" if os.geteuid() == 0 else "only this user, because it is not root"
        say(f"tranche: serving {whom} at {listener.getsockname()}")
        RunService(listener, lock, open_for, lambda line: say(f"tranche: {line}")).serve()
        say("tranche: the service ends; commands that run keep their shares")


def _passed_socket() -> socket.socket | None:
    """The socket that systemd listens on for this process; None if it passed none."""
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()):
        return None
    os.set_inheritable(_FIRST_PASSED, False)
    return socket.socket(fileno=_FIRST_PASSED)
