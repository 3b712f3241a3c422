"""The root command: finds subcommands lazily, so that a command pays only for what it imports, and reports errors."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import click

from tranche.cli.output import ClosedOutputError, fail, guard_streams, leave, say
from tranche.cli.runtime import Settings, TrancheCommand
from tranche.core.errors import TrancheError, UsageError
from tranche.core.spelling import did_you_mean
from tranche.documents.envelope import error_document
from tranche.hardware.simulator_errors import simulator_errors

_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "This machine": {
        "run": ("tranche.cli.run", "Run a command on a share of a GPU"),
        "hold": ("tranche.cli.hold", "Hold a share of a GPU for this session"),
        "ps": ("tranche.cli.ps", "List allocations and waiting requests"),
        "gpus": ("tranche.cli.gpus", "List GPUs, their slices and their holders"),
        "top": ("tranche.cli.top", "Show a live view of GPUs, slices and shares"),
        "explain": ("tranche.cli.explain", "Explain why a request is waiting and what would help"),
        "release": ("tranche.cli.release", "Release a share or cancel a waiting request"),
        "events": ("tranche.cli.events", "List the events of this machine, newest last"),
        "doctor": ("tranche.cli.doctor", "Check this machine or a cluster for problems"),
        "extend": ("tranche.cli.extend", "Give a running command more time"),
        "cordon": ("tranche.cli.cordon:cordon", "Keep new requests off the given GPUs"),
        "uncordon": ("tranche.cli.cordon:uncordon", "Make cordoned GPUs available again"),
        "reserve": ("tranche.cli.reserve", "Reserve GPUs for users or for maintenance"),
        "policy": ("tranche.cli.policy", "Set how GPUs are shared, user quotas, and who goes first"),
        "report": ("tranche.cli.report", "Report users' GPU time"),
        "bundle": ("tranche.cli.bundle", "Write an archive for a bug report"),
        "version": ("tranche.cli.version", "Print the versions of Tranche, the driver and NVML"),
        "completion": ("tranche.cli.completion", "Print the completion script for bash, zsh or fish"),
    },
    "Layouts": {
        "layout": ("tranche.cli.layout", "Plan, apply, check and save the layouts of GPUs"),
        "profiles": ("tranche.cli.profiles", "List the MIG profiles of GPUs and boards"),
        "boot": ("tranche.cli.boot", "Partition GPUs into slices when the machine boots"),
    },
    "Jobs on a cluster": {
        "submit": ("tranche.cli.submit", "Run a command as a job on a Kubernetes cluster"),
        "job": ("tranche.cli.job", "List, inspect and delete submitted jobs"),
    },
    "Cluster operations": {
        "nodes": ("tranche.cli.nodes", "List the GPU nodes of a Kubernetes cluster"),
        "leave": ("tranche.cli.leave", "Remove the agents from a Kubernetes cluster"),
    },
    "Services": {
        "dashboard": ("tranche.cli.dashboard", "Serve a live page for this machine"),
        "cluster-dashboard": ("tranche.cli.cluster_dashboard", "Serve a live page for a Kubernetes cluster"),
        "metrics": ("tranche.cli.metrics", "Print the metrics of this machine for Prometheus"),
        "serve": ("tranche.cli.serve", "Let this machine's users run commands without root access"),
    },
    "Simulator": {
        "sim": ("tranche.cli.sim", "Create and control simulated machines"),
        "demo": ("tranche.cli.demo", "Compare whole GPUs with slices, on a simulated machine"),
        "replay": ("tranche.cli.replay", "Replay recorded decisions"),
    },
}
"""What `tranche --help` shows: each group with its commands, each with its module, its name there unless that is `command`,
and a line of help.
"""

_STARTED_BY_KUBERNETES = {
    "agent": ("tranche.cli.agent", "Run the agent of a Kubernetes node"),
    "controller": ("tranche.cli.controller", "Run the controller of a Kubernetes cluster"),
}
"""People do not type these, so neither help nor completion offers them."""

_OFFERED = {name: command for group in _GROUPS.values() for name, command in group.items()}
_COMMANDS = {**_OFFERED, **_STARTED_BY_KUBERNETES}
_LOWER = {
    **{name: f"job {name}" for name in ("attach", "delete", "describe", "exec", "list", "logs", "wait")},
    "quota": "policy quota",
}
"""Commands that a person may look for one level higher, such as those that kubectl has there."""


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called; help shows the one-line texts of the table."""

    command_class = TrancheCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            lower = _LOWER.get(args[0])
            meant = f"did you mean '{lower}'?" if lower else did_you_mean(args[0], _OFFERED)
            ctx.fail(f"No such command {args[0]!r}. {meant[:1].upper()}{meant[1:]}".rstrip())
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with simulator_errors():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=_OFFERED[name][1]) for name in sorted(_OFFERED)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(each for each in found if each.value.startswith(incomplete)), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _OFFERED))
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])


def _complete_machines(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from tranche.cli import completion  # only a shell needs it

    return completion.machines(context, parameter, incomplete)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tranche-gpu", prog_name="tranche")
@click.option(
    "--simulate",
    metavar="MACHINE",
    shell_complete=_complete_machines,
    help="Simulated machine to use. If you name a machine type, such as p4d.24xlarge, Tranche creates the machine on first "
    "use. Default: $TRANCHE_SIMULATE.",
)
@click.option(
    "--state-dir",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="State folder. Default: $TRANCHE_STATE_DIR, or /var/lib/tranche; each simulated machine has its own state folder.",
)
@click.pass_context
def root(context: click.Context, simulate: str | None, state_dir: str | None) -> None:
    """Share NVIDIA GPUs: partition them into slices and run each workload on the smallest share that fits."""
    context.obj = Settings(simulate=simulate or os.environ.get("TRANCHE_SIMULATE"), state_dir=state_dir)


def main(arguments: Sequence[str] | None = None, *, name: str = "tranche") -> None:
    """Run the command and exit: 0 on success, else the error's own code. `name` is what a person typed before it."""
    guarded = guard_streams()
    code = _exit_code(list(sys.argv[1:] if arguments is None else arguments), name)
    if guarded and threading.active_count() == 1:
        leave(code)
    sys.exit(code)


def _exit_code(arguments: list[str], name: str) -> int:
    try:
        try:
            code = root.main(args=arguments, prog_name=name, standalone_mode=False, color=_colour())
        except SystemExit as stop:
            code = stop.code
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ClosedOutputError:
        return 128 + signal.SIGPIPE
    except TrancheError as error:
        _report(error, as_json=_wants_json(arguments))
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        for line in error.format_message().splitlines():
            say(line)
        return UsageError.exit_code
    except click.ClickException as error:
        _report(_usage_error(error), as_json=_wants_json(arguments))
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130


def _report(error: TrancheError, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(error_document(error)), err=True)
        return
    fail(error.message, error.hint, _colour())


def _usage_error(error: click.ClickException) -> UsageError:
    """A mistake that click found, as one of ours."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see: {context.command_path} --help" if context is not None else ""
    text = error.format_message().removesuffix(".")
    return UsageError(f"{text[:1].lower()}{text[1:]}", hint=hint)


def _colour() -> bool | None:
    """False under NO_COLOR; None leaves it to whether the output is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for JSON, ignoring a child command's own arguments after `--`."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(
        word in ("-ojson", "--output=json") or (word == "json" and previous in ("-o", "--output"))
        for previous, word in zip(["", *own], own, strict=False)
    )
