"""The administrator's words, read from the ledger and changed in it."""

from __future__ import annotations

from collections.abc import Callable

from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import NodeState
from tranche.node.store import chronicle, records
from tranche.node.store.ledger import Ledger


def change_policy(
    ledger: Ledger, change: Callable[[SharingPolicy], SharingPolicy], node: NodeState, *, clock: Callable[[], float]
) -> SharingPolicy:
    """Change the words in one transaction, with an event for each that is another now; the policy after it.

    Who holds something keeps it: the next decision heeds them.
    """
    labels = {gpu.uuid: gpu.label for gpu in node}
    with ledger.write() as db:
        before = records.sharing_policy(db)
        after = change(before)
        records.set_sharing_policy(db, after)
        if before.every is not after.every:
            chronicle.policy_changed(db, clock(), "", "every other GPU", after.every)
        for uuid in dict.fromkeys((*labels, *before.gpus, *after.gpus)):
            if before.gpus.get(uuid) is not after.gpus.get(uuid):
                chronicle.policy_changed(db, clock(), uuid, labels.get(uuid, f"GPU {uuid}"), after.gpus.get(uuid))
    return after
