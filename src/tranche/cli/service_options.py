"""The options of services: where one on a cluster says how it is, how it logs, and which paths one on a machine may use."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tranche.core.errors import UsageError

Made = TypeVar("Made")

ANY_PORT = "0 for any free port"
SERVICE_KUBECONFIG_HELP = "Kubeconfig file. Default: $KUBECONFIG, or the service account of the pod."
SERVICE_NAMESPACE_HELP = "Default: $POD_NAMESPACE, or that of the kubeconfig or pod."
METRIC_NAMES_HELP = "Metric names to use: Tranche's, dcgm-exporter's, or both."
TIER_HELP = "Backend for shares on demand: claims or scheduling gates; auto uses what the cluster supports."


def _health(option: Callable[..., Made]) -> tuple[Made, ...]:
    return (
        option(
            "--health-host",
            metavar="ADDRESS",
            envvar="POD_IP",
            default="127.0.0.1",
            show_default=True,
            help="Address of /healthz and /readyz.",
        ),
        option(
            "--health-port",
            metavar="PORT",
            type=click.IntRange(0, 65535),
            default=9440,
            show_default=True,
            help=f"Port of /healthz and /readyz; {ANY_PORT}.",
        ),
    )


def _log(option: Callable[..., Made]) -> tuple[Made, ...]:
    return (
        option(
            "--log-format",
            type=click.Choice(["auto", "json", "text"]),
            default="auto",
            show_default=True,
            help="Log format on stderr; auto: text on a terminal, else JSON lines.",
        ),
        option("--verbose", "-v", is_flag=True, help="Log more details."),
    )


def _option(*names: str, **how: Any) -> click.Option:
    return click.Option(names, **how)


HEALTH_OPTIONS, LOG_OPTIONS = _health(_option), _log(_option)


def health_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `health_host` and `health_port`."""
    return _given(function, _health(click.option))


def log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `log_format` and `verbose`."""
    return _given(function, _log(click.option))


def log_as_json(log_format: str) -> bool:
    """Whether stderr gets JSON lines: unless a person reads there, or --log-format says otherwise."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def _given(
    function: Callable[..., Any], options: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...]
) -> Callable[..., Any]:
    for each in reversed(options):
        function = each(function)
    return function


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
