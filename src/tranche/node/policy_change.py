"""An administrator's policy in the ledger: how GPUs may be shared, which are cordoned or reserved, and quotas."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tranche.core.allocation import Cordon, NodeView
from tranche.core.errors import UsageError
from tranche.core.idle import IdlePolicy
from tranche.core.machine_policy import MachinePolicy
from tranche.core.reservation import Reservation
from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import GpuState
from tranche.core.user_quota import UserQuota
from tranche.node.host import Host
from tranche.node.locks.locks import is_held
from tranche.node.store import chronicle, records
from tranche.node.store.register import user_name
from tranche.planning.decide.reservation_choice import choose


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


def change_policy(
    host: Host, change: Callable[[MachinePolicy], MachinePolicy], labels: Mapping[str, str] = MappingProxyType({})
) -> tuple[MachinePolicy, MachinePolicy]:
    """Change the policy in one transaction, with an event for each changed entry; returns the policy before and after.

    Existing shares stay. The policy applies from the next decision on. Only `tranche.node.fence` changes the fence. Events name
    GPUs by their `labels`, by UUID.
    """
    with host.ledger.write() as db:
        before, now = present_policy(db), host.clock()
        after = change(before)._replace(fence=before.fence)
        _set_sharing(db, before.sharing or SharingPolicy(), after.sharing or SharingPolicy(), labels, now)
        records.set_timeslices(db, after.timeslices or {})
        _set_quotas(db, before.user_quotas, after.user_quotas, now)
        records.set_idle_policy(db, after.idle or IdlePolicy())
        records.set_preemption(db, allowed=bool(after.preemption))
    return before, after


def _set_sharing(
    db: sqlite3.Connection, before: SharingPolicy, after: SharingPolicy, labels: Mapping[str, str], now: float
) -> None:
    records.set_sharing_policy(db, after)
    if before.every is not after.every:
        chronicle.policy_changed(db, now, "", "every other GPU", after.every)
    for uuid in dict.fromkeys((*labels, *before.gpus, *after.gpus)):
        if before.gpus.get(uuid) is not after.gpus.get(uuid):
            chronicle.policy_changed(db, now, uuid, labels.get(uuid, f"GPU {uuid}"), after.gpus.get(uuid))


def _set_quotas(
    db: sqlite3.Connection, before: Mapping[str, UserQuota], after: Mapping[str, UserQuota], now: float
) -> None:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            records.set_user_quota(db, key, after.get(key))
            chronicle.quota_changed(db, now, user_name_of(key), after.get(key))


def user_name_of(key: str) -> str:
    """The name behind a key of quotas: of a user or a group, "" for everyone."""
    return user_name(int(key)) if key.isdigit() else key


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
