"""The options that every service on a cluster has: where it says how it is, and how it logs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

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
