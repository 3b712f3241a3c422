"""Where claims and pods wait for what time alone mends: a holder that is ending, a change under way, no API server.

After a refusal the kubelet asks again only after a minute or more. So a claim that meets such an obstacle waits here, and is
tried again at each news. It is refused, with the reason, when the kubelet's patience is about to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tranche.core.errors import (
    GpuBusy,
    KubernetesUnavailable,
    LedgerUnavailable,
    NoRoom,
    StateMoved,
    TrancheError,
    WaitTimeout,
)

PASSING = (GpuBusy, NoRoom, StateMoved, WaitTimeout, LedgerUnavailable, KubernetesUnavailable)
"""What time alone may mend. All else stands until somebody does something."""

LAST_WORD_SECONDS = 4.0
"""A try that begins this long before the kubelet gives up is the last: it may have a GPU to change."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 4.0

_Outcome = TypeVar("_Outcome")


@dataclass(slots=True, eq=False)
class _Guest:
    news: asyncio.Event = field(default_factory=asyncio.Event)
    waits: bool = False
    given_up: bool = False


class ClaimRetryQueue:
    """Those who wait, by uid; to be used from one event loop."""

    def __init__(self) -> None:
        self._guests: dict[str, _Guest] = {}

    @property
    def waiting(self) -> frozenset[str]:
        """Those about whom nothing is done until there is news."""
        return frozenset(uid for uid, guest in self._guests.items() if guest.waits)

    def tell(self) -> None:
        """Something has changed: all who wait try again."""
        for guest in self._guests.values():
            guest.news.set()

    def give_up(self, uid: str) -> None:
        """Nobody wants this any more: it is refused instead of waiting."""
        if (guest := self._guests.get(uid)) is not None:
            guest.given_up = True
            guest.news.set()

    async def persist(
        self,
        uid: str,
        attempt: Callable[[], Awaitable[_Outcome]],
        until: float,
        delayed: Callable[[TrancheError], None],
    ) -> _Outcome:
        """What the attempt comes to, made again and again `until` that time of the event loop; then its last error.

        `delayed` is told the first error. Nobody tells of some changes, such as the end of a process: these are found later.
        """
        loop = asyncio.get_running_loop()
        guest = self._guests[uid] = _Guest()
        pause = _FIRST_PAUSE_SECONDS
        told = False
        try:
            while True:
                guest.news.clear()
                try:
                    return await attempt()
                except PASSING as error:
                    left = until - loop.time()
                    if not told:
                        delayed(error)
                        told = True
                    if guest.given_up or left <= 0:
                        raise
                    guest.waits = True
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(pause, left)):
                            await guest.news.wait()
                    if guest.given_up:
                        raise
                    guest.waits = False
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            del self._guests[uid]
