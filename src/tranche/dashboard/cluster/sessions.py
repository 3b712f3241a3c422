"""Who has entered with a token: browsers have the name of a session, and the token stays here, in memory."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

LONGEST_SECONDS = 8 * 3600.0
"""After so long whoever has entered enters again; a token that ends before that ends its session as well."""
_MOST = 2_000


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    began: float


class SessionStore:
    """`clock` is monotonic, in seconds."""

    def __init__(
        self, clock: Callable[[], float], random: Callable[[], str] = lambda: secrets.token_urlsafe(32)
    ) -> None:
        self._clock = clock
        self._random = random
        self._known: dict[bytes, _Session] = {}

    def begin(self, token: str) -> str:
        """The name of a new session. Of too many the oldest ends."""
        now = self._clock()
        self._known = {key: each for key, each in self._known.items() if now - each.began < LONGEST_SECONDS}
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        name = self._random()
        self._known[_digest(name)] = _Session(token, now)
        return name

    def token(self, name: str) -> str:
        """The token of whoever has that session; "" where there is none."""
        found = self._known.get(_digest(name))
        return "" if found is None or self._clock() - found.began >= LONGEST_SECONDS else found.token

    def end(self, name: str) -> None:
        """Forget it."""
        self._known.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    # By digest, so that how long a look takes tells nothing of the names that there are.
    return hashlib.sha256(name.encode()).digest()
