"""Keys of forms. One key lets one session do one action by one plan, once, within an hour. Unused keys are not stored."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

_SECONDS = 3600.0
_MOST_SPENT = 10_000


class FormKeyStore:
    """Use it on one thread. The secret is this server's own, so an earlier server's keys are invalid."""

    def __init__(self, secret: bytes, *, clock: Callable[[], float], new_id: Callable[[], str]) -> None:
        """`clock` is in seconds and never goes back."""
        self._secret = secret
        self._clock = clock
        self._new_id = new_id
        self._spent: dict[str, float] = {}

    def key(self, session: str, action: str, plan: str) -> str:
        """A new key for a form that shows this plan to this session."""
        head = f"{self._clock():.0f}.{self._new_id()}"
        return f"{head}.{self._seal(head, session, action, plan)}"

    def spend(self, key: str, session: str, action: str, plan: str) -> str:
        """Use the key up; returns why it is not valid, "" when it is."""
        head, _, seal = key.rpartition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(head, session, action, plan).encode()):
            return "the form is not of this page as you see it now, or of an earlier start of the server"
        now = self._clock()
        if now - float(head.partition(".")[0]) > _SECONDS:
            return "the form is more than an hour old"
        if head in self._spent:
            return "the form was sent already"
        if len(self._spent) >= _MOST_SPENT:
            self._spent = {each: when for each, when in self._spent.items() if now - when <= _SECONDS}
        if len(self._spent) >= _MOST_SPENT:
            return "too many forms were sent within an hour"
        self._spent[head] = now
        return ""

    def _seal(self, head: str, *parts: str) -> str:
        # Include the lengths, so that no two lists of parts make the same text.
        text = "".join(f"{len(part)}:{part}" for part in (head, *parts))
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
