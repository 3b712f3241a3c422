"""What the MPS daemons of shared devices say now, as a decision would hear it, for whoever only looks: nothing is written down.

Whether one has died, or should end, is known by a few files. When ending one failed, it is tried again after a while, not each
time that somebody looks.
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
"""For so long nobody tries again."""
_SUFFIX: Final = ".failed"


class DaemonFailureLog:
    """The failures noted beside the daemons' records, each by a file's time. `now` is seconds since the epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def failed_lately(self, record: DaemonRecord, now: float) -> bool:
        """Whether to leave the daemon alone for now. A time to come, of a clock that was set back, does not count."""
        try:
            return 0.0 <= now - self._path(record).stat().st_mtime < PAUSE_SECONDS
        except OSError:
            return False

    def note(self, record: DaemonRecord, now: float) -> None:
        """Note a failure; without room for that it is tried again sooner."""
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
"""For so long a daemon stays when the last share of its device has ended: the next share starts faster."""


def care_needed(db: sqlite3.Connection, known: DaemonRecordStore, now: float) -> bool:
    """Whether something is to be done about a daemon; `now` in seconds since the epoch. Not while a plan is carried out."""
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
    """Whether a daemon whose device nobody shares should end now: something is wrong with it, or it was idle for long.

    Not shortly after that failed.
    """
    if DaemonFailureLog(known.folder).failed_lately(record, now):
        return False
    if record.state is not DaemonState.READY or record.suspect or not known.reachable(record):
        return True
    return now - known.idle_since(record) >= IDLE_SECONDS


def shared_by_mps(allocations: Iterable[Allocation]) -> Mapping[DeviceKey, bool]:
    """The devices of which somebody holds a part by MPS, each with whether a part of it counts as limited."""
    found: dict[DeviceKey, bool] = {}
    for allocation in allocations:
        for grant in allocation.grants:
            if isinstance(grant, FractionalShare) and grant.sharing is Sharing.MPS:
                key = grant.gpu_uuid, grant.slot
                found[key] = found.get(key, False) or not grant.unlimited
    return found


_LISTEN_SECONDS = 2.0
"""Who only looks gives daemons so long to answer; one that is silent for longer lets nobody in now, as far as anybody knows."""


def node_as_said(node: NodeState, shared: Collection[DeviceKey], daemons: MpsDaemonManager) -> NodeState:
    """The node, where the daemons of the `shared` devices are as they say.

    Who may not judge a daemon sees what is written down of it.
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
    """The view, where shared daemons are as they say, and those whose limits they do not keep are unlimited."""
    node = node_as_said(view.node, shared_by_mps(view.allocations), daemons)
    if node is view.node:
        return view
    return replace(view, node=node, allocations=with_lost_limits(view.allocations, node))
