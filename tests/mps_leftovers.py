"""MPS daemons that a test leaves, as people do: they outlive it, and whoever started them."""

from __future__ import annotations

import os
from pathlib import Path

from tranche.hardware.mps_process import MpsProcess
from tranche.node.mps.mps_records import DaemonRecordStore


def end_daemons_below(folder: Path) -> None:
    """End those whose records lie anywhere below, also such whose sockets are gone, with their servers."""
    for records in {path.parent for path in folder.rglob("mps/*.json")}:
        known = DaemonRecordStore(records)
        for record in known.all():
            MpsProcess(known.pipes(record.device_uuid), os.environ).stop()
