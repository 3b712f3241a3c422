"""GPUs of which an administrator wants nothing more given away, in the ledger."""

from __future__ import annotations

from collections.abc import Callable

from tranche.core.cordon import Cordon
from tranche.core.state import GpuState
from tranche.node.host import Host
from tranche.node.store import chronicle, records


def cordon(host: Host, gpu: GpuState, *, user: str, reason: str, clock: Callable[[], float]) -> None:
    """Give nothing more of the GPU away from the next decision on. Said again, the newer word counts.

    The reason is kept as one line, with `?` for bytes of a terminal that are no UTF-8.
    """
    said = " ".join(reason.encode(errors="replace").decode().split())
    word = Cordon(gpu.uuid, user, said, clock())
    with host.ledger.write() as db:
        records.set_cordon(db, word)
        chronicle.cordoned(db, gpu, word, host.actor)


def uncordon(host: Host, gpu: GpuState, *, user: str, clock: Callable[[], float]) -> bool:
    """Take the word back; False when there was none."""
    with host.ledger.write() as db:
        if not records.remove_cordon(db, gpu.uuid):
            return False
        chronicle.uncordoned(db, clock(), gpu, user, host.actor)
    return True
