"""Two MIG managers on one node would undo each other's work: each claims the node in an annotation of its own.

A claim says since when its manager stands for the node and when it last said so. With one manager nothing is ever renewed, so a
quiet cluster is not written to. As soon as a manager sees another's claim, both renew theirs; whoever does not answer within
30 seconds is gone, and its claim is removed. While two live claims stand, neither manager cuts anything. Claims are compared
by the clock of the node, which both managers share; each is written by its manager only, before it looks for others, so of two
that start at the same time at least one sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

CLAIM_PREFIX = "mig-manager.tranche.dev/"
RENEW_SECONDS = 5.0
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Claim:
    """One manager's word that it manages the node. Times are seconds since the epoch."""

    since: float
    renewed: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one manager stands: who else is, or may be, there, and which annotations to write.

    `look_again` is in seconds, None while there is nobody else.
    """

    rivals: tuple[str, ...]
    annotations: Mapping[str, str | None]
    look_again: float | None = None


def stand(annotations: Mapping[str, str], me: str, now: float, *, since: float) -> Standing:
    """Judge the claims on the node. `me` names this manager, the same after a restart; `since` is when it started."""
    others = {
        key.removeprefix(CLAIM_PREFIX): _parse(text)
        for key, text in annotations.items()
        if key.startswith(CLAIM_PREFIX) and key != CLAIM_PREFIX + me
    }
    mine = _parse(annotations.get(CLAIM_PREFIX + me, ""))
    if not others:
        present = mine is not None and mine.since <= now
        return Standing((), {} if present else {CLAIM_PREFIX + me: _text(Claim(now, now))})
    changes: dict[str, str | None] = {}
    # One that has only just begun to ask must give the others time to answer, also when an old claim of its own is there.
    asking_since = max(since, mine.since) if mine is not None and mine.since <= now else now
    if mine is None or mine.since < since or mine.renewed > now or mine.renewed <= now - RENEW_SECONDS:
        changes[CLAIM_PREFIX + me] = _text(Claim(asking_since, now))
    rivals = []
    for name, claim in sorted(others.items()):
        answered = claim is not None and now - ANSWER_SECONDS < claim.renewed <= now + ANSWER_SECONDS
        if answered or asking_since > now - ANSWER_SECONDS:
            rivals.append(name)
        else:
            changes[CLAIM_PREFIX + name] = None
    return Standing(tuple(rivals), changes, RENEW_SECONDS if rivals else None)


def withdrawal(me: str) -> dict[str, str | None]:
    """The annotation to remove when the manager ends."""
    return {CLAIM_PREFIX + me: None}


def _text(claim: Claim) -> str:
    return json.dumps({"since": round(claim.since, 3), "renewed": round(claim.renewed, 3)}, separators=(",", ":"))


def _parse(text: str) -> Claim | None:
    try:
        data = json.loads(text)
        return Claim(float(data["since"]), float(data["renewed"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
