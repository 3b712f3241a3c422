"""Whose a share is: its pod's or claim's namespace, or the user of its process; when it is granted, and while it lives."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable

from tranche.core.allocation import Allocation
from tranche.core.keeper import Keeper, ProcessKeeper
from tranche.core.share_owner import OwnerKind, ShareOwner
from tranche.node.state import session
from tranche.node.store.records import Waiter


def owner_of(keeper: Keeper) -> ShareOwner | None:
    """The owner; None where nobody knows yet, as of a pod that is being admitted.

    A process's share is granted by its own command, so that this process's user is the share's.
    """
    if isinstance(keeper, ProcessKeeper):
        return ShareOwner(OwnerKind.USER, user_name(os.getuid()))
    return ShareOwner(OwnerKind.NAMESPACE, keeper.namespace) if keeper.namespace else None


def process_owners(allocations: Iterable[Allocation], queue: Iterable[Waiter] = ()) -> dict[str, ShareOwner]:
    """The users of the processes that keep allocations, and of those that wait, by the ids of these; only what is certain.

    A process is known by its pid and its start. Who waits has no start written down, but a lock that only a living process holds.
    """
    here = session.pid_namespace()
    if not session.sees_processes_of(here):
        return {}
    found = {}
    for each in allocations:
        keeper = each.keeper
        if isinstance(keeper, ProcessKeeper) and keeper.pid and keeper.namespace in (0, here):
            found[each.id] = _user_of(keeper.pid, keeper.started)
    found |= {each.id: _user_of(each.pid) for each in queue}
    return {id: ShareOwner(OwnerKind.USER, user) for id, user in found.items() if user}


def _user_of(pid: int, started: int | None = None) -> str:
    from tranche.node.processes.processes import process_at  # seldom needed by listings

    process = process_at(pid)
    return user_name(process.uid) if process is not None and started in (None, process.started) else ""


def user_name(uid: int) -> str:
    """The name of a user; his number where the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
