"""`tranche hold REQUEST`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import click

from tranche.cli.output import data_lost
from tranche.cli.run import run_command, run_options
from tranche.cli.runtime import Settings, TrancheCommand, child_environment, output_option
from tranche.core.errors import TrancheError, UsageError
from tranche.documents.envelope import document
from tranche.local.hold import hold
from tranche.node.processes.processes import MARK


@click.command(cls=TrancheCommand, context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
@run_options
@output_option("shell", "json")
@click.pass_context
def command(context: click.Context, /, output: str, **options: Any) -> None:
    """Hold a share of a GPU for this session.

    Like tranche run, the command waits for the share. Then it prints the share's environment variables in shell syntax
    and exits. Programs with these variables use the share.

    The share ends with the session, for example when you log out or close the window, or when the cron job ends. It
    also ends with tranche release, or at the --time limit. If programs are still using the share, it lasts until they
    end. A script that you start in a terminal belongs to the terminal's session, so the script must release the share
    itself.

    \b
    $ eval "$(tranche hold --gpu-memory 8G)"
    $ tranche release "$TRANCHE_ALLOCATION"
    """
    settings: Settings = context.obj
    if context.args:
        raise UsageError(
            "tranche hold does not accept a command",
            hint=f"run a command in a share with: tranche run REQUEST -- {shlex.join(context.args)}",
        )
    run = partial(run_command, settings, **options)
    caller = os.getpid()
    try:
        code = hold(run, lambda variables: _text(settings, output, variables), sys.stdout.fileno())
    except OSError as error:
        if os.getpid() == caller:
            data_lost(error)
        raise
    except TrancheError as error:
        if os.getpid() == caller:
            _fail_eval(output, error.exit_code)
        raise
    if code and os.getpid() == caller:
        _fail_eval(output, code)
    sys.exit(code)


def _fail_eval(output: str, code: int) -> None:
    """Make the shell's eval of what was printed fail: else a script would go on with every GPU."""
    if output == "shell":
        with suppress(OSError):
            os.write(sys.stdout.fileno(), f"(exit {code})\n".encode())


def _text(settings: Settings, output: str, variables: Mapping[str, str]) -> str:
    """What programs need, with what makes them see the simulated machine where one is meant."""
    simulated = {name: value for name, value in child_environment(settings).items() if os.environ.get(name) != value}
    found = {**simulated, **variables}
    if output == "json":
        return json.dumps(document("Hold", allocationId=variables[MARK], environment=found), indent=2) + "\n"
    lines = [f"export {name}={shlex.quote(value)}" for name, value in found.items()]
    if sys.stdout.isatty():
        lines.append(
            f'# No shell has read this. Use: eval "$(tranche hold ...)". To end this share: tranche release {found[MARK]}'
        )
    return "".join(f"{each}\n" for each in lines)
