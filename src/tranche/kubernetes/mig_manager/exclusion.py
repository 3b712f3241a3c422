"""Two MIG managers on one node would undo each other's work, so each claims the node in its own annotation. Pure.

A lone manager never renews its claim, so a quiet cluster gets no writes. As soon as a manager sees another's claim, both renew
theirs. They compare no clocks: as in leader election, each manager watches whether the other's claim changes. A claim unchanged
for 30 seconds of watching belongs to a manager that is gone, and is removed. While two live claims stand, neither manager cuts
anything. Each manager writes its own claim before it looks for others, so of two that start at the same time at least one sees
the other.
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
    """A claim's text, and since when it was seen unchanged, in seconds of the watcher's monotonic clock."""

    text: str
    since: float


Memory = Mapping[str, _ObservedAnnotation]
"""What a manager remembers of each claim, its own included, by the manager's name; empty after a start."""


@dataclass(frozen=True, slots=True)
class _ManagerExclusion:
    """A manager's situation: which others are, or may be, there, and which annotations to write.

    Pass `memory` to the next look. `look_again` is in seconds, None while there is no other manager.
    """

    rivals: tuple[str, ...] = ()
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    look_again: float | None = None


def stand(annotations: Mapping[str, str], me: str, now: float, memory: Memory) -> _ManagerExclusion:
    """Judge the claims on the node.

    `me` names this manager, the same after a restart; `now` is in seconds of a monotonic clock; `memory` comes from the previous
    look.
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
    """A claim that differs from this one."""
    try:
        renewals = int(json.loads(text)["renewals"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        renewals = 0
    return json.dumps({"renewals": renewals + 1}, separators=(",", ":"))
