"""Two MIG managers on one node would undo each other's work: each claims the node in an annotation of its own. Pure.

With one manager a claim is never renewed, so a quiet cluster is not written to. As soon as a manager sees another's claim, both
renew theirs. No clock is compared with another: as in leader election, each manager watches whether the other's claim changes.
One that has not changed for 30 seconds of watching is of a manager that is gone, and is removed. While two live claims stand,
neither manager cuts anything. Each claim is written by its manager only, before it looks for others, so of two that start at
the same time at least one sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

CLAIM_PREFIX = "mig-manager.tranche.dev/"
RENEW_SECONDS = 5.0
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _ObservedAnnotation:
    """A claim as it reads, and since when it was seen to read so, in seconds of the watcher's monotonic clock."""

    text: str
    since: float


Memory = Mapping[str, _ObservedAnnotation]
"""What a manager remembers of each claim, its own included, by the manager's name; empty after a start."""


@dataclass(frozen=True, slots=True)
class _ManagerExclusion:
    """Where one manager stands: who else is, or may be, there, and which annotations to write.

    `memory` is to be given to the next look. `look_again` is in seconds, None while there is nobody else.
    """

    rivals: tuple[str, ...] = ()
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    look_again: float | None = None


def stand(annotations: Mapping[str, str], me: str, now: float, memory: Memory) -> _ManagerExclusion:
    """Judge the claims on the node.

    `me` names this manager, the same after a restart; `now` is in seconds of a monotonic clock; `memory` is what the look
    before this one gave.
    """
    claims = {key.removeprefix(CLAIM_PREFIX): text for key, text in annotations.items() if key.startswith(CLAIM_PREFIX)}
    seen: dict[str, _ObservedAnnotation] = {}
    for name, text in claims.items():
        before = memory.get(name)
        seen[name] = before if before is not None and before.text == text else _ObservedAnnotation(text, now)
    others = sorted(claims.keys() - {me})
    changes: dict[str, str | None] = {}
    if me not in claims or (others and (me not in memory or now - seen[me].since >= RENEW_SECONDS)):
        text = _renewed(claims.get(me, ""))
        changes[CLAIM_PREFIX + me] = text
        seen[me] = _ObservedAnnotation(text, now)
    rivals = tuple(name for name in others if now - seen[name].since < ANSWER_SECONDS)
    changes |= {CLAIM_PREFIX + name: None for name in others if name not in rivals}
    return _ManagerExclusion(rivals, changes, seen, RENEW_SECONDS if rivals else None)


def withdrawal(me: str) -> dict[str, str | None]:
    """The annotation to remove when the manager ends."""
    return {CLAIM_PREFIX + me: None}


def _renewed(text: str) -> str:
    """Another claim than the one that stands there."""
    try:
        renewals = int(json.loads(text)["renewals"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        renewals = 0
    return json.dumps({"renewals": renewals + 1}, separators=(",", ":"))
