"""The options of services: where one on a cluster says how it is, how it logs, and which paths one on a machine may use."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click

from tranche.core.errors import UsageError

METRIC_NAMES_HELP = "Metric names to use: Tranche's, dcgm-exporter's, or both."


def port_option(name: str, port: int, what: str) -> click.Option:
    """An option for the port of `what`."""
    return click.Option(
        [name],
        metavar="PORT",
        type=click.IntRange(0, 65535),
        default=port,
        show_default=True,
        help=f"{what}; 0 for any free port.",
    )


def cluster_options(whose: str) -> tuple[click.Option, click.Option]:
    """`--kubeconfig` and `--namespace`, which is the namespace of `whose`."""
    return KUBECONFIG_OPTION, click.Option(
        ["--namespace"],
        metavar="NAME",
        envvar="POD_NAMESPACE",
        default="",
        help=f"Namespace of {whose}. Default: $POD_NAMESPACE, or that of the kubeconfig or pod.",
    )


KUBECONFIG_OPTION = click.Option(
    ["--kubeconfig"],
    metavar="FILE",
    help="Kubeconfig file. Default: $KUBECONFIG, or the service account of the pod.",
)
HEALTH_OPTIONS = (
    click.Option(
        ["--health-host"],
        metavar="ADDRESS",
        envvar="POD_IP",
        default="127.0.0.1",
        show_default=True,
        help="Address of /healthz and /readyz.",
    ),
    port_option("--health-port", 9440, "Port of /healthz and /readyz"),
)
LOG_OPTIONS = (
    click.Option(
        ["--log-format"],
        type=click.Choice(["auto", "json", "text"]),
        default="auto",
        show_default=True,
        help="Log format on stderr; auto: text on a terminal, else JSON lines.",
    ),
    click.Option(["--verbose", "-v"], is_flag=True, help="Log more details."),
)
TIER_OPTION = click.Option(
    ["--tier"],
    type=click.Choice(["auto", "claims", "gates"]),
    default="auto",
    show_default=True,
    help="Backend for shares on demand: claims or scheduling gates; auto uses what the cluster supports.",
)


def log_as_json(log_format: str) -> bool:
    """Whether stderr gets JSON lines: unless a person reads there, or --log-format says otherwise."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def absolute_path(path: str, option: str) -> str:
    """The path, when it is one that a service can use; UsageError otherwise."""
    if not path.startswith("/") or any(not each.isprintable() for each in path):
        raise UsageError(
            f"{option} {path} is not an absolute path", hint="a service has no working folder; give a full path"
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
