"""The moments in which the kubelet gives a device away, when nobody should ask it for its list.

A kubelet of Kubernetes 1.36 that is asked then, and of whose pods one has just ended, forgets the device that is on its way
(UpdateAllocatedDevices in its device manager). It gives the device to the next pod too, and that pod has to be turned away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ENTERED_SECONDS = 0.2
"""So long after it was answered the kubelet has entered the device in its list: it does so at once."""
LONGEST_SECONDS = 3.0
"""No look is put off for longer, however many pods come one after the other."""
_POLL_SECONDS = 0.02


class AdmissionTracker:
    """Which are under way. To be used from one event loop."""

    def __init__(self) -> None:
        self._under_way = 0
        self._answered = float("-inf")

    @contextmanager
    def one(self) -> Iterator[None]:
        """The length of one: from the kubelet's question until it was answered; a refusal leaves nothing to enter."""
        self._under_way += 1
        try:
            yield
            self._answered = asyncio.get_running_loop().time()
        finally:
            self._under_way -= 1

    async def over(self) -> None:
        """Return when none is under way, but after a while in any case."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SECONDS):
                while (wait := self._wait()) > 0:
                    await asyncio.sleep(wait)

    def _wait(self) -> float:
        if self._under_way:
            return _POLL_SECONDS
        return self._answered + ENTERED_SECONDS - asyncio.get_running_loop().time()
