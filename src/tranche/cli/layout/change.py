"""`tranche layout plan`, `apply` and `restore`: the commands that change GPUs, or say what they would change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import click

from tranche.cli.layout.options import (
    config_options,
    hook_options,
    hook_runner,
    mode_only_option,
    patience,
    read_checkpoint,
    read_layouts,
    read_plan,
    required_checkpoint_file,
    skip_reset_option,
    wait_options,
)
from tranche.cli.looking import look_at
from tranche.cli.output import print_json, print_table, say, warn
from tranche.cli.runtime import Settings, TrancheCommand, open_host, output_option
from tranche.core.allocation import NodeView
from tranche.core.errors import GpuBusy, UsageError
from tranche.core.layout import Layout
from tranche.core.state import GpuState, NodeState
from tranche.documents.layout_change import counted, decision_data, sum_up
from tranche.node.change import Change
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.layouts.restore import plan_restore
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan, plan_to_dict, with_daemons

Decide = Callable[[NodeView], LayoutDecision]

_checkpoint_file = click.option(
    "-f",
    "--checkpoint-file",
    metavar="FILE",
    envvar="MIG_PARTED_CHECKPOINT_FILE",
    help="Checkpoint file to read; - for stdin.",
)
_dry_run = click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")


@click.command(cls=TrancheCommand)
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
    """Print the steps to a layout and change nothing.

    With -o json, the output is a plan for `tranche layout apply --plan`. Tranche refuses to apply it if the GPUs have
    changed in the meantime.
    """
    layout = _layout_of_file(config_file, selected_config)
    with open_host(settings, reading=True) as host:
        layout = layout or generate_layouts(host.driver.observe()).select(selected_config)
        _show(host, _towards(layout, mode_only=mode_only, skip_reset=skip_reset), output)


@click.command(cls=TrancheCommand)
@config_options
@hook_options
@mode_only_option
@skip_reset_option
@wait_options
@_dry_run
@click.option("--plan", "plan_file", metavar="FILE", help="Apply a saved plan instead of a layout; - for stdin.")
@output_option()
@click.pass_obj
def apply(
    settings: Settings,
    config_file: str | None,
    selected_config: str | None,
    hooks_file: str | None,
    mode_only: bool,
    skip_reset: bool,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
    plan_file: str | None,
    debug: bool,
    output: str,
) -> None:
    """Apply a layout to the GPUs.

    The change touches as few instances as possible: correct instances stay and keep their UUIDs. It destroys idle
    instances that are not in the layout, including those of other tools. It resets a GPU only if a change of MIG mode
    needs a reset.

    Tranche never changes an instance in use. If one blocks the layout, the command changes nothing and names the users.
    If a step fails, it undoes the change.
    """
    environment: dict[str, object] = {
        "MIG_PARTED_CONFIG_FILE": config_file,
        "MIG_PARTED_SELECTED_CONFIG": selected_config,
        "MIG_PARTED_HOOKS_FILE": hooks_file,
        "MIG_PARTED_SKIP_RESET": skip_reset,
        "MIG_PARTED_MODE_CHANGE_ONLY": mode_only,
    }
    saved, layout = None, None
    if plan_file is not None:
        # The environment's defaults for a layout do not stand against a plan; options do.
        context = click.get_current_context()
        for name in ("config_file", "selected_config", "mode_only", "skip_reset"):
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise UsageError(f"--plan and --{name.replace('_', '-')} exclude each other")
        saved = read_plan(plan_file)
    else:
        layout = _layout_of_file(config_file, selected_config)
    runner = hook_runner(hooks_file, environment, debug=debug)
    wanted = patience(wait, timeout)
    with open_host(settings, reading=dry_run) as host:
        if saved is not None:
            _apply_saved(host, saved, runner, wanted, dry_run=dry_run, output=output)
        else:
            layout = layout or generate_layouts(host.driver.observe()).select(selected_config)
            decide = _towards(layout, mode_only=mode_only, skip_reset=skip_reset)
            if dry_run:
                _show(host, decide, output)
            else:
                _carry_out(host, decide, runner, wanted, mode_only=mode_only, output=output, done="LayoutApplied")
    if not dry_run:
        say("MIG configuration applied successfully")


@click.command(cls=TrancheCommand)
@_checkpoint_file
@hook_options
@mode_only_option
@skip_reset_option
@wait_options
@_dry_run
@output_option()
@click.pass_obj
def restore(
    settings: Settings,
    checkpoint_file: str | None,
    hooks_file: str | None,
    mode_only: bool,
    skip_reset: bool,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
    debug: bool,
    output: str,
) -> None:
    """Restore the MIG modes and instances of a checkpoint.

    Instances at their recorded place stay. Tranche destroys and creates the others as apply does.
    """
    path = required_checkpoint_file(checkpoint_file)
    environment: dict[str, object] = {
        "MIG_PARTED_CHECKPOINT_FILE": checkpoint_file,
        "MIG_PARTED_HOOKS_FILE": hooks_file,
        "MIG_PARTED_MODE_CHANGE_ONLY": mode_only,
    }
    checkpoint = read_checkpoint(path)
    runner = hook_runner(hooks_file, environment, debug=debug)
    wanted = patience(wait, timeout)

    def decide(view: NodeView) -> LayoutDecision:
        return plan_restore(view, checkpoint, mode_only=mode_only, skip_reset=skip_reset)

    with open_host(settings, reading=dry_run) as host:
        if dry_run:
            _show(host, decide, output)
        else:
            _carry_out(host, decide, runner, wanted, mode_only=mode_only, output=output, done="LayoutRestored")
    if not dry_run:
        say("MIG configuration restored successfully")


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
    host: Host, decide: Decide, hooks: HookRunner, wanted: WaitLimit, *, mode_only: bool, output: str, done: str
) -> None:
    """`done` is the kind of the document that says what was done."""
    warned = False

    def decide_and_warn(view: NodeView) -> LayoutDecision:
        nonlocal warned
        decision = decide(view)
        if not warned:
            _warn_of(decision)
        warned = True
        return decision

    change = _change(host, hooks, wanted)
    decision = change.to_layout(decide_and_warn, mode_only=mode_only)
    say(sum_up(decision))
    if output == "json":
        print_json(done, **decision_data(decision))
    decision.refuse_if_lost()


def _apply_saved(host: Host, saved: Plan, hooks: HookRunner, wanted: WaitLimit, *, dry_run: bool, output: str) -> None:
    if dry_run:
        view = look_at(host)
        _print_plan(with_daemons(saved, (), view), view.node)
        return
    _change(host, hooks, wanted).as_saved(saved)
    if output == "json":
        print_json(
            "PlanApplied", purpose=saved.purpose, gpus=list(saved.gpu_uuids), steps=[str(s) for s in saved.steps]
        )


def _change(host: Host, hooks: HookRunner, wanted: WaitLimit) -> Change:
    narrator = ProgressReporter()
    return Change(
        host,
        hooks,
        wanted,
        progress=narrator.step,
        waiting=narrator.waiting,
        exit_hook_failed=lambda error: warn(error.message),
    )


def _warn_of(decision: LayoutDecision) -> None:
    for warning in decision.warnings:
        warn(warning)


_QUIET_SECONDS = 1.0


def _print_plan(plan: Plan, node: NodeState) -> None:
    """The steps as a table on stdout, and their sum on stderr."""
    labels = {gpu.uuid: gpu.index for gpu in node}
    if plan.empty:
        say("nothing to do: the GPUs are as declared")
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
