"""What commands that install a systemd unit share: their options, the command in the unit, and words to systemd."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click

from tranche.boot.unit import InstalledUnit
from tranche.cli.output import say, warn
from tranche.cli.runtime import Settings
from tranche.cli.service_options import absolute_path, others_may_write
from tranche.core.errors import UsageError

_SYSTEMD = Path("/run/systemd/system")

unit_root_option = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Root folder of an image; / is this machine.",
)
unit_program_option = click.option(
    "--program",
    metavar="PATH",
    help="Path of the program tranche on the machine that boots. Default: path of this command.",
)


def program_of_unit(given: str | None) -> str:
    """The path of tranche for the unit: the one given, or this command's. UsageError if that is unknown."""
    if given:
        return absolute_path(given, "--program")
    program = Path(sys.argv[0])
    if not program.is_file() or not os.access(program, os.X_OK):
        raise UsageError("cannot find the path of this command", hint="give the path with --program PATH")
    return str(program.absolute())


def options_of_unit(settings: Settings) -> list[str]:
    """The options that precede the command in the unit."""
    options = ["--simulate", settings.simulate] if settings.simulate else []
    if settings.state_dir:
        options += ["--state-dir", absolute_path(settings.state_dir, "--state-dir")]
    return options


def warn_of_program(root: Path, program: str) -> None:
    """Warn of a program that does not exist, or that users other than root can change."""
    if not os.path.lexists(root / program.lstrip("/")):
        warn(f"{program} does not exist: install Tranche under {root}, or give its path with --program")
    elif owner := others_may_write(root / program.lstrip("/")):
        warn(f"users other than root can change {owner}, which runs as root at each boot: install Tranche in /opt")


def systemd_runs(root: Path) -> bool:
    """Whether systemd runs this machine, and the unit is for it."""
    return root == Path("/") and _SYSTEMD.is_dir()


def tell_systemd(root: Path, *arguments: str) -> None:
    """Tell the running systemd, if the unit is this machine's; if that fails, systemd learns of it at the next boot."""
    if systemd_runs(root):
        with suppress(OSError):
            subprocess.run(["systemctl", *arguments], capture_output=True, check=False, timeout=60)


def remove_unit(unit: InstalledUnit) -> bool:
    """Stop and remove the unit, and say so; returns whether anything was there."""
    if unit.installed:
        tell_systemd(unit.root, "stop", unit.name)
    removed = unit.remove()
    if removed:
        tell_systemd(unit.root, "daemon-reload")
    say(f"{unit.file} is {'removed' if removed else 'not there'}")
    return removed
