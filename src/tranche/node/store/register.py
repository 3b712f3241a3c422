"""The register of this machine: who holds what of its GPUs. It is the only source for who holds a slice.

Every function takes the connection of an open ledger transaction, so a caller can combine several in one.

Allocations and their grants say who holds what; all other rows follow from them. If rows contradict each other, because the
ledger was edited or has lost data, they are rewritten.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, assert_never

from tranche.core.allocation import Allocation, ComputeSlice, FractionalShare, Grant, Phase, Slice, WholeGpu
from tranche.core.keeper import ClaimKeeper, Keeper, OwnerKind, PlacedPodKeeper, PodKeeper, ProcessKeeper, ShareOwner
from tranche.core.request import Request
from tranche.core.sharing import ALL_COMPUTE, Sharing
from tranche.core.state import InstanceKey
from tranche.core.user_quota import GROUP, UserQuota, is_fair, is_group
from tranche.core.wire import (
    grant_from_dict,
    grant_to_dict,
    keeper_from_dict,
    keeper_to_dict,
    request_from_dict,
    request_to_dict,
)
from tranche.node.locks.locks import is_held
from tranche.node.state.session import StateFolder, pid_namespace, process_lives, sees_processes_of
from tranche.node.store import records
from tranche.node.store.schema import ADOPT_SHARES, WHOLE_GPU_UNITS

if TYPE_CHECKING:
    from tranche.planning.decide.fairness import FairOrder

_REMEMBERED = 1024


def add_allocation(
    db: sqlite3.Connection, allocation: Allocation, memory: Mapping[WholeGpu | Slice, int] | None = None
) -> None:
    """Record an allocation and take its grants; `memory` gives the bytes of each device with granted parts.

    Raises sqlite3.IntegrityError when some of it is already held or an account would be overdrawn: the last defence against
    giving a device twice.
    """
    db.execute(
        "INSERT INTO allocations VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            allocation.id,
            json.dumps(request_to_dict(allocation.request)),
            allocation.phase,
            allocation.created,
            allocation.command,
            json.dumps(keeper_to_dict(allocation.keeper)),
            allocation.memory,
            allocation.gpu_millionths,
        ),
    )
    for ordinal, grant in enumerate(allocation.grants):
        db.execute("INSERT INTO grants VALUES (?, ?, ?)", (allocation.id, ordinal, json.dumps(grant_to_dict(grant))))
        _take(db, allocation.id, grant, memory or {})


def _take(db: sqlite3.Connection, allocation_id: str, grant: Grant, memory: Mapping[WholeGpu | Slice, int]) -> None:
    match grant:
        case WholeGpu() | Slice():
            db.executemany(
                "INSERT INTO units VALUES (?, ?, ?, NULL)",
                [(grant.gpu_uuid, unit, allocation_id) for unit in units_of(grant)],
            )
        case ComputeSlice(inside, _, start, size):
            device = _device(db, inside, "divided", 0, ALL_COMPUTE)
            db.executemany(
                "INSERT INTO compute_units VALUES (?, ?, ?)",
                [(device, unit, allocation_id) for unit in range(start, start + size)],
            )
        case FractionalShare():
            device = _device(db, grant.device, "shared", memory[grant.device], ALL_COMPUTE, grant.sharing)
            row = (device, allocation_id, grant.memory, grant.compute or 0, grant.sharing)
            db.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)
        case _:
            assert_never(grant)


def _device(
    db: sqlite3.Connection, of: WholeGpu | Slice, use: str, memory: int, compute: int, sharing: Sharing | None = None
) -> str:
    """The row of a device with several holders; makes it, with its units, when it is missing."""
    device_id = device_name(of)
    if db.execute("SELECT 1 FROM devices WHERE id = ?", (device_id,)).fetchone() is None:
        db.execute(
            "INSERT INTO devices (id, gpu_uuid, use, memory, compute, sharing) VALUES (?, ?, ?, ?, ?, ?)",
            (device_id, of.gpu_uuid, use, memory, compute, sharing),
        )
        db.executemany(
            "INSERT INTO units VALUES (?, ?, NULL, ?)", [(of.gpu_uuid, unit, device_id) for unit in units_of(of)]
        )
    return device_id


def device_name(of: WholeGpu | Slice) -> str:
    """The name of a device in the register."""
    return of.gpu_uuid if isinstance(of, WholeGpu) else str(of.slot)


def units_of(of: WholeGpu | Slice) -> range:
    """The units of the GPU that belong to the device."""
    if isinstance(of, WholeGpu):
        return WHOLE_GPU_UNITS
    return range(of.placement.start, of.placement.start + of.placement.size)


def is_new(db: sqlite3.Connection) -> bool:
    """Whether the ledger is new, so that what already runs is not in it."""
    return db.execute("SELECT 1 FROM chores WHERE name = ?", (ADOPT_SHARES,)).fetchone() is not None


def chore_done(db: sqlite3.Connection, name: str) -> None:
    """Note that a chore is done."""
    db.execute("DELETE FROM chores WHERE name = ?", (name,))


_GPU_RETURNS = "gpu-returns "
"""A chore for each lost GPU, by its UUID: to say so when the driver has it again."""


def lost_gpus(db: sqlite3.Connection) -> frozenset[str]:
    """The UUIDs of the GPUs whose loss was recorded last, rather than their return."""
    names = db.execute("SELECT name FROM chores WHERE name LIKE ?", (f"{_GPU_RETURNS}%",))
    return frozenset(name.removeprefix(_GPU_RETURNS) for (name,) in names)


def set_lost(db: sqlite3.Connection, gpu_uuid: str, *, lost: bool) -> None:
    """Record that a GPU was lost, or has returned."""
    if lost:
        db.execute("INSERT OR IGNORE INTO chores VALUES (?)", (_GPU_RETURNS + gpu_uuid,))
    else:
        chore_done(db, _GPU_RETURNS + gpu_uuid)


def activate_allocation(db: sqlite3.Connection, allocation_id: str) -> None:
    """Mark an allocation as granted."""
    db.execute("UPDATE allocations SET phase = ? WHERE id = ?", (Phase.ACTIVE, allocation_id))


def set_keeper(db: sqlite3.Connection, allocation_id: str, keeper: Keeper) -> None:
    """Record who keeps an allocation."""
    db.execute("UPDATE allocations SET keeper = ? WHERE id = ?", (json.dumps(keeper_to_dict(keeper)), allocation_id))


def set_request(db: sqlite3.Connection, allocation_id: str, request: Request) -> None:
    """Replace an allocation's request, which asks for the same share."""
    db.execute("UPDATE allocations SET request = ? WHERE id = ?", (json.dumps(request_to_dict(request)), allocation_id))


def set_grants(db: sqlite3.Connection, allocation_id: str, grants: Sequence[Grant]) -> None:
    """Update an allocation's grants. What each takes of its device stays unchanged."""
    db.executemany(
        "UPDATE grants SET grant = ? WHERE allocation_id = ? AND ordinal = ?",
        [(json.dumps(grant_to_dict(grant)), allocation_id, ordinal) for ordinal, grant in enumerate(grants)],
    )


def remove_allocation(db: sqlite3.Connection, allocation_id: str) -> bool:
    """Forget an allocation and free its grants; returns whether it existed."""
    return db.execute("DELETE FROM allocations WHERE id = ?", (allocation_id,)).rowcount > 0


def allocations(db: sqlite3.Connection) -> tuple[Allocation, ...]:
    """Every allocation, oldest first."""
    grants: dict[str, list[Grant]] = {}
    for allocation_id, grant in db.execute("SELECT allocation_id, grant FROM grants ORDER BY allocation_id, ordinal"):
        grants.setdefault(allocation_id, []).append(_grant(grant))
    rows = db.execute(
        "SELECT id, request, phase, created, command, keeper, memory, gpu_millionths FROM allocations ORDER BY created, id"
    )
    return tuple(
        Allocation(
            id=row[0],
            request=_request(row[1]),
            grants=tuple(grants.get(row[0], ())),
            phase=Phase(row[2]),
            created=row[3],
            command=row[4],
            keeper=_keeper(row[5]),
            memory=row[6],
            gpu_millionths=row[7],
        )
        for row in rows
    )


# An agent reads the whole register several times for each claim, and little of it has changed since.
@lru_cache(maxsize=_REMEMBERED)
def _request(text: str) -> Request:
    return request_from_dict(json.loads(text))


@lru_cache(maxsize=_REMEMBERED)
def _grant(text: str) -> Grant:
    return grant_from_dict(json.loads(text))


@lru_cache(maxsize=_REMEMBERED)
def _keeper(text: str) -> Keeper:
    return keeper_from_dict(json.loads(text))


_OWNERS = """
SELECT coalesce(units.allocation_id, parts.allocation_id, compute_units.allocation_id) AS owner
FROM units
LEFT JOIN parts ON parts.device_id = units.device_id
LEFT JOIN compute_units ON compute_units.device_id = units.device_id
WHERE units.gpu_uuid = ? AND units.unit >= ? AND units.unit < ? AND owner <> ? LIMIT 1
"""


def holder_of_room(db: sqlite3.Connection, slot: InstanceKey, *, but: str) -> str:
    """An allocation other than `but` that holds some of the slot's memory slices; "" when none does."""
    start = slot.placement.start
    return _owner(db, slot.gpu_uuid, start, start + slot.placement.size, but)


def holder_on_gpu(db: sqlite3.Connection, gpu_uuid: str, *, but: str) -> str:
    """An allocation other than `but` that holds some of the GPU; "" when none does."""
    return _owner(db, gpu_uuid, WHOLE_GPU_UNITS.start, WHOLE_GPU_UNITS.stop, but)


def _owner(db: sqlite3.Connection, gpu_uuid: str, start: int, end: int, but: str) -> str:
    row = db.execute(_OWNERS, (gpu_uuid, start, end, but)).fetchone()
    return "" if row is None else str(row[0])


_ROWS = """
SELECT 'units', gpu_uuid || ' ' || unit, coalesce(allocation_id, device_id) FROM units
UNION ALL SELECT 'devices', id, '' FROM devices
UNION ALL SELECT 'parts', device_id, allocation_id FROM parts
UNION ALL SELECT 'compute_units', device_id || ' ' || unit, allocation_id FROM compute_units
UNION ALL SELECT DISTINCT 'grants', allocation_id, '' FROM grants
"""

_UNBALANCED = """
SELECT id FROM devices WHERE
    memory_taken <> (SELECT coalesce(sum(memory), 0) FROM parts WHERE device_id = devices.id) OR
    holders <> (SELECT count(*) FROM parts WHERE device_id = devices.id)
        + (SELECT count(*) FROM compute_units WHERE device_id = devices.id)
"""

_LOST_PLANS = "SELECT gpu_uuid FROM changing_gpus WHERE plan_id NOT IN (SELECT id FROM plans)"


def contradictory_tables(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The tables with extra or missing rows, compared with the allocations' grants; none when the register is sound."""
    wanted = {row for allocation in allocations(db) for row in _rows_of(allocation)}
    found = {tuple(row) for row in db.execute(_ROWS)}
    tables = {row[0] for row in wanted ^ found}
    if db.execute(_UNBALANCED).fetchone() is not None:
        tables.add("devices")
    # A plan that still works on the GPU holds its lock.
    if any(not is_held(places.gpu_locks / f"{gpu_uuid}.lock") for (gpu_uuid,) in db.execute(_LOST_PLANS)):
        tables.add("changing_gpus")
    return tuple(sorted(tables))


def _rows_of(allocation: Allocation) -> Iterable[tuple[str, str, str]]:
    # An allocation without grants has lost them.
    yield "grants", allocation.id, ""
    for grant in allocation.grants:
        device, owner = _shared_device(grant), allocation.id
        if isinstance(grant, FractionalShare | ComputeSlice):
            owner = device_name(device)
            yield "devices", owner, ""
        for unit in units_of(device):
            yield "units", f"{grant.gpu_uuid} {unit}", owner
        if isinstance(grant, FractionalShare):
            yield "parts", owner, allocation.id
        elif isinstance(grant, ComputeSlice):
            for unit in range(grant.start, grant.start + grant.size):
                yield "compute_units", f"{owner} {unit}", allocation.id


def _shared_device(grant: Grant) -> WholeGpu | Slice:
    if isinstance(grant, FractionalShare):
        return grant.device
    return grant.inside if isinstance(grant, ComputeSlice) else grant


def grants_without_allocation(db: sqlite3.Connection) -> Mapping[str, tuple[Grant, ...]]:
    """The grants of missing allocations, by the allocation's id."""
    found: dict[str, tuple[Grant, ...]] = {}
    lost = "SELECT allocation_id, grant FROM grants WHERE allocation_id NOT IN (SELECT id FROM allocations)"
    for allocation_id, text in db.execute(f"{lost} ORDER BY allocation_id, ordinal"):
        found[allocation_id] = (*found.get(allocation_id, ()), grant_from_dict(json.loads(text)))
    return found


def clear(db: sqlite3.Connection, places: StateFolder) -> None:
    """Forget all holders, in a transaction that then rewrites them, and the changes of lost plans."""
    # Devices go first: then no trigger changes an account that does not balance.
    db.execute("PRAGMA defer_foreign_keys = ON")
    for table in ("devices", "parts", "compute_units", "units", "grants", "allocations"):
        db.execute(f"DELETE FROM {table}")
    over = [row for row in db.execute(_LOST_PLANS).fetchall() if not is_held(places.gpu_locks / f"{row[0]}.lock")]
    db.executemany("DELETE FROM changing_gpus WHERE gpu_uuid = ?", over)


def memory_of_devices(
    db: sqlite3.Connection, allocations: Iterable[Allocation], seen: Mapping[WholeGpu | Slice, int]
) -> dict[WholeGpu | Slice, int]:
    """The bytes of each device that the allocations have parts of: as recorded or seen, but at least the sum of their parts.

    A lost GPU shows no memory, yet the holders of its parts keep them.
    """
    written = dict(db.execute("SELECT id, memory FROM devices"))
    taken: dict[WholeGpu | Slice, int] = {}
    for grant in (grant for each in allocations for grant in each.grants if isinstance(grant, FractionalShare)):
        taken[grant.device] = taken.get(grant.device, 0) + grant.memory
    return {
        device: max(written.get(device_name(device), seen.get(device, 0)), memory) for device, memory in taken.items()
    }


# What dead processes left, found by probing a few file locks. `tranche.node.recovery.recovery` clears it.


def anything_left(db: sqlite3.Connection, places: StateFolder) -> bool:
    """Whether anything in the ledger belongs to a dead process."""
    return bool(interrupted_plans(db, places) or dead_allocations(db, places) or dead_waiters(db, places))


def interrupted_plans(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The open plans of dead processes, oldest first."""
    return tuple(each.id for each in records.open_plans(db) if not is_held(places.session(each.session)))


def dead_allocations(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The allocations of ended commands; processes that a command started may still keep its allocation.

    Leaves out allocations of open plans, which are cleared with their plan.
    """
    planned = {each.allocation_id for each in records.open_plans(db)}
    return tuple(each.id for each in allocations(db) if each.id not in planned and _command_ended(each, places))


def dead_waiters(db: sqlite3.Connection, places: StateFolder) -> tuple[str, ...]:
    """The waiters of dead processes."""
    return tuple(each.id for each in records.waiters(db) if not is_held(places.waiter(each.id)))


def _command_ended(allocation: Allocation, places: StateFolder) -> bool:
    """Whether the command of an allocation has ended. False for pods and claims, which other code judges.

    A process that cannot see the command's PID namespace, for example inside a container, cannot tell.
    """
    match allocation.keeper:
        case ProcessKeeper() as keeper:
            if is_held(places.allocation(allocation.id)) or not sees_processes_of(keeper.namespace):
                return False
            return not runs(keeper) or (keeper.suspected and os.geteuid() == 0)  # root can read every process
        case PodKeeper() | ClaimKeeper() | PlacedPodKeeper():
            return False


def runs(keeper: ProcessKeeper) -> bool:
    """Whether the process that keeps a share still runs, and its pid is valid in this process's PID namespace."""
    return keeper.namespace in (0, pid_namespace()) and process_lives(keeper.pid, keeper.started)


def owner_of(keeper: Keeper) -> ShareOwner | None:
    """The owner; None while it is unknown, as for a pod during admission."""
    if isinstance(keeper, ProcessKeeper):
        return ShareOwner(OwnerKind.USER, user_name(keeper.uid)) if keeper.uid >= 0 else None
    return ShareOwner(OwnerKind.NAMESPACE, keeper.namespace) if keeper.namespace else None


def process_owners(allocations: Iterable[Allocation], queue: Iterable[records.Waiter] = ()) -> dict[str, ShareOwner]:
    """The known users of processes that keep allocations or wait, by the allocation's or waiter's id.

    Pid and start identify a process. A waiter has no recorded start, but a lock that only a living process holds.
    """
    here = pid_namespace()
    if not sees_processes_of(here):
        return {}
    found = {}
    for each in allocations:
        keeper = each.keeper
        if isinstance(keeper, ProcessKeeper) and keeper.pid and keeper.namespace in (0, here):
            found[each.id] = _user_of(keeper.pid, keeper.started, keeper.uid)
        elif isinstance(keeper, ProcessKeeper) and not keeper.pid:
            found[each.id] = _named(keeper.uid)
    found |= {each.id: _user_of(each.pid, None, each.uid) for each in queue}
    return {id: ShareOwner(OwnerKind.USER, user) for id, user in found.items() if user}


def _user_of(pid: int, started: int | None, asked: int) -> str:
    """The user of the process, or the uid that `asked` where the process is gone."""
    from tranche.node.processes.processes import process_at  # listings rarely need it

    process = process_at(pid)
    return _named(process.uid if process is not None and started in (None, process.started) else asked)


def _named(uid: int) -> str:
    return user_name(uid) if uid >= 0 else ""


def user_name(uid: int) -> str:
    """The name of a user, or the uid if the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def groups_of(uid: int) -> tuple[str, ...]:
    """The groups of a user, as keys of quotas; none if the machine does not know the user."""
    try:
        user = pwd.getpwuid(uid)
        return tuple(f"{GROUP}{grp.getgrgid(gid).gr_name}" for gid in os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return ()


def queue(db: sqlite3.Connection, now: float) -> tuple[records.Waiter, ...]:
    """The queue in the order of service: of arrival or, if it is fair, by what users have used. Preemptible requests are last."""
    waiting = records.waiters(db)
    order = fair_order(db, now) if len(waiting) > 1 else None
    found = waiting if order is None else order.in_turn(waiting)
    return tuple(sorted(found, key=lambda each: each.request.preemptible))


def fair_order(db: sqlite3.Connection, now: float) -> FairOrder | None:
    """Who goes first in a fair queue at a time in seconds since the epoch; None if it is in order of arrival."""
    quotas = records.user_quotas(db)
    if not is_fair(quotas):
        return None
    from tranche.core.usage import COUNTED_DAYS, DAY_SECONDS, weighed_use, with_running
    from tranche.planning.decide.fairness import FairOrder, group_in_order

    used = weighed_use(
        with_running(records.usage(db, int(now // DAY_SECONDS) - COUNTED_DAYS), allocations(db), now), now
    )
    groups: dict[int, str] = {}
    if any(is_group(name) and each.weight is not None for name, each in quotas.items()):
        for uid in {os.getuid(), *used, *(each.uid for each in records.waiters(db))}:
            if (group := group_in_order(groups_of(uid), quotas)) is not None:
                groups[uid] = group
    return FairOrder(used, groups, quotas)


UserLimits = tuple[Mapping[str, UserQuota], Mapping[str, tuple[str, ...]], Mapping[str, float]]
"""The `quotas`, `groups` and `recent` of a view."""


def user_limits(
    db: sqlite3.Connection, held: Sequence[Allocation], now: float, quotas: Mapping[str, UserQuota] | None = None
) -> UserLimits:
    """What a view tells of users and groups with reservations or quotas (by default the ledger's), `now` since the epoch."""
    quotas = records.user_quotas(db) if quotas is None else quotas
    named = {name for name in quotas if is_group(name)}
    named |= {name for each in records.reservations(db) for name in each.users if is_group(name)}
    hours = any(each.gpu_hours is not None for each in quotas.values())
    if not named and not hours:
        return quotas, {}, {}
    from tranche.core.usage import DAY_SECONDS, WINDOW_DAYS, recent_use, with_running

    since = int(now // DAY_SECONDS) - WINDOW_DAYS + 1
    used = recent_use(with_running(records.usage(db, since), held, now), now) if hours else {}
    holders = {each.keeper.uid for each in held if isinstance(each.keeper, ProcessKeeper)}
    groups: dict[str, tuple[str, ...]] = {}
    recent = {str(uid): seconds for uid, seconds in used.items()}
    for uid in {os.getuid(), *used, *holders, *(each.uid for each in records.waiters(db))} if named else ():
        if own := tuple(name for name in groups_of(uid) if name in named):
            groups[str(uid)] = own
        for name in own:
            recent[name] = recent.get(name, 0.0) + used.get(uid, 0.0)
    return quotas, groups, recent


def reservations_due(db: sqlite3.Connection, now: float) -> bool:
    """Whether a reservation is over, or is used for the first time, and the register does not say so yet."""
    if not (found := records.reservations(db)):
        return False
    from tranche.core.allocation import NodeView
    from tranche.core.state import NodeState
    from tranche.planning.decide.reservations import first_used, over

    held = allocations(db)
    _, groups, _ = user_limits(db, held, now)
    view = NodeView(NodeState(()), held, groups=groups, reservations=found, time=now)
    waiting = {each.uid for each in records.waiters(db)}
    return any(over(view, each) for each in found) or any(True for _ in first_used(view, waiting=waiting))
