"""What the MPS daemons of shared devices report now, as for a decision, but for read-only callers: this records nothing.

A few files show whether a daemon has died or should end. If ending one failed, the retry comes after a while, not at every look.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tranche.core.allocation import Allocation, FractionalShare, NodeView, with_lost_limits
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, InstanceKey, NodeState
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore, name_of
from tranche.node.store import records, register

if TYPE_CHECKING:
    from tranche.node.mps.mps_daemons import MpsDaemonManager

PAUSE_SECONDS: Final = 60.0
"""The pause before a retry."""
_SUFFIX: Final = ".failed"


class DaemonFailureLog:
    """The failures noted beside the daemons' records, each as a file's mtime. `now` is seconds since the epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def failed_lately(self, record: DaemonRecord, now: float) -> bool:
        """Whether to leave the daemon alone for now. Ignores future times, from a clock that was set back."""
        try:
            return 0.0 <= now - self._path(record).stat().st_mtime < PAUSE_SECONDS
        except OSError:
            return False

    def note(self, record: DaemonRecord, now: float) -> None:
        """Note a failure. If the disk is full, the retry comes sooner."""
        path = self._path(record)
        with suppress(OSError):
            path.touch()
            os.utime(path, (now, now))

    def clear(self, record: DaemonRecord) -> None:
        """Forget the failures of a daemon that has ended."""
        with suppress(OSError):
            self._path(record).unlink(missing_ok=True)

    def _path(self, record: DaemonRecord) -> Path:
        return self._folder / f"{name_of(record.device_uuid)}{_SUFFIX}"


DeviceKey = tuple[str, InstanceKey | None]
"""A device by its GPU's UUID and the slot of its instance."""

IDLE_SECONDS = 60.0
"""How long a daemon stays after the last share of its device: the next share starts faster."""


def care_needed(db: sqlite3.Connection, known: DaemonRecordStore, now: float) -> bool:
    """Whether a daemon needs care; `now` is in seconds since the epoch. False while a plan is open."""
    found, damaged = known.look()
    if not (found or damaged) or records.open_plans(db):
        return False
    if damaged or any(each.untold for each in found):
        return True
    shared = shared_by_mps(register.allocations(db))
    return any(
        shared[each.key] and (each.changed or each.state is DaemonState.LOST)
        if each.key in shared
        else is_due(each, known, now)
        for each in found
    )


def is_due(record: DaemonRecord, known: DaemonRecordStore, now: float) -> bool:
    """Whether the daemon of an unshared device should end now: something is wrong with it, or it was idle for long.

    False shortly after a failure to end it.
    """
    if DaemonFailureLog(known.folder).failed_lately(record, now):
        return False
    if record.state is not DaemonState.READY or record.suspect or not known.reachable(record):
        return True
    return now - known.idle_since(record) >= IDLE_SECONDS


def shared_by_mps(allocations: Iterable[Allocation]) -> Mapping[DeviceKey, bool]:
    """The devices with parts by MPS, each with whether any of its parts counts as limited."""
    found: dict[DeviceKey, bool] = {}
    for allocation in allocations:
        for grant in allocation.grants:
            if isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS:
                key = grant.gpu_uuid, grant.slot
                found[key] = found.get(key, False) or not grant.unlimited
    return found


_LISTEN_SECONDS = 2.0
"""How long a look waits for daemons to answer. A daemon that is silent for longer counts as admitting no clients."""


def node_as_said(node: NodeState, shared: Collection[DeviceKey], daemons: MpsDaemonManager) -> NodeState:
    """The node, with the daemons of the `shared` devices as they report themselves.

    A process that may not judge daemons sees their records.
    """
    if not shared or not daemons.records.writable:
        return node
    records = [each for each in daemons.records.all() if each.key in shared]
    news = {each.key: each.seen for each in daemons.health.news(records, _LISTEN_SECONDS)}
    if not news:
        return node
    return replace(
        node,
        gpus=tuple(
            replace(gpu, daemons=tuple(news.get((gpu.uuid, each.slot), each) for each in gpu.daemons)) for gpu in node
        ),
    )


def view_as_said(view: NodeView, daemons: MpsDaemonManager) -> NodeView:
    """The view, with shared daemons as they report themselves, and parts with unenforced limits marked unlimited."""
    node = node_as_said(view.node, shared_by_mps(view.allocations), daemons)
    if node is view.node:
        return view
    return replace(view, node=node, allocations=with_lost_limits(view.allocations, node))
