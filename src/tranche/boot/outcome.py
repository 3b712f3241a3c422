"""What a cut at boot leaves behind for later: an event in the machine's ledger, which the node's agent reads as well."""

from __future__ import annotations

from pathlib import Path

from tranche.core.errors import TrancheError
from tranche.core.events import Event
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger


def record_outcome(ledger: Path, *, time: float, boot_id: str, asked: str, error: TrancheError | None) -> None:
    """Write down how it ended; `time` is in seconds since the epoch. Works without a driver. Raises LedgerUnavailable."""
    open_ledger = Ledger(ledger)
    try:
        with open_ledger.write() as db:
            chronicle.boot_ended(db, time, boot_id, asked, error)
    finally:
        open_ledger.close()


def read_outcome(ledger: Path, boot_id: str) -> Event | None:
    """How the cut of that start of the machine ended; None when none did."""
    if not ledger.exists():
        return None
    open_ledger = Ledger(ledger, read_only=True)
    try:
        with open_ledger.read() as db:
            return chronicle.last_boot(db, boot_id)
    finally:
        open_ledger.close()
