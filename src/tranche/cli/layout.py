"""`tranche layout`: declared layouts, in the v1 format that mig-parted reads."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click

from tranche.cli.layout_options import (
    change_options,
    config_options,
    hook_runner,
    mode_only_option,
    patience,
    read_checkpoint,
    read_layouts,
    read_plan,
    required_checkpoint_file,
    skip_reset_option,
)
from tranche.cli.output import print_json, print_table, say, warn
from tranche.cli.runtime import Settings, TrancheGroup, look_at, observe, open_host, output_option
from tranche.core.allocation import NodeView
from tranche.core.checkpoint import checkpoint_to_data, take_checkpoint
from tranche.core.errors import GpuBusy, LayoutMismatch, UsageError
from tranche.core.layout import Layout, LayoutFile
from tranche.core.layout_format import layouts_to_data
from tranche.core.state import GpuState, NodeState
from tranche.documents.layout_change import counted, decision_data, sum_up
from tranche.node.change import Change
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.files.files import STANDARD_STREAM, write_text, yaml_text
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import WaitInterrupted, heeding_signals
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.present_layout import export_layout, find_mismatches
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.layouts.restore import plan_restore
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan, plan_to_dict, with_daemons

Changed = TypeVar("Changed")


@click.group("layout", cls=TrancheGroup)
def command() -> None:
    """Plan, apply, check and save the layouts of GPUs.

    A layout declares which GPUs are in MIG mode and how many slices of each profile they have. A layout file uses the
    v1 format of mig-parted. Without a file, the commands use the layouts that Tranche generates for this machine (see
    tranche layout generate).

    \b
    $ tranche layout apply -c all-balanced
    $ tranche layout plan -f layouts.yaml -c nightly
    $ tranche layout assert -f layouts.yaml -c nightly
    """


Decide = Callable[[NodeView], LayoutDecision]

_checkpoint_file = click.option(
    "-f",
    "--checkpoint-file",
    metavar="FILE",
    envvar="MIG_PARTED_CHECKPOINT_FILE",
    help="Checkpoint file to read; - for stdin.",
)


@command.command()
@config_options
@mode_only_option
@skip_reset_option
@output_option()
@click.pass_obj
def plan(
    settings: Settings,
    config_file: str | None,
    selected_config: str | None,
    mode_only: bool,
    skip_reset: bool,
    output: str,
) -> None:
    """Print the steps that a layout needs, and change nothing.

    With -o json, the output is a plan for `tranche layout apply --plan`. Tranche refuses to apply this plan if the GPUs
    have changed in the meantime.
    """
    layout = _layout_of_file(config_file, selected_config)
    with open_host(settings, reading=True) as host:
        layout = layout or generate_layouts(host.driver.observe()).select(selected_config)
        _show(host, _towards(layout, mode_only=mode_only, skip_reset=skip_reset), output)


@command.command()
@config_options
@change_options
@click.option("--plan", "plan_file", metavar="FILE", help="Apply a saved plan instead of a layout; - for stdin.")
@output_option()
@click.pass_obj
def apply(
    settings: Settings, /, config_file: str | None, selected_config: str | None, plan_file: str | None, **options: Any
) -> None:
    """Apply a layout to the GPUs.

    The command changes as few instances as possible: correct instances remain and keep their UUIDs. It destroys idle
    instances that are not in the layout, even if another tool created them. It resets a GPU only if a MIG mode change
    requires a reset.

    Tranche never changes an instance in use. If an instance in use blocks the layout, the command changes nothing and
    shows what is using that instance. If a step fails, the command undoes the change.
    """
    how = _ChangeOptions(**options)
    environment: dict[str, object] = {
        "MIG_PARTED_CONFIG_FILE": config_file,
        "MIG_PARTED_SELECTED_CONFIG": selected_config,
        "MIG_PARTED_HOOKS_FILE": how.hooks_file,
        "MIG_PARTED_SKIP_RESET": how.skip_reset,
        "MIG_PARTED_MODE_CHANGE_ONLY": how.mode_only,
    }
    saved, layout = None, None
    if plan_file is not None:
        # The environment's defaults for a layout do not stand against a plan; options do.
        context = click.get_current_context()
        for name in ("config_file", "selected_config", "mode_only", "skip_reset"):
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise UsageError(f"--plan and --{name.replace('_', '-')} cannot be combined")
        saved = read_plan(plan_file)
    else:
        layout = _layout_of_file(config_file, selected_config)
    runner = hook_runner(how.hooks_file, environment, debug=how.debug)
    wanted = patience(how.wait, how.timeout)
    with open_host(settings, reading=how.dry_run) as host:
        if saved is not None:
            _apply_saved(host, saved, runner, wanted, how)
        else:
            layout = layout or generate_layouts(host.driver.observe()).select(selected_config)
            decide = _towards(layout, mode_only=how.mode_only, skip_reset=how.skip_reset)
            _carry_out(host, decide, runner, wanted, how, "LayoutApplied")
    if not how.dry_run:
        say("MIG configuration applied successfully")


@command.command()
@_checkpoint_file
@change_options
@output_option()
@click.pass_obj
def restore(settings: Settings, /, checkpoint_file: str | None, **options: Any) -> None:
    """Restore the MIG modes and instances from a checkpoint.

    Instances at their recorded placements remain unchanged. Like tranche layout apply, the command destroys other
    instances and creates missing ones.
    """
    path, how = required_checkpoint_file(checkpoint_file), _ChangeOptions(**options)
    environment: dict[str, object] = {
        "MIG_PARTED_CHECKPOINT_FILE": checkpoint_file,
        "MIG_PARTED_HOOKS_FILE": how.hooks_file,
        "MIG_PARTED_MODE_CHANGE_ONLY": how.mode_only,
    }
    before = read_checkpoint(path)
    runner = hook_runner(how.hooks_file, environment, debug=how.debug)
    wanted = patience(how.wait, how.timeout)
    decide = partial(plan_restore, checkpoint=before, mode_only=how.mode_only, skip_reset=how.skip_reset)
    with open_host(settings, reading=how.dry_run) as host:
        _carry_out(host, decide, runner, wanted, how, "LayoutRestored")
    if not how.dry_run:
        say("MIG configuration restored successfully")


@dataclass(frozen=True, slots=True)
class _ChangeOptions:
    """The values of `change_options`, and the output format."""

    hooks_file: str | None
    debug: bool
    mode_only: bool
    skip_reset: bool
    wait: bool
    timeout: float | None
    dry_run: bool
    output: str


def _layout_of_file(path: str | None, selected: str | None) -> Layout | None:
    """The selected layout of the file, so that a mistake in it is told before anything else; None without a file."""
    return read_layouts(path).select(selected) if path else None


def _towards(layout: Layout, *, mode_only: bool, skip_reset: bool) -> Decide:
    return partial(plan_layout, layout=layout, mode_only=mode_only, skip_reset=skip_reset)


def _show(host: Host, decide: Decide, output: str) -> None:
    view = look_at(host)
    decision = decide(view)
    shown = with_daemons(decision.plan, (), view)
    _warn_of(decision)
    if output == "json":
        decision.refuse_if_blocked()
        print_json("Plan", **{k: v for k, v in plan_to_dict(shown).items() if k not in ("apiVersion", "kind")})
    elif shown.steps or not (decision.lost or decision.blockers):
        _print_plan(shown, view.node)
    decision.refuse_if_blocked()
    decision.refuse_if_lost("the plan covers the other GPUs")


def _carry_out(
    host: Host, decide: Decide, hooks: HookRunner, wanted: WaitLimit, how: _ChangeOptions, done: str
) -> None:
    """Make the change, or in a dry run show it. `done` is the kind of the document that says what was done."""
    if how.dry_run:
        _show(host, decide, how.output)
        return
    warned = False

    def decide_and_warn(view: NodeView) -> LayoutDecision:
        nonlocal warned
        decision = decide(view)
        if not warned:
            _warn_of(decision)
        warned = True
        return decision

    decision = _undone_by_signals(
        host, hooks, wanted, lambda change: change.to_layout(decide_and_warn, mode_only=how.mode_only)
    )
    say(sum_up(decision))
    if how.output == "json":
        print_json(done, **decision_data(decision))
    decision.refuse_if_lost()


def _apply_saved(host: Host, saved: Plan, hooks: HookRunner, wanted: WaitLimit, how: _ChangeOptions) -> None:
    if how.dry_run:
        view = look_at(host)
        _print_plan(with_daemons(saved, (), view), view.node)
        return
    _undone_by_signals(host, hooks, wanted, lambda change: change.as_saved(saved))
    if how.output == "json":
        print_json(
            "PlanApplied", purpose=saved.purpose, gpus=list(saved.gpu_uuids), steps=[str(s) for s in saved.steps]
        )


def _undone_by_signals(
    host: Host, hooks: HookRunner, wanted: WaitLimit, carry_out: Callable[[Change], Changed]
) -> Changed:
    """Carry out a change. A signal that tells this process to end undoes what is not yet complete, and ends it then."""
    narrator = ProgressReporter()
    change = Change(
        host,
        hooks,
        wanted,
        progress=narrator.step,
        waiting=narrator.waiting,
        exit_hook_failed=lambda error: warn(error.message),
        sleep=host.sleep,
    )
    try:
        with heeding_signals():
            return carry_out(change)
    except WaitInterrupted as stop:
        said = "the change has been undone" if narrator.begun else "nothing was changed"
        if stop.left:
            said = f"undoing the change failed, so parts of it remain: {stop.left}"
        say(f"interrupted: {'the change had already been made' if change.made else said}")
        sys.exit(stop.exit_code)


def _warn_of(decision: LayoutDecision) -> None:
    for warning in decision.warnings:
        warn(warning)


_QUIET_SECONDS = 1.0


def _print_plan(plan: Plan, node: NodeState) -> None:
    """The steps as a table on stdout, and their sum on stderr."""
    labels = {gpu.uuid: gpu.index for gpu in node}
    if plan.empty:
        say("nothing to do: the GPUs already match the layout")
        return
    print_table(("GPU", "STEP"), [(labels.get(step.gpu_uuid, step.gpu_uuid), step) for step in plan.steps])
    say(f"{counted(len(plan.steps), 'step')} on {counted(len(plan.gpu_uuids), 'GPU')}")


class ProgressReporter:
    """Says on stderr what is going on, once it takes longer than a second."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._steps = 0
        self._waiting_for = ""
        self._lock = threading.Lock()

    @property
    def begun(self) -> bool:
        """Whether any step has begun."""
        return self._steps > 0

    def step(self, gpu: GpuState, step: Step) -> None:
        """A step begins; called from several threads."""
        with self._lock:
            self._steps += 1
            if time.monotonic() - self._begun > _QUIET_SECONDS:
                say(f"step {self._steps}: {gpu.label}: {step}")

    def waiting(self, reason: GpuBusy) -> None:
        """The change waits; said again only when the reason changes."""
        if reason.message != self._waiting_for:
            say(f"waiting: {reason.message}")
        self._waiting_for = reason.message


_format = click.option(
    "-o",
    "--output-format",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    envvar="MIG_PARTED_OUTPUT_FORMAT",
    help="Format of the layout file.",
)


@command.command("assert")
@config_options
@mode_only_option
@click.option(
    "-a",
    "--valid-config",
    is_flag=True,
    envvar="MIG_PARTED_VALID_CONFIG",
    help="Check only that the file is valid and contains the layout.",
)
@output_option()
@click.pass_obj
def assert_layout(
    settings: Settings,
    config_file: str | None,
    selected_config: str | None,
    mode_only: bool,
    valid_config: bool,
    output: str,
) -> None:
    """Check whether the GPUs match a layout.

    The check ignores GPUs that are not in the layout. The exit code is 50 if a GPU differs.
    """
    if valid_config:
        file = read_layouts(config_file) if config_file else generate_layouts(observe(settings))
        layout = file.select(selected_config)
        if output == "json":
            print_json("LayoutAssertion", layout=layout.name, valid=True)
        say("Selected MIG configuration is valid")
        return
    given = read_layouts(config_file).select(selected_config) if config_file else None
    node = observe(settings)
    layout = given or generate_layouts(node).select(selected_config)
    for warning in layout.warnings(node):
        warn(warning)
    mismatches = find_mismatches(node, layout, mode_only=mode_only)
    if output == "json":
        found = [{"index": each.gpu.index, "uuid": each.gpu.uuid, "difference": each.text} for each in mismatches]
        print_json("LayoutAssertion", layout=layout.name, applied=not found, mismatches=found)
    if mismatches:
        raise LayoutMismatch(
            "Assertion failure: selected configuration not currently applied: " + "; ".join(map(str, mismatches)),
            hint="to see what would change, run: "
            + shlex.join(
                ["tranche", "layout", "plan", *(["-f", config_file] if config_file else []), "-c", layout.name]
            ),
        )
    what = "MIG mode settings from configuration" if mode_only else "MIG configuration"
    say(f"Selected {what} currently applied")


@command.command()
@click.option(
    "-l",
    "--config-label",
    metavar="NAME",
    default="current",
    show_default=True,
    envvar="MIG_PARTED_CONFIG_LABEL",
    help="Name of the exported layout.",
)
@_format
@click.pass_obj
def export(settings: Settings, config_label: str, output_format: str) -> None:
    """Print the current state of the GPUs as a layout."""
    node = observe(settings)
    for gpu in node:
        if gpu.lost:
            warn(f"{gpu.label} is lost, so the layout omits it")
        for instance in gpu.instances:
            if not instance.compute_instances:
                warn(
                    f"{gpu.label}: {instance.profile} at {instance.placement} has no compute instance, "
                    "which a layout cannot express"
                )
    _write(export_layout(node, config_label), STANDARD_STREAM, output_format)


@command.command()
@click.option(
    "-f",
    "--output-file",
    metavar="FILE",
    default=STANDARD_STREAM,
    envvar="MIG_PARTED_OUTPUT_FILE",
    help="File to write. Default: stdout.",
)
@_format
@click.pass_obj
def generate(settings: Settings, output_file: str, output_format: str) -> None:
    """Print a layout file for the GPUs on this machine.

    The file contains the layouts all-disabled, all-enabled, all-PROFILE for every profile and, if the GPUs allow it,
    all-balanced.
    """
    _write(generate_layouts(observe(settings)), output_file or STANDARD_STREAM, output_format)


@command.command()
@click.option(
    "-f",
    "--checkpoint-file",
    metavar="FILE",
    envvar="MIG_PARTED_CHECKPOINT_FILE",
    help="Checkpoint file to write; - for stdout.",
)
@click.pass_obj
def checkpoint(settings: Settings, checkpoint_file: str | None) -> None:
    """Save MIG modes and instances to a file.

    The file lists every instance with its placement, for `tranche layout restore`.
    """
    path = required_checkpoint_file(checkpoint_file)
    data = checkpoint_to_data(take_checkpoint(observe(settings)))
    write_text(path, json.dumps(data, separators=(",", ":")))
    say("MIG configuration checkpointed successfully")


def _write(file: LayoutFile, path: str, output_format: str) -> None:
    data = layouts_to_data(file)
    write_text(path, json.dumps(data, indent=2) + "\n" if output_format == "json" else yaml_text(data))
