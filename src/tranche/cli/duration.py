"""Options that take a span of time."""

from __future__ import annotations

import click

from tranche.core.errors import UsageError
from tranche.core.quantity import parse_duration

TIMEOUT_HELP = "Stop waiting after TIME, such as 90 (seconds), 30s or 1h30m. Default: no limit."
"""The same words for every command that waits."""


class DurationType(click.ParamType[float]):
    """Seconds, written as tranche.core.quantity reads them: `90`, `30s`, `10m`, `1h30m`; at least `least` of them."""

    name = "duration"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds; UsageError, which names the option, if the text is no span of time or too short a one."""
        name = "" if param is None else f"{max(param.opts, key=len)}: "
        try:
            seconds = value if isinstance(value, float) else parse_duration(str(value))
        except UsageError as error:
            raise UsageError(f"{name}{error.message}", hint=error.hint) from error
        if seconds < self._least:
            raise UsageError(f"{name}{value} is less than {self._least:g}s")
        return seconds
