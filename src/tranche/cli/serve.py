"""`tranche serve`: the service that gets shares for users who are not root, and its systemd unit."""

from __future__ import annotations

import importlib
import os
import socket
import stat
import sys
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

import click

from tranche.boot.unit import InstalledUnit, command_line
from tranche.cli.output import say, warn
from tranche.cli.runtime import Settings, TrancheCommand, TrancheGroup, child_environment, open_host, register_places
from tranche.cli.service_options import (
    options_of_unit,
    program_of_unit,
    remove_unit,
    systemd_runs,
    tell_systemd,
    unit_program_option,
    unit_root_option,
    warn_of_program,
)
from tranche.core.errors import ServiceUnavailable
from tranche.local.service import RunService
from tranche.node.host import Host
from tranche.node.locks.locks import FileLock
from tranche.node.state.connection import listen
from tranche.node.store.ledger import make_private

_UNIT = "tranche.service"
_FIRST_PASSED = 3
"""The descriptor of systemd's first socket (sd_listen_fds(3))."""
_NEEDED_LATER = (
    "pynvml",
    "tranche.core.events",
    "tranche.core.moment",
    "tranche.hardware.control_groups",
    "tranche.hardware.device_filter",
    "tranche.hardware.limit_canary",
    "tranche.hardware.memory_limits",
    "tranche.hardware.mps_process",
    "tranche.hardware.nvml",
    "tranche.hardware.nvml_gauges",
    "tranche.local.idle",
    "tranche.local.preemption",
    "tranche.local.share_spec",
    "tranche.node.fence",
    "tranche.node.limits.fence",
    "tranche.planning.decide.backfill",
    "tranche.planning.decide.fairness",
    "tranche.planning.decide.preempt",
    "tranche.planning.decide.recording",
)
"""What functions import only where a request needs it."""


@click.group(cls=TrancheGroup, invoke_without_command=True)
@click.pass_context
def command(context: click.Context, /) -> None:
    """Let this machine's users run commands without root access.

    The service listens on the socket in the state folder. If users cannot write to that folder, their tranche run gets
    a share from the service and runs the command itself. The service gets the user's identity from the kernel, and
    never executes anything for a user.

    Run the service as root, preferably through the systemd unit from tranche serve install. If the service ends,
    commands continue and keep their shares.
    """
    if context.invoked_subcommand is None:
        _serve(context.find_object(Settings) or Settings())


@command.command(cls=TrancheCommand)
@unit_root_option
@unit_program_option
@click.pass_context
def install(context: click.Context, root: Path, program: str | None) -> None:
    """Install, enable and start the systemd unit for tranche serve."""
    path = program_of_unit(program)
    words = (path, *options_of_unit(context.find_object(Settings) or Settings()), "serve")
    text = resources.files("tranche.local").joinpath(_UNIT).read_text().replace("@command@", command_line(words))
    unit = InstalledUnit(root, _UNIT)
    changed = unit.install(text)
    if changed:
        tell_systemd(root, "daemon-reload")
    tell_systemd(root, "restart" if changed else "start", _UNIT)
    say(f"{unit.file} is {'written and enabled' if changed else 'up to date'}")
    if root == Path("/") and not systemd_runs(root):
        warn("systemd is not running here, so nothing was started; without systemd, run: tranche serve")
    warn_of_program(root, path)


@command.command(cls=TrancheCommand)
@unit_root_option
def remove(root: Path) -> None:
    """Stop the service and remove its systemd unit.

    Running commands continue and keep their shares.
    """
    remove_unit(InstalledUnit(root, _UNIT))


def _serve(settings: Settings) -> None:
    places = register_places(settings)
    try:
        lock = FileLock(places.service_lock, wait=False)
    except BlockingIOError as error:
        raise ServiceUnavailable(
            f"another service already serves {places.state_dir}", hint="find it with: ss -lxp | grep tranche"
        ) from error

    def open_for(uid: int) -> AbstractContextManager[Host]:
        return open_host(settings, uid=uid)

    child_environment(settings)  # a simulator that is not compiled yet would make the first request wait
    import_what_requests_need()
    make_private(places.ledger)
    with lock, _passed_socket() or listen(places.socket) as listener:
        if os.geteuid() == 0:
            _warn_of_closed_folders()
            say(f"tranche: serving every user of this machine at {listener.getsockname()}")
        else:
            say(
                f"tranche: serving only this user at {listener.getsockname()}, because the service does not run as root"
            )
        environment = child_environment(settings)
        RunService(listener, lock, places.ledger, open_for, lambda line: say(f"tranche: {line}"), environment).serve()
        say("tranche: the service is stopping; running commands keep their shares")


def import_what_requests_need() -> None:
    """Import all that the process of a request may need, once for all of them.

    An upgrade replaces the files while requests wait and run: what they imported then would not fit what they have.
    """
    for each in _NEEDED_LATER:
        importlib.import_module(each)


def _warn_of_closed_folders() -> None:
    """Warn if users cannot execute this program: their commands are their own processes."""
    paths = {Path(each) for one in (sys.executable, __file__) for each in (os.path.abspath(one), os.path.realpath(one))}
    folders = {folder for path in paths for folder in path.parents}
    if closed := sorted(each for each in folders if not each.stat().st_mode & stat.S_IXOTH):
        warn(f"users cannot execute Tranche, because they have no access to {closed[0]}: install Tranche in /opt")


def _passed_socket() -> socket.socket | None:
    """The socket that systemd listens on for this process; None if it passed none."""
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()):
        return None
    os.set_inheritable(_FIRST_PASSED, False)
    return socket.socket(fileno=_FIRST_PASSED)
