"""Tells the holder of a share that others, or maintenance, get its GPU before the share must have ended."""

from __future__ import annotations

from collections.abc import Callable

from tranche.core.allocation import HELD, Allocation
from tranche.core.keeper import ProcessKeeper
from tranche.node.host import Host
from tranche.node.store import records, register
from tranche.planning.decide.time_limits import free_by


class ReservationWatch:
    """Looks at the reservations of one share's GPUs. `tell` receives a sentence for each new one that comes too early."""

    def __init__(self, host: Host, allocation: Allocation, tell: Callable[[str], None]) -> None:
        self._host, self._allocation, self._tell = host, allocation, tell
        self._told: set[str] = set()

    def look(self) -> None:
        """Look once. Nobody is told twice of the same reservation, and nobody of their own."""
        with self._host.ledger.read() as db:
            reservations = records.reservations(db)
        now = self._host.allocation(self._allocation.id)
        if now is None or not isinstance(now.keeper, ProcessKeeper):
            return
        uid, held = now.keeper.uid, {each.gpu_uuid for each in now.grants}
        for each in reservations:
            mine = not {str(uid), *register.groups_of(uid)}.isdisjoint(each.users)
            gpus = held.intersection(each.gpu_uuids)
            if each.id in self._told or mine or not gpus or free_by(now) <= each.begins:
                continue
            self._told.add(each.id)
            labels = ", ".join(self._host.observe_gpu(uuid).label for uuid in sorted(gpus))
            what = "this hold" if now.command == HELD else "this command"
            self._tell(f"{labels} {'is' if len(gpus) == 1 else 'are'} {each}; end {what} before then if you can")
