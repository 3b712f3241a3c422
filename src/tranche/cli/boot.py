"""`tranche boot`: cut the GPUs when the machine boots; and the systemd unit that runs it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from tranche.boot.cut import BootCut, CutInterrupted, CutResult, ending_after, read_outcome, record_outcome, say_status
from tranche.boot.unit import CUT_SECONDS, SETTINGS_FILE, UNIT, WAIT_SECONDS, InstalledUnit, install_unit
from tranche.cli.layout_options import read_layouts
from tranche.cli.options import DurationType
from tranche.cli.output import fail, leave, print_json, say, show, warn
from tranche.cli.runtime import Settings, TrancheCommand, TrancheGroup, open_host, output_option, register_places
from tranche.cli.service_options import (
    absolute_path,
    options_of_unit,
    program_of_unit,
    remove_unit,
    tell_systemd,
    unit_program_option,
    unit_root_option,
    warn_of_program,
)
from tranche.core.errors import PartitionInvalid, TrancheError, WaitTimeout
from tranche.core.events import Event
from tranche.core.layout import LayoutFile
from tranche.core.partition import BootSettings, parse_boot_settings
from tranche.documents.describe import timestamp
from tranche.documents.layout_change import sum_up
from tranche.hardware.host_facts import has_nvidia_gpu
from tranche.node.files.files import read_text
from tranche.node.state.session import boot_id

_STATUS_SECONDS = 2.0
_WRITE_SECONDS = 10.0
_TIMEOUT_KEY = "tranche.boot.timeout"
_FILE_KEY = "tranche.boot.file"
_NOTHING_THERE = "this machine has no NVIDIA GPU: there is nothing to partition"


@click.group(cls=TrancheGroup, invoke_without_command=True)
@click.option(
    "--file",
    "settings_file",
    metavar="FILE",
    default=SETTINGS_FILE,
    show_default=True,
    help="File with MIG_PARTITION.",
)
@click.option(
    "--timeout",
    type=DurationType(),
    metavar="TIME",
    default=WAIT_SECONDS,
    help="Maximum time to wait for the driver, such as 30s or 10m. Default: 2m.",
)
@click.pass_context
def command(context: click.Context, settings_file: str, timeout: float) -> None:
    """Partition GPUs into slices when the machine boots.

    Without a subcommand, the command reads MIG_PARTITION from the file named by --file. The value is a layout name, or
    a list of profiles in the format of `nvidia-smi mig -cgi`, such as 19,19,19 or 3*1g.5gb.

    The command waits for the driver, keeps correct slices, and never changes a slice in use. It finishes at most two
    minutes after the driver is ready. The systemd unit runs the command before the kubelet starts. The kubelet starts
    even if the command fails.
    """
    context.meta[_TIMEOUT_KEY], context.meta[_FILE_KEY] = timeout, settings_file
    if context.invoked_subcommand is None:
        _boot(context.find_object(Settings) or Settings(), settings_file, timeout)


@command.command(cls=TrancheCommand)
@unit_root_option
@unit_program_option
@click.pass_context
def install(context: click.Context, root: Path, program: str | None) -> None:
    """Install and enable the systemd unit for tranche boot.

    The unit runs at the next boot. To run it now, use systemctl start tranche-boot. Put --file and --timeout before
    `install`.

    \b
    $ tranche boot --timeout 5m install
    """
    settings_file = absolute_path(context.meta[_FILE_KEY], "--file")
    program, options = program_of_unit(program), options_of_unit(context.find_object(Settings) or Settings())
    changed = install_unit(
        root, program, options=options, settings_file=settings_file, seconds=context.meta[_TIMEOUT_KEY]
    )
    if changed:
        tell_systemd(root, "daemon-reload")
    say(f"{InstalledUnit(root).file} is {'written and enabled' if changed else 'up to date'}")
    if not (root / settings_file.lstrip("/")).exists():
        say(f"nothing is partitioned until {settings_file} exists and sets MIG_PARTITION=...")
    warn_of_program(root, program)
    if any((root / folder / "nvidia-mig-manager.service").exists() for folder in _UNIT_FOLDERS):
        warn("nvidia-mig-manager.service also partitions GPUs at boot: disable it")


@command.command(cls=TrancheCommand)
@unit_root_option
def remove(root: Path) -> None:
    """Remove the systemd unit for tranche boot.

    The command does not change the GPUs or the file that sets MIG_PARTITION.
    """
    # What has ended well counts as active, so it is stopped, and would stay in systemctl's lists.
    if remove_unit(InstalledUnit(root)):
        tell_systemd(root, "reset-failed", UNIT)


@command.command(cls=TrancheCommand)
@unit_root_option
@output_option()
@click.pass_context
def status(context: click.Context, root: Path, output: str) -> None:
    """Show the systemd unit, the requested slices and the result of this boot."""
    settings = context.find_object(Settings) or Settings()
    unit, settings_file = InstalledUnit(root), context.meta[_FILE_KEY]
    unit.refuse_elsewhere()
    asked, problem = "", ""
    try:
        asked = str(_settings_of(str(root / settings_file.lstrip("/")) if root != Path("/") else settings_file).wanted)
    except PartitionInvalid as error:
        problem = error.message
    ended: Event | None = None
    if root == Path("/"):
        try:
            ended = read_outcome(register_places(settings, reading=True).ledger, boot_id())
        except TrancheError as error:
            warn(f"the partitioning result is unknown: {error.message}")
    found = {
        "unit": str(unit.file),
        "installed": unit.installed,
        "enabled": unit.enabled,
        "file": settings_file,
        "asked": asked,
        "problem": problem,
        "ended": None if ended is None else timestamp(ended.time),
        "reason": "" if ended is None else getattr(ended.data, "reason", ""),
        "message": "" if ended is None else ended.message,
    }
    if output == "json":
        print_json("BootStatus", **found)
        return
    word = "enabled" if unit.enabled else "not enabled"
    show(f"unit     {f'{unit.file}, {word}' if unit.installed else 'not installed'}")
    show(f"asked    {asked or problem}")
    show(f"at boot  {ended.message if ended is not None else 'not run since the machine started'}")


def _boot(settings: Settings, settings_file: str, seconds: float) -> None:
    """Cut, record how it ended, and report it to systemd."""
    asked = ""

    def tell(text: str) -> None:
        say(text)
        say_status(text, os.environ, patience=_STATUS_SECONDS)

    def give_up(why: object) -> NoReturn:
        failure = WaitTimeout(f"{asked or settings_file} at boot: {why}", hint="see: journalctl -b -k, nvidia-smi")
        # The thread that hangs may have the ledger open: it is not waited for without end.
        writing = threading.Thread(target=_ended, args=(settings, asked, failure), daemon=True)
        writing.start()
        writing.join(_WRITE_SECONDS)
        fail(failure.message)
        leave(failure.exit_code)

    try:
        with ending_after(seconds + CUT_SECONDS, give_up):
            wanted = _settings_of(settings_file)
            asked = str(wanted.wanted)
            result = _cut(settings, wanted, seconds, tell)
    except CutInterrupted as end:
        give_up(end)  # a thread may hang in the driver for ever
    except TrancheError as error:
        _ended(settings, asked, error)
        raise
    if result is None:
        tell(_NOTHING_THERE)
        return
    _ended(settings, asked, None)
    tell(f"{sum_up(result.decision)}; the GPUs have {result.slices} slices for {asked}")


def _cut(settings: Settings, wanted: BootSettings, seconds: float, tell: Callable[[str], None]) -> CutResult | None:
    simulated = settings.simulate or os.environ.get("TRANCHE_SIM_STATE")
    return BootCut(
        wanted=wanted.wanted,
        layouts=read_layouts(wanted.config_file) if wanted.config_file else LayoutFile(),
        open_host=lambda: open_host(settings),
        has_gpu=(lambda: None) if simulated else has_nvidia_gpu,
        seconds=seconds,
        tell=tell,
        progress=lambda gpu, step: say_status(f"{gpu.label}: {step}", os.environ),
    ).carry_out()


def _ended(settings: Settings, asked: str, error: TrancheError | None) -> None:
    """Record how it ended. If that fails, only the journal and the status say so."""
    if error is not None:
        say_status(f"failed: {error.message}", os.environ, patience=_STATUS_SECONDS)
    try:
        places = register_places(settings)
        record_outcome(places.ledger, time=time.time(), boot_id=boot_id(), asked=asked, error=error)
    except TrancheError as unwritten:
        warn(f"cannot record the partitioning result for the node's agent: {unwritten.message}")


def _settings_of(path: str) -> BootSettings:
    return parse_boot_settings(read_text(path, PartitionInvalid), path)


_UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
