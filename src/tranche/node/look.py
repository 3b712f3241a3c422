"""One look at a machine, for those who only want to see it."""

from __future__ import annotations

from tranche.core.allocation import NodeView
from tranche.hardware.driver import Driver
from tranche.node import records, register
from tranche.node.ledger import Ledger
from tranche.node.leftovers import anything_left
from tranche.node.session import Places


def look(driver: Driver, places: Places) -> NodeView:
    """The machine as it is now, after whatever a dead process left behind was cleared by whoever may."""
    ledger = Ledger(places.ledger, read_only=not places.writable)
    try:
        with ledger.read() as db:
            unsettled = not ledger.read_only and anything_left(db, places)
            known = register.allocations(db), records.owned_instances(db), records.changing_gpus(db)
    finally:
        ledger.close()
    return _view_of_host(driver, places) if unsettled else NodeView(driver.observe(), *known)


def _view_of_host(driver: Driver, places: Places) -> NodeView:
    from tranche.node.host import Host  # what clears is slow to import, and seldom needed

    host = Host(driver, places.state_dir)
    try:
        return host.view()
    finally:
        host.close()
