"""Waiting for a condition, with a description that a failure can be read by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cluster.errors import ClusterError

Value = TypeVar("Value")
_QUICK_SECONDS = 0.05
"""A request to the API server takes less, a command more."""


def wait_for(
    description: str,
    probe: Callable[[], Value | None],
    *,
    timeout: float = 120.0,
    period: float = 0.1,
    explain: Callable[[], str] = str,
) -> Value:
    """The first thing that `probe` returns that is true; a ClusterError or OSError that it raises counts as not yet.

    `timeout` and `period` in seconds. A probe that takes long itself, such as a command, is made less often: else it would keep
    the processor from what is waited for. `explain` is asked once, for what to add to the error.

    Raises:
        ClusterError: the time is over; it names the description and the last answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        asked = time.monotonic()
        try:
            value = probe()
            if value:
                return value
            last = value
        except (ClusterError, OSError) as error:
            last = error
        now = time.monotonic()
        if now > deadline:
            raise ClusterError(f"{description}: not within {timeout:g} s; at last: {last}", hint=explain())
        took = now - asked
        time.sleep(period if took < _QUICK_SECONDS else max(period, 2 * took))
