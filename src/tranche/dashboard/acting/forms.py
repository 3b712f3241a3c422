"""Forms that carry out a plan, and their keys, for both dashboards.

One key lets one session do one action by one plan, once, within an hour. Unused keys are not stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from tranche.documents.markup import Element, element

_SECONDS = 3600.0
_MOST_SPENT = 10_000


class FormKeyStore:
    """Use it on one thread. The secret is this server's own, so an earlier server's keys are invalid."""

    def __init__(
        self,
        secret: bytes | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`clock` is in seconds and never goes back."""
        self._secret = secret or secrets.token_bytes(32)
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
            return "the form does not belong to this page, or the server has restarted since"
        now = self._clock()
        if now - float(head.partition(".")[0]) > _SECONDS:
            return "the form is more than an hour old"
        if head in self._spent:
            return "the form has already been sent"
        if len(self._spent) >= _MOST_SPENT:
            self._spent = {each: when for each, when in self._spent.items() if now - when <= _SECONDS}
        if len(self._spent) >= _MOST_SPENT:
            return "too many forms were sent in the last hour"
        self._spent[head] = now
        return ""

    def _seal(self, head: str, *parts: str) -> str:
        # Include the lengths, so that no two lists of parts make the same text.
        text = "".join(f"{len(part)}:{part}" for part in (head, *parts))
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def digest_of(facts: Any) -> str:
    """The digest of a plan, from its facts as JSON data: two plans with the same digest are the same plan."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def plan_form(
    address: str, fields: Mapping[str, str], title: str, verb: str, *, danger: bool, asked: Element | None = None
) -> Element:
    """The form that carries out a plan; `asked` is what the user has to fill in, and `danger` marks the button."""
    return element(
        "form",
        [element("input", type="hidden", name=name, value=value) for name, value in fields.items()],
        asked,
        element("button", verb, id="do", class_="danger" if danger else None),
        action=address,
        method="post",
        aria_label=title,
    )


def moved_note(why: str) -> Element:
    """Says that a confirmed plan did nothing, and why."""
    return element("p", f"Nothing was done: {why}. This is the current plan.", class_="note", role="alert")
