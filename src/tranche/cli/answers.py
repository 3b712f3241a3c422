"""Looks at a machine with a driver that may hang: a call that does not return delays the command by at most a minute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from tranche.core.errors import HardwareError

Seen = TypeVar("Seen")

SECONDS = 60.0
_SECONDS_AFTERWARDS = 1.0


class DriverReader:
    """Asks on its own threads, one after the other. After one unanswered call, each further call gets a second."""

    def __init__(self) -> None:
        self._seconds = SECONDS

    def to(self, look: Callable[[], Seen]) -> Seen:
        """What `look` returns or raises; HardwareError if it does neither in time, leaving its thread behind."""
        seen: list[Seen] = []
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                seen.append(look())
            except BaseException as error:
                failures.append(error)

        # click finds its command by the context.
        asking = threading.Thread(target=copy_context().run, args=(ask,), daemon=True)
        asking.start()
        asking.join(self._seconds)
        if failures:
            raise failures[0]
        if seen:
            return seen[0]
        waited, self._seconds = self._seconds, min(self._seconds, _SECONDS_AFTERWARDS)
        raise HardwareError(
            f"the NVIDIA driver has not answered for {waited:g} s",
            hint="check whether nvidia-smi hangs too, and read the kernel log: dmesg",
        )
