"""What services share: where one on a cluster says how it is, how it logs, and the systemd unit of one on a machine."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tranche.cli.output import say, warn
from tranche.cli.runtime import Settings
from tranche.core.errors import UsageError

if TYPE_CHECKING:
    from tranche.boot.unit import InstalledUnit


def port_option(name: str, port: int, what: str) -> click.Option:
    """An option for the port of `what`."""
    return click.Option(
        [name],
        metavar="PORT",
        type=click.IntRange(0, 65535),
        default=port,
        show_default=True,
        help=f"{what}; 0 picks any free port.",
    )


def metric_names_option(name: str) -> click.Option:
    """An option for the names of metrics."""
    return click.Option(
        [name],
        type=click.Choice(["tranche", "dcgm", "both"]),
        default="tranche",
        show_default=True,
        help="Metric names to use: Tranche's, dcgm-exporter's, or both.",
    )


def cluster_options(whose: str) -> tuple[click.Option, click.Option]:
    """`--kubeconfig` and `--namespace`, which is the namespace of `whose`."""
    return KUBECONFIG_OPTION, click.Option(
        ["--namespace"],
        metavar="NAME",
        envvar="POD_NAMESPACE",
        default="",
        help=f"Namespace of {whose}. Default: $POD_NAMESPACE, or the namespace of the kubeconfig or pod.",
    )


KUBECONFIG_OPTION = click.Option(
    ["--kubeconfig"],
    metavar="FILE",
    help="Kubeconfig file. Default: $KUBECONFIG, or the pod's service account.",
)
HEALTH_OPTIONS = (
    click.Option(
        ["--health-host"],
        metavar="ADDRESS",
        envvar="POD_IP",
        default="127.0.0.1",
        show_default=True,
        help="Address for /healthz and /readyz.",
    ),
    port_option("--health-port", 9440, "Port for /healthz and /readyz"),
)
LOG_OPTIONS = (
    click.Option(
        ["--log-format"],
        type=click.Choice(["auto", "json", "text"]),
        default="auto",
        show_default=True,
        help="Format of the log on stderr; auto means text on a terminal, and JSON lines elsewhere.",
    ),
    click.Option(["--verbose", "-v"], is_flag=True, help="Log more details."),
)
TIER_OPTION = click.Option(
    ["--tier"],
    type=click.Choice(["auto", "claims", "gates"]),
    default="auto",
    show_default=True,
    help="Backend for shares on demand: claims or scheduling gates; auto chooses what the cluster supports.",
)


def log_as_json(log_format: str) -> bool:
    """Whether stderr gets JSON lines: unless a person reads there, or --log-format says otherwise."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def absolute_path(path: str, option: str) -> str:
    """The path, when it is one that a service can use; UsageError otherwise."""
    if not path.startswith("/") or any(not each.isprintable() for each in path):
        raise UsageError(
            f"{option} {path} is not an absolute path", hint="a service has no working directory; give a full path"
        )
    return path


def others_may_write(path: Path) -> Path | None:
    """The part of the path, including the way to it, that a user other than root may write or replace; None if there is none."""
    real = Path(os.path.realpath(path))
    for each in (real, *real.parents):
        status = each.stat()
        open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or open_to_others:
            return each
    return None


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
    help="Path of tranche on the machine that runs the unit. Default: path of this command.",
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
        import subprocess  # seldom needed, and slow to import

        with suppress(OSError):
            subprocess.run(["systemctl", *arguments], capture_output=True, check=False, timeout=60)


def remove_unit(unit: InstalledUnit) -> bool:
    """Stop and remove the unit, and say so; returns whether anything was there."""
    if unit.installed:
        tell_systemd(unit.root, "stop", unit.name)
    removed = unit.remove()
    if removed:
        tell_systemd(unit.root, "daemon-reload")
    say(f"{unit.file} is {'removed' if removed else 'not installed'}")
    return removed
