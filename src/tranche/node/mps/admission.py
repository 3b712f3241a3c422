"""The last question before a program is let in by MPS: does the server of its device let anybody in?

A server that is wedged or stopped shows it to nobody but its clients, who wait in cuInit without end. So one is sent ahead, after
the decision and with no lock held.
"""

from __future__ import annotations

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import GpuBusy, TrancheError
from tranche.core.sharing import Sharing
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.store import register
from tranche.node.store.ledger import Ledger
from tranche.planning.steps.plan import Plan


def refuse_unavailable_parts(
    daemons: MpsDaemonManager,
    ledger: Ledger,
    allocation: Allocation,
    plan: Plan | None = None,
    seconds: float | None = None,
) -> None:
    """GpuBusy when the server of a part lets nobody in: the allocation is gone then, and the next decision knows why.

    Daemons that the allocation's own `plan` started have let in a client. WaitTimeout when `seconds` were too few to tell.
    """
    started = {step.lets_in for step in (plan.steps if plan else ())}
    try:
        for part in allocation.grants:
            if isinstance(part, FractionalShare) and part.sharing is Sharing.MPS and part.device not in started:
                _refuse_unavailable(daemons, part, seconds)
    except TrancheError:
        with ledger.write() as db:
            register.remove_allocation(db, allocation.id)
        raise


def _refuse_unavailable(daemons: MpsDaemonManager, part: FractionalShare, seconds: float | None) -> None:
    record = daemons.records.find(part.gpu_uuid, part.slot)
    if record is None:
        return  # it has died and was cleared away: whoever gives out the part's limits sees that
    if why := daemons.health.refusal(record, seconds):
        error = GpuBusy(f"device {record.device_uuid} is not shared further: its MPS daemon lets nobody in: {why}")
        error.gpu_uuid = part.gpu_uuid
        raise error
