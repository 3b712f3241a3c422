"""One look at a machine, for callers that only read."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tranche.core.allocation import NodeView, cordoned, with_lost_limits
from tranche.core.errors import LedgerUnavailable, TrancheError
from tranche.core.state import InstanceKey
from tranche.node.limits.overdrawn import with_overdrawn
from tranche.node.mps.mps_records import DaemonRecordStore, care_needed, node_with_daemons
from tranche.node.state.known_gpus import lost_or_back, with_lost_named
from tranche.node.state.session import StateFolder
from tranche.node.store import records, register
from tranche.node.store.ledger import open_to_read
from tranche.node.store.register import anything_left, contradictory_tables

if TYPE_CHECKING:
    from tranche.hardware.nvml import NvmlDriver


def look(
    driver: NvmlDriver,
    places: StateFolder,
    unsettled: Callable[[TrancheError], None],
    environment: Callable[[], Mapping[str, str]] = lambda: os.environ,
) -> NodeView:
    """The current machine, after clearing what dead processes left behind if this process may.

    `unsettled` receives the reason if that fails. `environment` locates the driver's programs, and is called only when one of
    them is needed.
    """
    ledger = open_to_read(places)
    try:
        with ledger.read() as db:
            left = anything_left(db, places) or bool(contradictory_tables(db, places))
            left = left or _care_needed(db, places, unsettled)
            left = left and (not ledger.read_only or ledger.unwritable is not None)
            allocations, changing = register.allocations(db), records.changing_gpus(db)
            owned, policy = records.owned_instances(db) | _being_made(db), records.sharing_policy(db)
            withheld, requested = cordoned(records.cordons(db)), records.requested_instances(db)
            now, reservations = time.time(), records.reservations(db)
            limits, lost = register.user_limits(db, allocations, now), register.lost_gpus(db)
    finally:
        ledger.close()
    if left and ledger.unwritable is not None:
        unsettled(ledger.unwritable)
        left = False
    if left:
        return _view_of_host(driver, places, unsettled, environment())
    node = with_lost_named(driver.observe(), places, remember=not ledger.read_only)
    if not ledger.read_only and lost_or_back(node, lost, changing):
        return _view_of_host(driver, places, unsettled, environment())  # records it
    node = node_with_daemons(node, DaemonRecordStore(places.mps))
    held = with_overdrawn(with_lost_limits(allocations, node), node)
    view = NodeView(node, held, owned, changing, policy.on(node), withheld, requested, *limits)
    return replace(view, reservations=reservations, time=now) if reservations else view


def _care_needed(db: sqlite3.Connection, places: StateFolder, unsettled: Callable[[TrancheError], None]) -> bool:
    try:
        timeslices = os.path.isdir(places.timeslices) and _timeslices_left(db, places)
        return timeslices or care_needed(db, DaemonRecordStore(places.mps), time.time())
    except LedgerUnavailable as error:
        unsettled(error)
        return False


def _timeslices_left(db: sqlite3.Connection, places: StateFolder) -> bool:
    from tranche.node.execution.timeslices import TimesliceStore  # rarely needed

    return bool(TimesliceStore(places).left(register.allocations(db), time.time()))


def _being_made(db: sqlite3.Connection) -> frozenset[InstanceKey]:
    if not records.open_plans(db):
        return frozenset()
    from tranche.node.store import journal  # knows every step: slow to import, rarely needed

    return journal.being_made(journal.running_plans(db))


def _view_of_host(
    driver: NvmlDriver, places: StateFolder, unsettled: Callable[[TrancheError], None], environment: Mapping[str, str]
) -> NodeView:
    from tranche.node.host import Host  # slow to import, and only needed to clear

    host = Host(driver, places.state_dir, environment=environment)
    try:
        return host.look(unsettled)
    finally:
        host.close()
