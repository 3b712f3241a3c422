"""What a cut at boot leaves in the ledger: how it ended, of this start of the machine and no other."""

from __future__ import annotations

from pathlib import Path

from tranche.boot.cut import read_outcome, record_outcome
from tranche.core.errors import HardwareError
from tranche.core.events import BootEnded
from tranche.node.state.session import boot_id


def test_the_boot_id_stays_while_the_machine_runs() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36


def test_the_last_outcome_of_a_boot_counts(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert read_outcome(ledger, "two") is None
    failure = HardwareError("it failed", hint="do this")
    record_outcome(ledger, time=1.0, boot_id="one", asked="7*19", error=None)
    record_outcome(ledger, time=2.0, boot_id="two", asked="7*19", error=None)
    record_outcome(ledger, time=3.0, boot_id="two", asked="7*19", error=failure)
    found = read_outcome(ledger, "two")
    assert found is not None
    assert found.data == BootEnded("two", "7*19", "HardwareError")
    assert (found.time, found.message) == (3.0, "at boot: it failed (do this)")
    assert read_outcome(ledger, "three") is None
