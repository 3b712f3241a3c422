"""What the ledger holds beside the register of holders, as typed values, such as owned instances and waiters.

Every function takes the connection of an open ledger transaction, so a caller can combine several in one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tranche.core.allocation import Cordon
from tranche.core.errors import PermissionDenied
from tranche.core.grid import Placement
from tranche.core.idle import LONGEST_GAP_SECONDS, IdlePeriod, IdlePolicy
from tranche.core.profile import parse_profile
from tranche.core.request import Request
from tranche.core.reservation import Reservation
from tranche.core.sharing import GpuPolicy, Timeslice
from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import InstanceKey
from tranche.core.usage import DayUsage
from tranche.core.user_quota import UserQuota
from tranche.core.wire import request_from_dict, request_to_dict


class PlanStatus(StrEnum):
    """RUNNING, or UNDOING after a failure, until the plan is DONE or UNDONE; an open plan of a dead session was interrupted."""

    RUNNING = "running"
    UNDOING = "undoing"
    DONE = "done"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """An unfinished plan; `session` names the process that carries it out, `allocation_id` is empty for a layout."""

    id: str
    status: PlanStatus
    purpose: str
    session: str
    allocation_id: str


class Waiter(NamedTuple):
    """A request waiting for room; lower positions came first. `created` is seconds since the epoch, `uid` its user's."""

    position: int
    id: str
    request: Request
    created: float
    command: str
    pid: int
    uid: int


def owned_instances(db: sqlite3.Connection) -> frozenset[InstanceKey]:
    """The slots of the instances that Tranche made."""
    return _instances(db.execute("SELECT gpu_uuid, profile, start, size FROM owned_instances"))


def _instances(rows: Iterable[Sequence[Any]]) -> frozenset[InstanceKey]:
    return frozenset(InstanceKey(row[0], parse_profile(row[1]), Placement(row[2], row[3])) for row in rows)


def requested_instances(db: sqlite3.Connection) -> frozenset[InstanceKey]:
    """Tranche's instances made for a request and not wanted by a layout since."""
    return _instances(db.execute("SELECT gpu_uuid, profile, start, size FROM owned_instances WHERE requested"))


def own_instance(db: sqlite3.Connection, key: InstanceKey, *, requested: bool) -> None:
    """Record that Tranche made the instance, and whether for a request."""
    db.execute("INSERT OR IGNORE INTO owned_instances VALUES (?, ?, ?, ?, ?)", (*_key_row(key), requested))


def want_instances(db: sqlite3.Connection, gpu_uuids: Iterable[str]) -> None:
    """Record that a layout wants all of Tranche's instances on these GPUs, including those made for requests."""
    db.executemany("UPDATE owned_instances SET requested = 0 WHERE gpu_uuid = ?", [(uuid,) for uuid in gpu_uuids])


def disown_instances(db: sqlite3.Connection, keys: Iterable[InstanceKey]) -> None:
    """Forget instances that are gone."""
    db.executemany(
        "DELETE FROM owned_instances WHERE gpu_uuid = ? AND profile = ? AND start = ? AND size = ?",
        [_key_row(key) for key in keys],
    )


def _key_row(key: InstanceKey) -> tuple[str, str, int, int]:
    return (key.gpu_uuid, str(key.profile), key.placement.start, key.placement.size)


def changing_gpus(db: sqlite3.Connection) -> frozenset[str]:
    """The GPUs that a declared layout is changing."""
    return frozenset(row[0] for row in db.execute("SELECT gpu_uuid FROM changing_gpus"))


_EVERY_GPU = ""
"""Stands for all GPUs without a policy of their own."""


def sharing_policy(db: sqlite3.Connection) -> SharingPolicy:
    """The administrator's policy on how GPUs may be shared."""
    words = {row[0]: GpuPolicy(row[1]) for row in db.execute("SELECT gpu_uuid, use FROM gpu_uses ORDER BY gpu_uuid")}
    return SharingPolicy(words.pop(_EVERY_GPU, None), words)


def set_sharing_policy(db: sqlite3.Connection, policy: SharingPolicy) -> None:
    """Rewrite the whole policy."""
    db.execute("DELETE FROM gpu_uses")
    words = dict(policy.gpus) if policy.every is None else {_EVERY_GPU: policy.every, **policy.gpus}
    db.executemany("INSERT INTO gpu_uses VALUES (?, ?)", words.items())


def timeslices(db: sqlite3.Connection) -> dict[str, Timeslice]:
    """The lengths of time slices that the administrator wants, by GPU, or EVERY_GPU."""
    return {uuid: Timeslice(length) for uuid, length in db.execute("SELECT * FROM timeslices ORDER BY gpu_uuid")}


def set_timeslices(db: sqlite3.Connection, lengths: Mapping[str, Timeslice]) -> None:
    """Rewrite them."""
    db.execute("DELETE FROM timeslices")
    db.executemany("INSERT INTO timeslices VALUES (?, ?)", lengths.items())


def user_quotas(db: sqlite3.Connection) -> dict[str, UserQuota]:
    """The quotas of users, by uid as text, and of groups."""
    return {uid: UserQuota(*rest) for uid, *rest in db.execute("SELECT * FROM user_quotas ORDER BY uid")}


def set_user_quota(db: sqlite3.Connection, uid: str, quota: UserQuota | None) -> None:
    """Replace the quota of a user; None removes it."""
    db.execute("DELETE FROM user_quotas WHERE uid = ?", (uid,))
    if quota is not None:
        db.execute("INSERT INTO user_quotas VALUES (?, ?, ?, ?, ?, ?, ?)", (uid, *quota))


def fence(db: sqlite3.Connection) -> frozenset[int] | None:
    """The users whose sessions may open GPUs although the machine has the fence; None if it has no fence."""
    return frozenset(row[0] for row in db.execute("SELECT uid FROM fence")) or None


def set_fence(db: sqlite3.Connection, exempt: frozenset[int] | None) -> None:
    """Put up the fence, which exempts root and these users, or take it down."""
    db.execute("DELETE FROM fence")
    if exempt is not None:
        db.executemany("INSERT INTO fence VALUES (?)", [(uid,) for uid in sorted(exempt | {0})])


def idle_policy(db: sqlite3.Connection) -> IdlePolicy:
    """What the administrator wants of idle shares."""
    row = db.execute("SELECT after, ends FROM idle_policy").fetchone()
    return IdlePolicy() if row is None else IdlePolicy(row[0], bool(row[1]))


def set_idle_policy(db: sqlite3.Connection, policy: IdlePolicy) -> None:
    """Replace that policy."""
    db.execute("DELETE FROM idle_policy")
    if policy != IdlePolicy():
        db.execute("INSERT INTO idle_policy VALUES (?, ?)", policy)


def preemption(db: sqlite3.Connection) -> bool:
    """Whether commands may be preemptible."""
    return db.execute("SELECT 1 FROM preemption").fetchone() is not None


def refuse_preemptible(db: sqlite3.Connection, request: Request) -> None:
    """PermissionDenied for a preemptible request, unless the administrator allows them."""
    if request.preemptible and not preemption(db):
        raise PermissionDenied(
            "this machine does not allow preemptible commands",
            hint="an administrator allows them with: tranche policy preemption --on",
        )


def set_preemption(db: sqlite3.Connection, *, allowed: bool) -> None:
    """Allow preemptible commands, or refuse new ones."""
    db.execute("DELETE FROM preemption")
    if allowed:
        db.execute("INSERT INTO preemption VALUES (1)")


def set_idle(db: sqlite3.Connection, allocation_id: str, period: IdlePeriod | None) -> None:
    """Record for how long a share has been idle; None if it is not."""
    db.execute("DELETE FROM idle WHERE allocation_id = ?", (allocation_id,))
    if period is not None:
        db.execute("INSERT INTO idle VALUES (?, ?, ?)", (allocation_id, *period))


def idle_shares(db: sqlite3.Connection, now: float) -> dict[str, int]:
    """The seconds for which shares have been idle at `now`, by allocation. Leaves out those that nobody has looked at since."""
    rows = db.execute("SELECT * FROM idle WHERE seen BETWEEN ? AND ?", (now - LONGEST_GAP_SECONDS, now))
    return {allocation_id: int(seen - since) for allocation_id, since, seen in rows}


def usage(db: sqlite3.Connection, since: int = 0) -> tuple[DayUsage, ...]:
    """What ended shares have used, by day and user, from that day on."""
    return tuple(DayUsage(*row) for row in db.execute("SELECT * FROM usage WHERE day >= ? ORDER BY day, uid", (since,)))


def add_usage(db: sqlite3.Connection, used: Iterable[DayUsage]) -> None:
    """Add the use of a share that ends."""
    db.executemany(
        "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (day, uid) DO UPDATE SET "
        "gpu_seconds = gpu_seconds + excluded.gpu_seconds, share_seconds = share_seconds + excluded.share_seconds, "
        "shares = shares + excluded.shares, preemptible_seconds = preemptible_seconds + excluded.preemptible_seconds",
        used,
    )


def cordons(db: sqlite3.Connection) -> tuple[Cordon, ...]:
    """The cordoned GPUs."""
    rows = db.execute("SELECT gpu_uuid, user, reason, since FROM cordons ORDER BY gpu_uuid")
    return tuple(Cordon(*row) for row in rows)


def set_cordon(db: sqlite3.Connection, word: Cordon) -> None:
    """Record a cordon, replacing an earlier one on that GPU."""
    db.execute("INSERT OR REPLACE INTO cordons VALUES (?, ?, ?, ?)", word)


def remove_cordon(db: sqlite3.Connection, gpu_uuid: str) -> bool:
    """Remove a GPU's cordon; returns whether there was one."""
    return db.execute("DELETE FROM cordons WHERE gpu_uuid = ?", (gpu_uuid,)).rowcount > 0


def reservations(db: sqlite3.Connection) -> tuple[Reservation, ...]:
    """The reservations, in the order of their beginnings."""
    rows = db.execute("SELECT * FROM reservations ORDER BY begins, id")
    return tuple(
        Reservation(id, tuple(json.loads(gpus)), begins, ends, tuple(json.loads(users)), names, user, bool(used))
        for id, gpus, begins, ends, users, names, user, used in rows
    )


def add_reservation(db: sqlite3.Connection, new: Reservation) -> None:
    """Record a new reservation."""
    row = (json.dumps(each) if isinstance(each, tuple) else each for each in new)
    db.execute("INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", tuple(row))


def use_reservations(db: sqlite3.Connection, used: Iterable[Reservation]) -> None:
    """Note that users that the reservations are for hold some of their GPUs."""
    db.executemany("UPDATE reservations SET used = 1 WHERE id = ?", [(each.id,) for each in used])


def remove_reservation(db: sqlite3.Connection, reservation_id: str) -> bool:
    """Remove a reservation; returns whether there was one."""
    return db.execute("DELETE FROM reservations WHERE id = ?", (reservation_id,)).rowcount > 0


def open_plans(db: sqlite3.Connection) -> tuple[OpenPlan, ...]:
    """Every open plan, oldest first, without its steps."""
    rows = db.execute(
        "SELECT id, status, purpose, session, allocation_id FROM plans WHERE status IN (?, ?) ORDER BY rowid",
        (PlanStatus.RUNNING, PlanStatus.UNDOING),
    )
    return tuple(OpenPlan(row[0], PlanStatus(row[1]), *row[2:]) for row in rows)


def add_waiter(
    db: sqlite3.Connection, waiter_id: str, request: Request, *, created: float, command: str, pid: int, uid: int
) -> None:
    """Put a request at the end of the queue."""
    db.execute(
        "INSERT INTO waiters (id, request, created, command, pid, uid) VALUES (?, ?, ?, ?, ?, ?)",
        (waiter_id, json.dumps(request_to_dict(request)), created, command, pid, uid),
    )


def restore_waiter(db: sqlite3.Connection, waiter: Waiter) -> None:
    """Put a request back into the queue at its old place."""
    db.execute(
        "INSERT OR IGNORE INTO waiters (position, id, request, created, command, pid, uid) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (waiter.position, waiter.id, json.dumps(request_to_dict(waiter.request)), *waiter[3:]),
    )


def remove_waiter(db: sqlite3.Connection, waiter_id: str) -> bool:
    """Remove a request from the queue; returns whether it was there."""
    return db.execute("DELETE FROM waiters WHERE id = ?", (waiter_id,)).rowcount > 0


def waiters(db: sqlite3.Connection) -> tuple[Waiter, ...]:
    """The queue, in order of arrival."""
    rows = db.execute("SELECT position, id, request, created, command, pid, uid FROM waiters ORDER BY position")
    return tuple(Waiter(place, id, request_from_dict(json.loads(text)), *rest) for place, id, text, *rest in rows)
