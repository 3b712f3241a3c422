"""Ids as people type them: a unique beginning is enough."""

from __future__ import annotations

from tranche.core.errors import AllocationUnknown
from tranche.node.host import Host
from tranche.node.store import register


def full_id(host: Host, typed: str) -> str:
    """The id of the allocation or waiting request that begins with `typed`; `typed` itself if there is none.

    AllocationUnknown if several begin with it.
    """
    with host.ledger.read() as db:
        ids = [each.id for each in register.allocations(db)] + [each.id for each in host.waiters()]
    if typed in ids:
        return typed
    found = sorted(each for each in ids if typed and each.startswith(typed))
    if len(found) > 1:
        raise AllocationUnknown(f"several ids begin with {typed}: {', '.join(found)}", hint="type more of the id")
    return found[0] if found else typed
