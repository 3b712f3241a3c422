"""Shares of pods that ended with the machine: a restart ends every container, and no kubelet is there yet to say so.

The register keeps a pod's share until somebody proves the pod's end. After a restart its slices are gone, and while the share
stands, nothing can be cut in its place. Once the kubelet runs, it tells anew what its pods have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tranche.core.allocation import Allocation
from tranche.core.keeper import PodKeeper
from tranche.hardware.process_stat import PROC
from tranche.node.store import chronicle, register
from tranche.node.store.ledger import Ledger

_MARGIN_SECONDS = 2.0


def boot_time(proc: Path = PROC) -> float | None:
    """When the machine was started, in seconds since the epoch by the clock of now; None when the kernel does not tell."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    except (OSError, ValueError, IndexError):
        return None


def ended_with_the_machine(
    allocations: Sequence[Allocation], *, booted: float | None, pods_run: bool
) -> tuple[str, ...]:
    """The ids of pods' shares that were granted before the machine was started at `booted`, in seconds since the epoch.

    While any pod runs, none: a clock that was set since the start may make a living pod's share look older than the machine.
    """
    if booted is None or pods_run:
        return ()
    return tuple(
        each.id
        for each in allocations
        if isinstance(each.keeper, PodKeeper) and each.created < booted - _MARGIN_SECONDS
    )


def shares_of_earlier_boots(ledger: Ledger, booted: float | None) -> int:
    """How many there are, by their times alone: whether their pods run is not asked."""
    with ledger.read() as db:
        return len(ended_with_the_machine(register.allocations(db), booted=booted, pods_run=False))


def free_shares_of_earlier_boots(ledger: Ledger, *, booted: float | None, pods_run: bool, now: float) -> int:
    """Free them; how many. `now` is in seconds since the epoch."""
    with ledger.write() as db:
        ended = ended_with_the_machine(register.allocations(db), booted=booted, pods_run=pods_run)
        for allocation_id in ended:
            register.remove_allocation(db, allocation_id)
            chronicle.released(
                db, now, allocation_id, "the machine was restarted since, which ended its pod's containers"
            )
    return len(ended)
