"""The ledger's events: one function for each kind writes it with its data, message and cause.

Every function takes the connection of an open ledger transaction; `time` is seconds since the epoch. Read-only commands write no
event and start faster without the event types, so each function imports its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from typing import TYPE_CHECKING

from tranche.core.allocation import Allocation, Cordon
from tranche.core.errors import TrancheError
from tranche.core.keeper import Actor, ProcessKeeper
from tranche.core.reservation import Reservation
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.core.state import GpuState
from tranche.core.user_quota import UserQuota
from tranche.planning.steps import Step

if TYPE_CHECKING:
    from tranche.core.events import Event, EventData

_KEPT = 10_000
_COLUMNS = "position, time, kind, gpu_uuid, allocation_id, message, cause, data"


def change_begun(db: sqlite3.Connection, time: float, plan_id: str, purpose: str, actor: Actor | None = None) -> None:
    """A declared change was decided."""
    from tranche.core.events import ChangeBegun

    _write(db, time, ChangeBegun(plan_id, purpose, actor), purpose + _told(actor))


def step_done(
    db: sqlite3.Connection, time: float, plan_id: str, step: Step, gpu: GpuState, *, allocation_id: str
) -> None:
    """A step was carried out."""
    from tranche.core.events import StepDone

    message = f"{gpu.label}: {step}"
    cause = _newest(db, _BEGIN, plan_id)
    _write(db, time, StepDone(plan_id, step.to_dict()), message, cause, gpu_uuid=gpu.uuid, allocation_id=allocation_id)


def granted(
    db: sqlite3.Connection, time: float, allocation: Allocation, *, plan_id: str, waiter_id: str, note: str
) -> None:
    """A request got its share; `note` says how."""
    from tranche.core.events import ShareGranted
    from tranche.node.store.register import owner_of

    data = ShareGranted(plan_id, waiter_id, allocation.request, allocation.grants, owner_of(allocation.keeper))
    _write(db, time, data, f"{allocation.request}: {note}", allocation_id=allocation.id)


def cancelled(db: sqlite3.Connection, time: float, waiter_id: str, actor: Actor | None = None) -> None:
    """A request was removed from the queue."""
    from tranche.core.events import RequestCancelled

    message = f"waiting request {waiter_id} was cancelled{_told(actor)}"
    _write(db, time, RequestCancelled(waiter_id, actor), message)


def kept(db: sqlite3.Connection, time: float, allocation_id: str, keeper: ProcessKeeper) -> None:
    """Processes that an allocation's command left, or may have left, keep the share."""
    from tranche.core.events import ShareKept

    many = len(keeper.pids) > 1
    if keeper.suspected:
        which = f"which it may have started (only root can check), {'keep' if many else 'keeps'} the share"
    else:
        which = f"which it started, {'keep' if many else 'keeps'} the share"
    message = f"its command has ended; {keeper}, {which}"
    data = ShareKept(keeper.pids, keeper.suspected)
    _write(db, time, data, message, _newest(db, _GRANT, allocation_id), allocation_id=allocation_id)


def held_twice(db: sqlite3.Connection, time: float, allocation: Allocation, error: TrancheError) -> None:
    """An allocation was not added, because another one holds its devices."""
    from tranche.core.events import HeldTwice

    message = f"{allocation.keeper} was given a device that another share holds: {error.message}"
    _write(db, time, HeldTwice(allocation.keeper, allocation.grants), message)


def release_begun(
    db: sqlite3.Connection, time: float, allocation_id: str, pids: Collection[int], actor: Actor | None
) -> None:
    """An actor takes back a share from processes that run in it."""
    from tranche.core.events import ReleaseBegun

    message = f"release begun: ending pid {', '.join(map(str, pids))}{_told(actor)}"
    data = ReleaseBegun(tuple(pids), actor)
    _write(db, time, data, message, _newest(db, _GRANT, allocation_id), allocation_id=allocation_id)


def released(db: sqlite3.Connection, time: float, allocation_id: str, why: str, actor: Actor | None = None) -> None:
    """A share was given back; its cause is the begun release, if any, else the grant."""
    from tranche.core.events import ShareReleased

    cause = _newest(db, _GRANT_OR_RELEASE, allocation_id)
    _write(db, time, ShareReleased(why, actor), why + _told(actor), cause, allocation_id=allocation_id)


def limits_lost(db: sqlite3.Connection, time: float, allocation: Allocation, *, changed: str | None) -> None:
    """The daemon that kept an allocation's limits died, or its limits were changed; `changed` says which."""
    from tranche.core.events import LimitsLost

    message = "the MPS daemon of its device has died, so nothing limits its memory"
    if changed is not None:
        message = f"the limits of its device's MPS daemon were changed{changed}: Tranche now counts it as unlimited"
    data = LimitsLost(allocation.grants)
    _write(db, time, data, message, _newest(db, _GRANT, allocation.id), allocation_id=allocation.id)


def limit_exceeded(db: sqlite3.Connection, time: float, allocation: Allocation) -> None:
    """An allocation's processes together use more memory than it was given."""
    from tranche.core.events import LimitExceeded

    message = "its processes use more memory than it was granted: nothing limits them"
    data = LimitExceeded(allocation.grants)
    _write(db, time, data, message, _newest(db, _GRANT, allocation.id), allocation_id=allocation.id)


def sharing_refused(db: sqlite3.Connection, time: float, sharing: Sharing, why: str) -> None:
    """A sharing mechanism that this machine should have was refused."""
    from tranche.core.events import SharingRefused

    _write(db, time, SharingRefused(sharing, why), f"no new shares by {sharing.for_people}: {why}")


def daemon_fault(db: sqlite3.Connection, time: float, gpu_uuid: str, device_uuid: str, fault: str) -> int | None:
    """An MPS daemon stopped admitting clients or, without a fault, admits them again; returns the event's position."""
    from tranche.core.events import DaemonFault, DaemonRecovered

    if not fault:
        message = f"the MPS daemon of {device_uuid} admits clients again"
        return _write(db, time, DaemonRecovered(device_uuid), message, gpu_uuid=gpu_uuid)
    message = f"the MPS daemon of {device_uuid} admits no clients: {fault}"
    return _write(db, time, DaemonFault(device_uuid, fault), message, gpu_uuid=gpu_uuid)


def server_ended(db: sqlite3.Connection, time: float, allocation: Allocation, pid: int) -> None:
    """The MPS server of an allocation's device ended while programs used it; its daemon lives on."""
    from tranche.core.events import ServerEnded

    message = f"the MPS server of the share's device, process {pid}, was killed or shut down: programs that were using it fail"
    _write(db, time, ServerEnded(pid), message, _newest(db, _GRANT, allocation.id), allocation_id=allocation.id)


def fault_shared(
    db: sqlite3.Connection, time: float, allocation: Allocation, device_uuid: str, cause: int | None
) -> None:
    """A fatal fault hit the programs of an allocation. It may be a neighbour's: MPS does not say which program caused it."""
    from tranche.core.events import FaultShared

    message = (
        "a fatal fault in one program has ended the CUDA contexts of all programs that share the device through MPS"
    )
    _write(db, time, FaultShared(device_uuid), f"{message} {device_uuid}", cause, allocation_id=allocation.id)


def undone(db: sqlite3.Connection, time: float, plan_id: str, error: TrancheError, *, allocation_id: str) -> None:
    """A plan failed and was undone."""
    from tranche.core.events import PlanUndone

    data = PlanUndone(plan_id, error.reason, error.gpu_uuid)
    _write(db, time, data, str(error), _newest(db, _BEGIN, plan_id), allocation_id=allocation_id)


def undo_incomplete(
    db: sqlite3.Connection, time: float, plan_id: str, error: TrancheError, *, allocation_id: str
) -> None:
    """Something could not be restored."""
    from tranche.core.events import UndoIncomplete

    data = UndoIncomplete(plan_id, error.reason)
    _write(db, time, data, error.message, _newest(db, _BEGIN, plan_id), allocation_id=allocation_id)


def recovered(db: sqlite3.Connection, time: float, plan_id: str, purpose: str, *, allocation_id: str) -> None:
    """An interrupted plan was undone."""
    from tranche.core.events import PlanRecovered

    message = f"'{purpose}' was interrupted and has been undone"
    _write(
        db, time, PlanRecovered(plan_id, purpose), message, _newest(db, _BEGIN, plan_id), allocation_id=allocation_id
    )


def boot_ended(db: sqlite3.Connection, time: float, boot_id: str, asked: str, error: TrancheError | None) -> None:
    """The cut at boot ended; `error` says why it failed."""
    from tranche.core.events import BootEnded

    if error is None:
        message = f"at boot: the GPUs are partitioned as {asked} specifies"
    else:
        message = f"at boot: {error.message}" + (f" ({error.hint})" if error.hint else "")
    _write(db, time, BootEnded(boot_id, asked, "" if error is None else error.reason), message)


def last_boot(db: sqlite3.Connection, boot_id: str) -> Event | None:
    """How the cut at that boot ended; None when none did, or its event was dropped since."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM events WHERE kind = 'BootEnded' AND json_extract(data, '$.bootId') = ? "
        "ORDER BY position DESC LIMIT 1",
        (boot_id,),
    ).fetchone()
    return None if row is None else _event(*row)


def gpu_lost(db: sqlite3.Connection, time: float, gpu: GpuState) -> None:
    """The driver has lost a GPU, or has it again."""
    from tranche.core.events import GpuLost, GpuRecovered

    if gpu.lost:
        _write(db, time, GpuLost(), f"{gpu.label}: the driver has lost it", gpu_uuid=gpu.uuid)
    else:
        cause = _newest(db, _LOSS, gpu.uuid)
        _write(db, time, GpuRecovered(), f"{gpu.label}: the driver can reach it again", cause, gpu_uuid=gpu.uuid)


def policy_changed(db: sqlite3.Connection, time: float, gpu_uuid: str, what: str, use: GpuPolicy | None) -> None:
    """The administrator set how a GPU may be shared, or all others (empty UUID); `what` names them in the message."""
    from tranche.core.events import PolicyChanged

    message = f"{what}: " + ("sharing policy removed" if use is None else f"sharing={use}")
    _write(db, time, PolicyChanged(gpu_uuid, None if use is None else str(use)), message, gpu_uuid=gpu_uuid)


def quota_changed(db: sqlite3.Connection, time: float, user: str, quota: UserQuota | None) -> None:
    """The administrator set the quota of a user by name, of a group (`@` and its name), or of everyone ("")."""
    from tranche.core.events import QuotaChanged

    message = f"{user or 'all users'}: {'no quota' if quota is None else quota}"
    _write(db, time, QuotaChanged(user, *(quota or UserQuota())), message)


def fence_changed(db: sqlite3.Connection, time: float, exempt: frozenset[int] | None) -> None:
    """The administrator put up the fence, which exempts these users, or took it down (None)."""
    from tranche.core.events import FenceChanged

    uids = None if exempt is None else tuple(sorted(exempt))
    _write(db, time, FenceChanged(uids), "the fence is off" if uids is None else "the fence is on")


def knows_fence(db: sqlite3.Connection) -> bool:
    """Whether an event of this ledger tells of a fence."""
    return db.execute("SELECT 1 FROM events WHERE kind = 'FenceChanged'").fetchone() is not None


def time_extended(db: sqlite3.Connection, time: float, allocation_id: str, time_limit: int) -> None:
    """The time limit of a running command was extended to so many seconds."""
    from tranche.core.events import TimeExtended
    from tranche.core.quantity import format_duration

    message = f"the time limit is now {format_duration(time_limit)}"
    _write(db, time, TimeExtended(time_limit), message, allocation_id=allocation_id)


def preempted(db: sqlite3.Connection, time: float, allocation_id: str, waiter_id: str) -> None:
    """A preemptible command is told to end for a waiting request."""
    from tranche.core.events import SharePreempted

    message = f"preempted: request {waiter_id} needs its share"
    _write(db, time, SharePreempted(waiter_id), message, allocation_id=allocation_id)


def cordoned(db: sqlite3.Connection, gpu: GpuState, word: Cordon, actor: Actor | None) -> None:
    """An administrator cordoned a GPU."""
    from tranche.core.events import GpuCordoned

    data = GpuCordoned(word.user, word.reason, actor)
    _write(db, word.since, data, f"{gpu.label}: {word.why}{_told(actor)}", gpu_uuid=gpu.uuid)


def uncordoned(db: sqlite3.Connection, time: float, gpu: GpuState, user: str, actor: Actor | None) -> None:
    """An administrator removed a GPU's cordon."""
    from tranche.core.events import GpuUncordoned

    message = f"{gpu.label}: uncordoned by {user}{_told(actor)}"
    _write(db, time, GpuUncordoned(user, actor), message, _newest(db, _CORDON, gpu.uuid), gpu_uuid=gpu.uuid)


def reserved(db: sqlite3.Connection, time: float, new: Reservation, gpus: str) -> None:
    """An administrator reserved GPUs, named `gpus` in the message."""
    from tranche.core.events import ReservationMade

    data = ReservationMade(new.id, new.gpu_uuids, new.begins, new.ends, new.names, new.user)
    _write(db, time, data, f"{gpus} {new} by {new.user}: reservation {new.id}")


def reservation_ended(db: sqlite3.Connection, time: float, reservation_id: str, why: str) -> None:
    """A reservation closes no GPU any more; `why` is a sentence."""
    from tranche.core.events import ReservationEnded

    cause = _newest(db, _RESERVATION, reservation_id)
    _write(db, time, ReservationEnded(reservation_id, why), f"reservation {reservation_id} has ended: {why}", cause)


def events(db: sqlite3.Connection, *, after: int = 0, last: int | None = None) -> tuple[Event, ...]:
    """Events after a position, oldest first; `last` limits them to that many of the newest."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM events WHERE position > ? ORDER BY position DESC LIMIT ?",
        (after, -1 if last is None else min(last, _KEPT)),
    ).fetchall()
    return tuple(_event(*row) for row in reversed(rows))


def _event(
    position: int,
    time: float,
    name: str,
    gpu_uuid: str,
    allocation_id: str,
    message: str,
    cause: int | None,
    text: str | None,
) -> Event:
    """The event of a row with fields in the order of _COLUMNS."""
    from tranche.core.events import Event, event_data_from_dict

    data = None if text is None else event_data_from_dict(name, json.loads(text))
    return Event(position, time, name, gpu_uuid, allocation_id, message, cause, data)


def _write(
    db: sqlite3.Connection,
    time: float,
    data: EventData,
    message: str,
    cause: int | None = None,
    *,
    gpu_uuid: str = "",
    allocation_id: str = "",
) -> int | None:
    """Record an event; returns its position. Drops the oldest events beyond 10,000."""
    from tranche.core.events import event_data_to_dict, event_name

    cursor = db.execute(
        "INSERT INTO events (time, kind, gpu_uuid, allocation_id, message, cause, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (time, event_name(data), gpu_uuid, allocation_id, message, cause, json.dumps(event_data_to_dict(data))),
    )
    db.execute("DELETE FROM events WHERE position <= ?", ((cursor.lastrowid or 0) - _KEPT,))
    return cursor.lastrowid


# Which events may have caused another.
_BEGIN = "kind = 'ChangeBegun' AND json_extract(data, '$.planId') = ?"  # none for a request's plan
_GRANT = "kind = 'Granted' AND allocation_id = ?"
_GRANT_OR_RELEASE = "kind IN ('Granted', 'ReleaseBegun') AND allocation_id = ?"
_LOSS = "kind = 'GpuLost' AND gpu_uuid = ?"
_RESERVATION = "kind = 'Reserved' AND json_extract(data, '$.reservationId') = ?"
_CORDON = "kind = 'Cordoned' AND gpu_uuid = ?"


def _newest(db: sqlite3.Connection, which: str, name: str) -> int | None:
    """The position of the newest of those events."""
    position: int | None = db.execute(f"SELECT max(position) FROM events WHERE {which}", (name,)).fetchone()[0]
    return position


def _told(actor: Actor | None) -> str:
    return "" if actor is None else f" ({actor})"
