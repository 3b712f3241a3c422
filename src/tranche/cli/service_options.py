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


def _health(option: Callable[..., Made]) -> tuple[Made, ...]:
    return (
        option(
            "--health-host",
            metavar="ADDRESS",
            envvar="POD_IP",
            default="127.0.0.1",
            show_default=True,
            help="The address to serve /healthz and /readyz on.",
        ),
        option(
            "--health-port", type=click.IntRange(0, 65535), default=9440, show_default=True, help="Their port; 0: any."
        ),
    )


def _log(option: Callable[..., Made]) -> tuple[Made, ...]:
    return (
        option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True),
        option("--verbose", "-v", is_flag=True, help="Log what is done in detail."),
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
        raise UsageError(f"{option} {path} is no absolute path", hint="a service has no folder of its own")
    return path


def others_may_write(path: Path) -> Path | None:
    """What of the path somebody else than root may write or replace, the way to it included; None where nobody may."""
    real = Path(os.path.realpath(path))
    for each in (real, *real.parents):
        status = each.stat()
        open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or open_to_others:
            return each
    return None
