"""Gives a running command more time than its limit."""

from __future__ import annotations

from dataclasses import replace

from tranche.core.errors import AllocationUnknown, NoRoom, PermissionDenied, UsageError
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import format_duration
from tranche.local.queue import as_asked
from tranche.local.wakeup_pipe import attending
from tranche.node.host import Host
from tranche.node.store import chronicle, register
from tranche.planning.decide.queue import reserved_for
from tranche.planning.decide.quota import refuse_too_long

_PATIENCE_SECONDS = 30.0


def extend(host: Host, allocation_id: str, seconds: int, uid: int) -> str:
    """Add the seconds to the time limit of a running command, for user `uid`; returns the result in words.

    Raises AllocationUnknown; UsageError if there is no time limit, or its time is over; PermissionDenied if it is another user's;
    NoRoom if a request waits for one of its GPUs. Root may extend every command, whoever waits.
    """
    with host.deciding(_PATIENCE_SECONDS) as (view, queue):
        found = next((each for each in view.allocations if each.id == allocation_id), None)
        if found is None:
            raise AllocationUnknown(f"no allocation {allocation_id}", hint="list the allocations with: tranche ps")
        before = found.request.time_limit
        if uid and not (isinstance(found.keeper, ProcessKeeper) and found.keeper.uid == uid):
            raise PermissionDenied(
                f"allocation {found.id} belongs to another user", hint="ask its user, or an administrator"
            )
        if before is None:
            raise UsageError(f"allocation {found.id} has no time limit", hint="it lasts as long as its command")
        if host.clock() >= found.created + before:
            raise UsageError(
                f"the time limit of allocation {found.id} is over", hint="run the command again with a longer --time"
            )
        waiters = as_asked(attending(host.places, queue, host.clock()))
        reserved = reserved_for(view, waiters)
        waiting = next((reserved[each.gpu_uuid] for each in found.grants if each.gpu_uuid in reserved), None)
        if uid and waiting is not None:
            raise NoRoom(
                f"request {waiting} waits for a GPU of allocation {found.id}", hint="ask an administrator to extend it"
            )
        after = before + seconds
        if uid:
            refuse_too_long(replace(view, asker=uid), replace(found.request, time_limit=after))
        with host.ledger.write() as db:
            register.set_request(db, found.id, replace(found.request, time_limit=after))
            chronicle.time_extended(db, host.clock(), found.id, after)
    return f"{found.id}: the time limit is {format_duration(after)} now; it was {format_duration(before)}"
