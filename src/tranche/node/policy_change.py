"""An administrator's policy in the ledger: how GPUs may be shared, which are cordoned or reserved, and quotas."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from tranche.core.allocation import Cordon, NodeView
from tranche.core.errors import UsageError
from tranche.core.machine_policy import MachinePolicy
from tranche.core.reservation import Reservation
from tranche.core.sharing import EVERY_GPU, Timeslice
from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import GpuState, NodeState
from tranche.core.user_quota import EVERYONE, UserQuota, is_fair
from tranche.node.host import Host
from tranche.node.locks.locks import is_held
from tranche.node.store import chronicle, records
from tranche.node.store.ledger import Ledger
from tranche.node.store.register import user_name
from tranche.planning.decide.reservation_choice import choose


def change_policy(
    ledger: Ledger, change: Callable[[SharingPolicy], SharingPolicy], node: NodeState, *, clock: Callable[[], float]
) -> SharingPolicy:
    """Change the policy in one transaction, with an event for each changed entry; returns the new policy.

    Existing shares stay. The policy applies from the next decision on.
    """
    with ledger.write() as db:
        after = change(records.sharing_policy(db))
        _set_sharing(db, after, node, clock())
    return after


def _set_sharing(db: sqlite3.Connection, after: SharingPolicy, node: NodeState, now: float) -> None:
    labels, before = {gpu.uuid: gpu.label for gpu in node}, records.sharing_policy(db)
    records.set_sharing_policy(db, after)
    if before.every is not after.every:
        chronicle.policy_changed(db, now, "", "every other GPU", after.every)
    for uuid in dict.fromkeys((*labels, *before.gpus, *after.gpus)):
        if before.gpus.get(uuid) is not after.gpus.get(uuid):
            chronicle.policy_changed(db, now, uuid, labels.get(uuid, f"GPU {uuid}"), after.gpus.get(uuid))


def set_timeslices(host: Host, gpu_uuids: Sequence[str], length: Timeslice | None) -> None:
    """Set the wanted time slice of those GPUs, or of all without one of their own; None removes it."""
    with host.ledger.write() as db:
        named = gpu_uuids or (EVERY_GPU,)
        others = {uuid: each for uuid, each in records.timeslices(db).items() if uuid not in named}
        records.set_timeslices(db, others if length is None else {**others, **dict.fromkeys(named, length)})


def present_policy(db: sqlite3.Connection) -> MachinePolicy:
    """All that the administrator has decided."""
    quotas, exempt = records.user_quotas(db), records.fence(db)
    limits = {key: each._replace(weight=None) for key, each in quotas.items()}
    return MachinePolicy(
        records.sharing_policy(db),
        records.timeslices(db),
        {key: each for key, each in limits.items() if each != UserQuota()},
        {key: each.weight for key, each in quotas.items() if each.weight is not None},
        records.idle_policy(db),
        records.preemption(db),
        False if exempt is None else exempt - {0},
    )


def apply_policy(host: Host, wanted: MachinePolicy, node: NodeState) -> tuple[MachinePolicy, MachinePolicy]:
    """Replace those sections of the policy that `wanted` has, in one transaction; returns the policy before and after.

    Only `tranche.node.fence` changes the fence.
    """
    with host.ledger.write() as db:
        before, now = present_policy(db), host.clock()
        after = wanted._replace(fence=None).over(before)
        if wanted.sharing is not None:
            _set_sharing(db, wanted.sharing, node, now)
        quotas, new = records.user_quotas(db), after.user_quotas
        for key in sorted({*quotas, *new}):
            _set(db, key, user_name_of(key), quotas.get(key, UserQuota()), new.get(key, UserQuota()), now)
        if wanted.idle is not None:
            records.set_idle_policy(db, wanted.idle)
        if wanted.preemption is not None:
            records.set_preemption(db, allowed=wanted.preemption)
        if wanted.timeslices is not None:
            records.set_timeslices(db, wanted.timeslices)
    return before, after


def change_quotas(
    host: Host, users: Mapping[str, str], quota: UserQuota | None, *, clock: Callable[[], float]
) -> Mapping[str, UserQuota]:
    """Set limits of users and groups, whose names are by their keys, from the next decision on; None removes all of them.

    Limits that `quota` lacks stay. Returns all quotas after that.
    """
    with host.ledger.write() as db:
        before = records.user_quotas(db)
        for uid, name in users.items():
            own = before.get(uid, UserQuota())
            _set(db, uid, name, own, UserQuota(weight=own.weight) if quota is None else quota.over(own), clock())
        return records.user_quotas(db)


def make_fair(host: Host, names: Mapping[str, str], weight: int | None, *, clock: Callable[[], float]) -> bool:
    """Make the queue fair, and give a weight to users and groups, by their keys in quotas. Returns whether it was not fair.

    Without a weight, those named lose theirs; if none is named, the queue is in order of arrival, and all weights go.
    """
    with host.ledger.write() as db:
        quotas = records.user_quotas(db)
        if weight is None:
            for name in names or quotas:
                own = quotas.get(name, UserQuota())
                _set(db, name, user_name_of(name), own, own._replace(weight=None), clock())
            return False
        given = {EVERYONE: ("", 1), **{key: (name, weight) for key, name in names.items()}}
        for key, (name, each) in given.items():
            own = quotas.get(key, UserQuota())
            _set(db, key, name, own, own._replace(weight=each), clock())
        return not is_fair(quotas)


def user_name_of(key: str) -> str:
    """The name behind a key of quotas: of a user or a group, "" for everyone."""
    return user_name(int(key)) if key.isdigit() else key


def _set(db: sqlite3.Connection, key: str, name: str, before: UserQuota, after: UserQuota, now: float) -> None:
    if before != after:
        kept = None if after == UserQuota() else after
        records.set_user_quota(db, key, kept)
        chronicle.quota_changed(db, now, name, kept)


def cordon(host: Host, gpu: GpuState, *, user: str, reason: str, clock: Callable[[], float]) -> None:
    """Serve no new requests on the GPU from the next decision on. A repeated cordon replaces the older one.

    Keeps the reason as one line, with `?` for terminal bytes that are not UTF-8.
    """
    said = " ".join(reason.encode(errors="replace").decode().split())
    word = Cordon(gpu.uuid, user, said, clock())
    with host.ledger.write() as db:
        records.set_cordon(db, word)
        chronicle.cordoned(db, gpu, word, host.actor)


def uncordon(host: Host, gpu: GpuState, *, user: str, clock: Callable[[], float]) -> bool:
    """Remove the cordon; returns False if there was none."""
    with host.ledger.write() as db:
        if not records.remove_cordon(db, gpu.uuid):
            return False
        chronicle.uncordoned(db, clock(), gpu, user, host.actor)
    return True


_PATIENCE_SECONDS = 60.0


def reserve(host: Host, wanted: Reservation, count: int) -> tuple[Reservation, NodeView]:
    """Reserve the wanted GPUs, or choose so many if it names none; returns the reservation, and the view before it.

    No other process decides meanwhile, so each command either is in the view or obeys the reservation. Raises NoRoom if other
    reservations leave too few GPUs, and UsageError if an agent serves the machine.
    """
    with host.deciding(_PATIENCE_SECONDS) as (view, _):
        if is_held(host.places.agent_lock):
            raise UsageError(
                "a Kubernetes agent runs on this machine, and pods ignore reservations",
                hint="to keep pods from a GPU, use: tranche cordon GPU",
            )
        gpus = choose(view, count, wanted.begins, wanted.ends, wanted.gpu_uuids)
        new = wanted._replace(gpu_uuids=tuple(gpu.uuid for gpu in gpus))
        with host.ledger.write() as db:
            records.add_reservation(db, new)
            chronicle.reserved(db, host.clock(), new, ", ".join(gpu.label for gpu in gpus))
    return new, view


def unreserve(host: Host, typed: str, *, user: str) -> str:
    """Remove the reservation whose id begins with `typed`; returns its id. UsageError unless there is exactly one."""
    with host.ledger.write() as db:
        found = [each.id for each in records.reservations(db) if typed and each.id.startswith(typed)]
        if len(found) != 1:
            what = f"several reservations begin with {typed}" if found else f"there is no reservation {typed}"
            raise UsageError(what, hint="list them with: tranche reserve list")
        records.remove_reservation(db, found[0])
        chronicle.reservation_ended(db, host.clock(), found[0], f"{user} removed it")
    return found[0]
