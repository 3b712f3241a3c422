"""The options that the layout commands share, named and defaulted by the environment as mig-parted's are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tranche.cli import completion
from tranche.cli.duration import TIMEOUT_HELP, DurationType
from tranche.core.checkpoint import Checkpoint, parse_checkpoint
from tranche.core.errors import CheckpointInvalid, HooksInvalid, LayoutInvalid, PlanInvalid, UsageError
from tranche.core.hooks import Hook, parse_hooks
from tranche.core.layout import LayoutFile
from tranche.core.layout_format import parse_layouts
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.files.files import STANDARD_STREAM, read_document, told_of
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.steps.plan import Plan, plan_from_dict


def config_options(function: Any) -> Any:
    """`-f` and `-c`: which layout of which file."""
    for option in (
        click.option(
            "-c",
            "--selected-config",
            metavar="NAME",
            envvar="MIG_PARTED_SELECTED_CONFIG",
            shell_complete=completion.layouts,
            help="Layout to use; optional if the file has exactly one.",
        ),
        click.option(
            "-f",
            "--config-file",
            metavar="FILE",
            envvar="MIG_PARTED_CONFIG_FILE",
            help="Layout file, YAML or JSON; - for stdin. Default: layouts generated for this machine.",
        ),
    ):
        function = option(function)
    return function


def mode_only_option(function: Any) -> Any:
    """`-m`: MIG modes only."""
    return click.option(
        "-m",
        "--mode-only",
        is_flag=True,
        envvar="MIG_PARTED_MODE_CHANGE_ONLY",
        help="Change or check only MIG mode, not slices.",
    )(function)


def skip_reset_option(function: Any) -> Any:
    """`-s`: no reset."""
    return click.option(
        "-s",
        "--skip-reset",
        is_flag=True,
        envvar="MIG_PARTED_SKIP_RESET",
        help="Do not reset GPUs; a MIG mode change that needs a reset stays pending.",
    )(function)


def hook_options(function: Any) -> Any:
    """`-k` and `-d`: commands to run around the change, and whether to show what they say."""
    for option in (
        click.option(
            "-d", "--debug", is_flag=True, envvar="MIG_PARTED_DEBUG", help="Print the output of hooks on stderr."
        ),
        click.option(
            "-k",
            "--hooks-file",
            metavar="FILE",
            envvar="MIG_PARTED_HOOKS_FILE",
            help="File with commands to run before and after the change.",
        ),
    ):
        function = option(function)
    return function


def wait_options(function: Any) -> Any:
    """`--wait` and `--timeout`: patience with what is in use."""
    for option in (
        click.option("--timeout", type=DurationType(), metavar="TIME", help=f"{TIMEOUT_HELP} Needs --wait."),
        click.option(
            "--wait", is_flag=True, help="Wait while something in use blocks the change. Default: fail at once."
        ),
    ):
        function = option(function)
    return function


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


def read_hooks(path: str) -> Mapping[str, tuple[Hook, ...]]:
    """The hooks of the file."""
    document = read_document(path, HooksInvalid)
    with told_of(path):
        return parse_hooks(document)


def hook_runner(path: str | None, environment: dict[str, object], *, debug: bool) -> HookRunner:
    """The hooks of the file, with the command's options as mig-parted hands them to hooks; no hooks without a file."""
    hooks = read_hooks(path) if path else {}
    return HookRunner(hooks, {name: _go_text(value) for name, value in environment.items()}, debug)


def patience(wait: bool, timeout: float | None) -> WaitLimit:
    """The patience that the options ask for."""
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait", hint="for example: --wait --timeout 600")
    return WaitLimit(wait, timeout)


def required_checkpoint_file(path: str | None) -> str:
    """The checkpoint file's name."""
    if not path:
        raise UsageError("missing required flags 'checkpoint-file'", hint="name it with -f FILE")
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
