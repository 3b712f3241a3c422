"""Puts a share's memory limits in force, or finds that this driver keeps none."""

from __future__ import annotations

from collections.abc import Callable

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import TrancheError
from tranche.core.sharing import Sharing
from tranche.node.limits.limit_trials import LimitTrialRunner
from tranche.node.limits.memory_groups import MemoryGroup, MemoryGroupManager
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger


class LimitsRefused(Exception):
    """The driver keeps no memory limits. That is remembered, and nothing is shared by them from now on."""


class MemoryLimitManager:
    """The shares of one machine whose memory the driver limits. `clock` is seconds since the epoch."""

    def __init__(
        self, groups: MemoryGroupManager, trials: LimitTrialRunner, ledger: Ledger, clock: Callable[[], float]
    ) -> None:
        self._groups = groups
        self._trials = trials
        self._ledger = ledger
        self._clock = clock

    def limit(self, allocation: Allocation, driver: str) -> MemoryGroup | None:
        """The group with the allocation's limits, kept as far as that could be tried; None when it has no part that needs one.

        LimitsRefused when the driver of that version keeps none; another error when a GPU does not answer.
        """
        try:
            group = self._groups.make(allocation)
        except TrancheError as error:
            why = self._trials.refuse(driver, error)
            if not why:
                raise
        else:
            if group is None:
                return None
            why = self._trials.prove(driver, _limited_part(allocation))
            if not why:
                return group
            self._groups.drop(group)
        with self._ledger.write() as db:
            chronicle.sharing_refused(db, self._clock(), Sharing.MEMORY_LIMITS, why)
        raise LimitsRefused


def _limited_part(allocation: Allocation) -> FractionalShare:
    return next(
        each
        for each in allocation.grants
        if isinstance(each, FractionalShare) and each.sharing is Sharing.MEMORY_LIMITS
    )
