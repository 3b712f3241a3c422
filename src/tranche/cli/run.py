"""`tranche run REQUEST -- CMD...`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tranche.cli.options import TIMEOUT_HELP, DurationType, together
from tranche.cli.output import say, warn
from tranche.cli.request_options import adopt_foreign_option, preemptible_option, request_options, time_option
from tranche.cli.runtime import Settings, TrancheCommand, child_environment, open_host, socket_of_service
from tranche.core.errors import LedgerUnavailable, NoRoom, PermissionDenied, ServiceUnavailable, UsageError
from tranche.core.request import parse_request
from tranche.local.child import PLAIN, Launch
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import told_to_end

if TYPE_CHECKING:
    from tranche.local.client import ServiceClient
    from tranche.local.recorder import DecisionLog


_AGAIN_SECONDS = 1.0

run_options = together(
    request_options,
    time_option,
    click.option("--wait/--no-wait", default=True, show_default=True, help="Wait in the queue if nothing fits."),
    click.option("--timeout", type=DurationType(), metavar="TIME", help=TIMEOUT_HELP),
    adopt_foreign_option,
    click.option(
        "--record",
        metavar="FILE",
        envvar="TRANCHE_RECORD",
        help="Append each decision and its input to FILE, for tranche replay. Default: $TRANCHE_RECORD.",
    ),
    click.option(
        "--cdi",
        is_flag=True,
        help="Make the share a CDI device, named in TRANCHE_CDI_DEVICE, for podman or docker run --device.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print only warnings and errors."),
)
"""The options that `run_command` takes."""


@click.command(cls=TrancheCommand, context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@run_options
@preemptible_option
@click.option(
    "--detach", is_flag=True, help="Return when the request is accepted. The command continues after you log out."
)
@click.option("--name", metavar="NAME", help="Name of a detached run. Default: a name derived from the command.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_obj
def command(
    settings: Settings, /, detach: bool, name: str | None, command_line: tuple[str, ...], **options: Any
) -> None:
    """Run a command on a share of a GPU.

    Request the share with one of --gpus, --gpu, --gpu-memory or --mig-profile. If nothing fits, the request waits in
    the queue. The command sees only its share, through CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES. When the
    command ends, Tranche releases the share and exits with the command's exit code.

    With --time, Tranche warns 10 minutes and 1 minute before the limit. At the limit, it sends SIGTERM to the command
    and its child processes, and SIGKILL 30 seconds later. A command with a time limit can start before earlier
    requests, if it will end before the first of them can start.

    With --preemptible, the command waits behind all other requests, and can exceed the user's quota. When another
    request needs the command's GPU, Tranche sends SIGTERM to the command, then SIGKILL 30 seconds later. The command
    then waits again, and starts from the beginning. An administrator must allow this with tranche policy preemption --on.

    With --detach, the command reads no input, and its output goes to a file. See tranche job list and tranche job logs.

    \b
    $ tranche run --gpu-memory 4Gi -- python train.py
    $ tranche run --gpu 0.5 -- ./benchmark
    $ tranche run --mig-profile 2g.10gb -- bash
    """
    if not command_line:
        raise UsageError("no command to run", hint="put it after --: tranche run --gpu-memory 4Gi -- python train.py")
    if name is not None and not detach:
        raise UsageError("--name requires --detach", hint="add --detach")
    if detach:
        from tranche.cli.detached import run_detached  # most runs stay

        sys.exit(run_detached(settings, command_line, name, options, run_command))
    sys.exit(run_command(settings, command_line, **options))


def run_command(
    settings: Settings,
    command_line: Sequence[str],
    launch: Launch = PLAIN,
    *,
    wait: bool,
    timeout: float | None,
    adopt_foreign: str,
    record: str | None,
    cdi: bool,
    quiet: bool,
    **request: Any,
) -> int:
    """Run the command in a share, as the options say, and return its exit code. A preempted command starts again."""
    if not wait and timeout is not None:
        raise UsageError(
            "--no-wait and --timeout cannot be combined",
            hint="--no-wait does not wait at all; --timeout waits for a limited time",
        )
    if parse_request(**request).preemptible and not wait:
        raise UsageError("--no-wait and --preemptible cannot be combined", hint="a preempted command waits again")
    patience = WaitLimit(wait=wait, seconds=timeout)

    def say_of_run(line: str) -> None:
        launch.accepted()
        if not quiet:
            say(f"tranche: {line}")

    until: float | None = None  # when a command that was preempted gives up
    held_up = ""
    while True:
        try:
            code, preempted = _run_once(
                settings, command_line, launch, request, patience, adopt_foreign, record, cdi=cdi, tell=say_of_run
            )
        except (ServiceUnavailable, NoRoom, LedgerUnavailable) as error:
            if until is None or time.monotonic() >= until:
                raise
            # The service may be starting again, the user has as many runs as one may have, or the disk is full.
            if error.message != held_up:
                held_up = error.message
                say_of_run(f"waiting: {held_up}")
            time.sleep(_AGAIN_SECONDS)
            if number := told_to_end():
                return 128 + number
            continue
        if not preempted or told_to_end():
            return code
        until, held_up = time.monotonic() + (math.inf if timeout is None else timeout), ""
        launch.waits_again()
        say_of_run("the command was preempted, so it waits for another share")


def _run_once(
    settings: Settings,
    command_line: Sequence[str],
    launch: Launch,
    request: Mapping[str, Any],
    patience: WaitLimit,
    adopt_foreign: str,
    record: str | None,
    *,
    cdi: bool,
    tell: Callable[[str], None],
) -> tuple[int, bool]:
    """Run the command to its end in one share; returns its exit code, and whether it was preempted."""
    socket = socket_of_service(settings)
    if socket is not None:
        if adopt_foreign == "destroy" or record is not None:
            raise PermissionDenied(
                "the service accepts neither --adopt-foreign=destroy nor --record", hint="ask an administrator"
            )
        options = {name: value for name, value in request.items() if value is not None}
        environment = child_environment(settings)  # it may take long, and the service expects a request soon
        client = _client_of(socket, tell)
        return client.run(options, command_line, environment, patience, launch, cdi=cdi), client.preempted
    from tranche.local.run import RunRequest, run  # a client of the service needs none of this
    from tranche.local.run_report import RunReporter
    from tranche.local.workload import OwnWorkload

    with ExitStack() as stack:
        to_run = RunRequest(
            request=parse_request(**request),
            workload=OwnWorkload(command_line, child_environment(settings), launch),
            patience=patience,
            adopt_foreign_destroy=adopt_foreign == "destroy",
            record=None if record is None else stack.enter_context(closing(_recorder(record))),
            cdi=cdi,
        )
        return run(stack.enter_context(open_host(settings)), to_run, RunReporter(tell, warn))


def _client_of(socket: Path, say: Callable[[str], None]) -> ServiceClient:
    from tranche.local.client import ServiceClient
    from tranche.node.state.connection import connect  # most runs need no service

    return ServiceClient(connect(socket), say, warn)


def _recorder(path: str) -> DecisionLog:
    from tranche.local.recorder import DecisionLog  # seldom needed, and every `tranche run` loads this module

    return DecisionLog(Path(path), failed=lambda error: warn(f"a decision was not recorded: {error.strerror}"))
