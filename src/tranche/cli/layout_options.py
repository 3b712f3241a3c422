"""The options that the layout commands share, named and defaulted by the environment as mig-parted's are."""

from __future__ import annotations

from collections.abc import Mapping

import click

from tranche.cli import completion
from tranche.cli.options import TIMEOUT_HELP, DurationType, together
from tranche.core.checkpoint import Checkpoint, parse_checkpoint
from tranche.core.errors import CheckpointInvalid, HooksInvalid, LayoutInvalid, PlanInvalid, UsageError
from tranche.core.hooks import Hook, parse_hooks
from tranche.core.layout import LayoutFile
from tranche.core.layout_format import parse_layouts
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.files.files import STANDARD_STREAM, read_document, told_of
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.steps.plan import Plan, plan_from_dict

config_options = together(
    click.option(
        "-f",
        "--config-file",
        metavar="FILE",
        envvar="MIG_PARTED_CONFIG_FILE",
        help="Layout file, YAML or JSON; - for stdin. Default: layouts generated for this machine.",
    ),
    click.option(
        "-c",
        "--selected-config",
        metavar="NAME",
        envvar="MIG_PARTED_SELECTED_CONFIG",
        shell_complete=completion.layouts,
        help="Layout to use; optional if the file has exactly one.",
    ),
)
skip_reset_option = click.option(
    "-s",
    "--skip-reset",
    is_flag=True,
    envvar="MIG_PARTED_SKIP_RESET",
    help="Do not reset GPUs; a MIG mode change that needs a reset remains pending.",
)
mode_only_option = click.option(
    "-m",
    "--mode-only",
    is_flag=True,
    envvar="MIG_PARTED_MODE_CHANGE_ONLY",
    help="Change or check only MIG mode, not slices.",
)
change_options = together(
    click.option(
        "-k",
        "--hooks-file",
        metavar="FILE",
        envvar="MIG_PARTED_HOOKS_FILE",
        help="File with commands to run before and after the change.",
    ),
    click.option("-d", "--debug", is_flag=True, envvar="MIG_PARTED_DEBUG", help="Print the output of hooks to stderr."),
    mode_only_option,
    skip_reset_option,
    click.option(
        "--wait", is_flag=True, help="Wait while something in use blocks the change. Default: fail immediately."
    ),
    click.option("--timeout", type=DurationType(), metavar="TIME", help=f"{TIMEOUT_HELP} Needs --wait."),
    click.option("--dry-run", is_flag=True, help="Print the plan and change nothing."),
)
"""The options of commands that change GPUs: hooks around the change, MIG modes only, no reset, and patience."""


def read_layouts(path: str) -> LayoutFile:
    """The layouts of the file."""
    name = "stdin" if path == STANDARD_STREAM else path
    document = read_document(path, LayoutInvalid)
    with told_of(path):
        return parse_layouts(document, source=name)


def read_plan(path: str) -> Plan:
    """The saved plan."""
    document = read_document(path, PlanInvalid)
    with told_of(path):
        return plan_from_dict(document)


def hook_runner(path: str | None, environment: dict[str, object], *, debug: bool) -> HookRunner:
    """The hooks of the file, with the command's options as mig-parted hands them to hooks; no hooks without a file."""
    hooks: Mapping[str, tuple[Hook, ...]] = {}
    if path:
        document = read_document(path, HooksInvalid)
        with told_of(path):
            hooks = parse_hooks(document)
    return HookRunner(hooks, {name: _go_text(value) for name, value in environment.items()}, debug)


def patience(wait: bool, timeout: float | None) -> WaitLimit:
    """The patience that the options ask for."""
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait", hint="for example: --wait --timeout 600")
    return WaitLimit(wait, timeout)


def required_checkpoint_file(path: str | None) -> str:
    """The checkpoint file's name."""
    if not path:
        raise UsageError("missing required flags 'checkpoint-file'", hint="give the file with -f FILE")
    return path


def read_checkpoint(path: str) -> Checkpoint:
    """The checkpoint of the file."""
    document = read_document(path, CheckpointInvalid)
    with told_of(path):
        return parse_checkpoint(document)


def _go_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
