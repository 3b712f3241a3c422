"""Names of shares: by command and user, or by pod or claim; the id comes last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tranche.core.allocation import Allocation
from tranche.core.keeper import OwnerKind, ProcessKeeper, ShareOwner
from tranche.node.store.records import Waiter

_LONGEST_COMMAND = 32

Owners = Mapping[str, ShareOwner]
"""The owners of process shares, by allocation or waiter id; omits unknown owners."""

NO_OWNERS: Owners = {}


def called(id: str, command: str, user: str) -> str:
    """`python train.py (ada) 1f2e3d4c`; omits unknown parts."""
    return " ".join(filter(None, (name_and_user(command, user), id)))


def name_and_user(command: str, user: str) -> str:
    """`python train.py (ada)`; "" if neither is known."""
    name = command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 1].rstrip()}…"
    return " ".join(filter(None, (name, f"({user})" if user else "")))


def holder_name(allocation: Allocation, owners: Owners) -> str:
    """The holder of an allocation."""
    if not isinstance(allocation.keeper, ProcessKeeper):
        return str(allocation.keeper)
    return called(allocation.id, allocation.command, owner_name(owners.get(allocation.id)))


def owner_name(owner: ShareOwner | None) -> str:
    """A user or a namespace; "" if unknown."""
    return "" if owner is None else owner.name


def owner_now(allocation: Allocation, owners: Owners) -> ShareOwner | None:
    """The owner of an allocation: its pod's or claim's namespace, or its entry in `owners`; None if unknown."""
    keeper = allocation.keeper
    if isinstance(keeper, ProcessKeeper):
        return owners.get(allocation.id)
    return ShareOwner(OwnerKind.NAMESPACE, keeper.namespace) if keeper.namespace else None


def holder_names(allocations: Iterable[Allocation], owners: Owners) -> str:
    """The holders of the allocations."""
    return ", ".join(holder_name(each, owners) for each in allocations)


class NameTable(NamedTuple):
    """The names of shares and waiting requests, and the owners of shares, by id."""

    called: Mapping[str, str]
    owners: Owners


NO_NAMES = NameTable({}, NO_OWNERS)


def names_of(allocations: Iterable[Allocation], queue: Iterable[Waiter], owners: Owners) -> NameTable:
    """The names of all present allocations and waiters."""
    there = tuple(allocations)
    waiting = {each.id: called(each.id, each.command, owner_name(owners.get(each.id))) for each in queue}
    known = {each.id: owner for each in there if (owner := owner_now(each, owners)) is not None}
    return NameTable({**waiting, **{each.id: holder_name(each, owners) for each in there}}, known)
