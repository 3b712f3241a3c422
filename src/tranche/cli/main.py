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

from tranche.cli import streams
from tranche.cli.output import fail
from tranche.cli.settings import Settings, TrancheCommand
from tranche.core.errors import TrancheError, UsageError
from tranche.core.spelling import did_you_mean
from tranche.documents.envelope import error_document
from tranche.hardware.simulator_errors import simulator_errors

_COMMANDS: dict[str, tuple[str, str]] = {
    "agent": ("tranche.cli.agent", "Serve this node of a Kubernetes cluster"),
    "attach": ("tranche.cli.jobs.attach", "A terminal for a running job of a cluster"),
    "boot": ("tranche.cli.boot", "Cut the GPUs when the machine boots"),
    "bundle": ("tranche.cli.bundle", "One archive for whoever looks into a fault"),
    "cluster-dashboard": ("tranche.cli.cluster_dashboard", "A Kubernetes cluster as a live page for its people"),
    "completion": ("tranche.cli.shell_completion", "The script for completion in bash, zsh or fish"),
    "controller": ("tranche.cli.controller", "Serve a Kubernetes cluster: annotations of pods become claims"),
    "cordon": ("tranche.cli.cordon", "Give nothing more of a GPU away"),
    "dashboard": ("tranche.cli.dashboard", "The machine as a live page in your browser"),
    "delete": ("tranche.cli.jobs.delete", "Delete jobs of a cluster, with their claims"),
    "demo": ("tranche.cli.demo", "Show what slices are for, on a simulated machine"),
    "describe": ("tranche.cli.jobs.describe", "A cluster's job, its pods, and why they wait"),
    "doctor": ("tranche.cli.doctor", "Check driver, MIG, permissions, state folder and catalogue"),
    "events": ("tranche.cli.events", "What was allocated, cut and released, newest last"),
    "exec": ("tranche.cli.jobs.execute", "A further command in the share of a cluster's job"),
    "explain": ("tranche.cli.explain", "Why a request waits, and what would help"),
    "gpus": ("tranche.cli.gpus", "The GPUs, their slices and what is free"),
    "layout": ("tranche.cli.layout", "Declared layouts: plan, apply, assert, export, generate, checkpoint, restore"),
    "leave": ("tranche.cli.leave", "Take the agents off a Kubernetes cluster"),
    "list": ("tranche.cli.jobs.listing", "The jobs that were submitted to a cluster"),
    "logs": ("tranche.cli.jobs.logs", "What a cluster's job prints"),
    "metrics": ("tranche.cli.metrics", "What can be measured of this machine, for Prometheus"),
    "nodes": ("tranche.cli.nodes", "A cluster's nodes with GPUs, and what is left of them"),
    "policy": ("tranche.cli.policy", "How GPUs may be shared: the administrator's word"),
    "profiles": ("tranche.cli.profiles", "What a GPU can be cut into, and what is free now"),
    "ps": ("tranche.cli.ps", "Who holds which share, and who waits"),
    "release": ("tranche.cli.release", "Take a share back"),
    "replay": ("tranche.cli.replay", "Recorded decisions, made again"),
    "run": ("tranche.cli.run", "Run a command in the smallest share that fits"),
    "sim": ("tranche.cli.sim", "Simulated machines"),
    "submit": ("tranche.cli.jobs.submit", "Run a command as a job on a Kubernetes cluster"),
    "top": ("tranche.cli.top", "Live view of GPUs, slices and shares"),
    "uncordon": ("tranche.cli.uncordon", "Give a GPU away again that was cordoned"),
    "version": ("tranche.cli.version", "The versions of Tranche, of what it stands on, and of the driver"),
    "wait": ("tranche.cli.jobs.wait", "Wait until a cluster's job runs, or has ended"),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; help shows the one-line texts of the table."""

    command_class = TrancheCommand

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: D102
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: D102
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # noqa: D102
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            meant = did_you_mean(args[0], _COMMANDS)
            ctx.fail(f"No such command {args[0]!r}. {meant[:1].upper()}{meant[1:]}".rstrip())
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: D102
        with simulator_errors():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:  # noqa: D102
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=_COMMANDS[name][1]) for name in sorted(_COMMANDS)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(each for each in found if each.value.startswith(incomplete)), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: D102
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])


def _complete_machines(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from tranche.cli import completion  # needed by nobody but a shell

    return completion.machines(context, parameter, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tranche", prog_name="tranche")
@click.option(
    "--simulate",
    metavar="MACHINE",
    shell_complete=_complete_machines,
    help="Use a simulated machine, made at first use (p4d.24xlarge, ...).",
)
@click.option("--state-dir", metavar="DIR", type=click.Path(file_okay=False), help="Where the ledger is kept.")
@click.pass_context
def root(context: click.Context, simulate: str | None, state_dir: str | None) -> None:
    """Share NVIDIA GPUs: cut them into slices, and run work in the smallest slice that fits."""
    context.obj = Settings(simulate=simulate or os.environ.get("TRANCHE_SIMULATE"), state_dir=state_dir)


def main(arguments: Sequence[str] | None = None, *, name: str = "tranche") -> None:
    """Run the command and exit: 0 on success, else the error's own code. `name` is what a person typed before it."""
    guarded = streams.guard()
    code = _exit_code(list(sys.argv[1:] if arguments is None else arguments), name)
    if guarded and threading.active_count() == 1:
        streams.leave(code)
    sys.exit(code)


def _exit_code(arguments: list[str], name: str) -> int:
    try:
        try:
            code = root.main(args=arguments, prog_name=name, standalone_mode=False, color=_colour())
        except SystemExit as stop:
            code = stop.code
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except streams.ReaderGone:
        return 128 + signal.SIGPIPE
    except TrancheError as error:
        _report(error, as_json=_wants_json(arguments))
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
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
    """Whether the command line asks for JSON; a child command's own arguments, after `--`, do not count."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(
        word in ("-ojson", "--output=json") or (word == "json" and previous in ("-o", "--output"))
        for previous, word in zip(["", *own], own, strict=False)
    )
