"""How many streams of news each browser has open: over HTTP/1.1 it keeps six connections to a server, and a stream takes one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

MOST_STREAMS = 4
"""Two connections are left: for pages, and for those that are told in turns."""
_TURN_MILLISECONDS = 2_000
_IN_TURNS = f"retry: {_TURN_MILLISECONDS}\nevent: turns\ndata: {MOST_STREAMS}\n\n"


class StreamTracker:
    """To be used on the event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    async def told(self, browser: str, messages: AsyncGenerator[str, None]) -> AsyncIterator[str]:
        """The messages to a page of the browser that sends this cookie; "" is a program, which opens as many as it likes.

        Beside enough other streams it is told the newest and no more: then the browser asks again by itself.
        """
        async with aclosing(messages):
            if browser and self._open[browser] >= MOST_STREAMS:
                async for each in messages:
                    yield _IN_TURNS + each
                    return
            self._open[browser] += 1
            try:
                async for each in messages:
                    yield each
            finally:
                self._open[browser] -= 1
                if not self._open[browser]:
                    del self._open[browser]
