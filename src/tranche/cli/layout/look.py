"""`tranche layout assert`, `export`, `generate` and `checkpoint`: the commands that only look."""

from __future__ import annotations

import json

import click

from tranche.cli.layout.options import config_options, mode_only_option, read_layouts, required_checkpoint_file
from tranche.cli.output import print_json, say, warn
from tranche.cli.runtime import Settings, TrancheCommand, open_driver, output_option
from tranche.core.checkpoint import checkpoint_to_data, take_checkpoint
from tranche.core.errors import LayoutMismatch
from tranche.core.layout import LayoutFile
from tranche.core.layout_format import layouts_to_data
from tranche.core.state import NodeState
from tranche.node.files.files import STANDARD_STREAM, write_text, yaml_text
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.present_layout import export_layout, find_mismatches

_format = click.option(
    "-o",
    "--output-format",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    envvar="MIG_PARTED_OUTPUT_FORMAT",
    help="Format of the layout file.",
)


@click.command("assert", cls=TrancheCommand)
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

    The check ignores GPUs that the layout does not name. The exit code is 50 if a GPU differs.
    """
    if valid_config:
        file = read_layouts(config_file) if config_file else generate_layouts(_observe(settings))
        layout = file.select(selected_config)
        if output == "json":
            print_json("LayoutAssertion", layout=layout.name, valid=True)
        say("Selected MIG configuration is valid")
        return
    given = read_layouts(config_file).select(selected_config) if config_file else None
    node = _observe(settings)
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
            hint="see what would change with: tranche layout plan",
        )
    what = "MIG mode settings from configuration" if mode_only else "MIG configuration"
    say(f"Selected {what} currently applied")


@click.command(cls=TrancheCommand)
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
    node = _observe(settings)
    for gpu in node:
        if gpu.lost:
            warn(f"{gpu.label} is lost and left out")
        for instance in gpu.instances:
            if not instance.compute_instances:
                warn(
                    f"{gpu.label}: {instance.profile} at {instance.placement} has no compute instance, "
                    "which a layout cannot express"
                )
    _write(export_layout(node, config_label), STANDARD_STREAM, output_format)


@click.command(cls=TrancheCommand)
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
    """Print a layout file for the GPUs of this machine.

    The file contains all-disabled, all-enabled, all-balanced if the GPUs allow it, and all-PROFILE for every profile.
    """
    _write(generate_layouts(_observe(settings)), output_file or STANDARD_STREAM, output_format)


@click.command(cls=TrancheCommand)
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

    The file contains every instance with its placement. `tranche layout restore` restores them.
    """
    path = required_checkpoint_file(checkpoint_file)
    data = checkpoint_to_data(take_checkpoint(_observe(settings)))
    write_text(path, json.dumps(data, separators=(",", ":")))
    say("MIG configuration checkpointed successfully")


def _observe(settings: Settings) -> NodeState:
    with open_driver(settings) as driver:
        return driver.observe()


def _write(file: LayoutFile, path: str, output_format: str) -> None:
    data = layouts_to_data(file)
    write_text(path, json.dumps(data, indent=2) + "\n" if output_format == "json" else yaml_text(data))
