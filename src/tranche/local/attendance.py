"""Which waiters answer. One that is stopped, or does not hear its bell, must not hold up those behind it.

Nothing is written about it: a waiter that comes back has its old place.
"""

from __future__ import annotations

from collections.abc import Sequence

from tranche.local.wakeup_pipe import unheard_for
from tranche.node.state.session import StateFolder, process_stopped
from tranche.node.store.records import Waiter

TURN_SECONDS = 5.0
"""How long a waiter may take to hear its bell."""


def answers(places: StateFolder, waiter: Waiter, now: float) -> bool:
    """Whether the waiter's process can take its turn; `now` is seconds since the epoch."""
    return not process_stopped(waiter.pid) and unheard_for(places.wakeup_pipe(waiter.id), now) < TURN_SECONDS


def silent(places: StateFolder, queue: Sequence[Waiter], now: float) -> frozenset[str]:
    """The ids of the waiters that do not answer."""
    return frozenset(each.id for each in queue if not answers(places, each, now))


def attending(places: StateFolder, queue: Sequence[Waiter], now: float, *, but: str = "") -> tuple[Waiter, ...]:
    """The waiters that answer, in order, and the one of the id `but` whether it does or not."""
    return tuple(each for each in queue if each.id == but or answers(places, each, now))
