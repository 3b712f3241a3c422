"""What a share is called: by its command and its user, or by its pod or claim; the id comes last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tranche.core.allocation import Allocation
from tranche.core.keeper import OwnerKind, ProcessKeeper, ShareOwner
from tranche.node.store.records import Waiter

_LONGEST_COMMAND = 32

Owners = Mapping[str, ShareOwner]
"""Whose shares of processes are, by the ids of allocations and waiters; those that nobody knows are not in it."""

NO_OWNERS: Owners = {}


def called(id: str, command: str, user: str) -> str:
    """`python train.py (ada) 1f2e3d4c`; what is not known is left out."""
    return " ".join(filter(None, (name_and_user(command, user), id)))


def name_and_user(command: str, user: str) -> str:
    """`python train.py (ada)`; "" when neither is known."""
    name = command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 1].rstrip()}…"
    return " ".join(filter(None, (name, f"({user})" if user else "")))


def holder_name(allocation: Allocation, owners: Owners) -> str:
    """Whoever has an allocation."""
    if not isinstance(allocation.keeper, ProcessKeeper):
        return str(allocation.keeper)
    return called(allocation.id, allocation.command, owner_name(owners.get(allocation.id)))


def owner_name(owner: ShareOwner | None) -> str:
    """A user, or a namespace; "" where nobody knows."""
    return "" if owner is None else owner.name


def owner_now(allocation: Allocation, owners: Owners) -> ShareOwner | None:
    """Whose an allocation is: its pod's or claim's namespace, or whoever `owners` names; None where nobody knows."""
    keeper = allocation.keeper
    if isinstance(keeper, ProcessKeeper):
        return owners.get(allocation.id)
    return ShareOwner(OwnerKind.NAMESPACE, keeper.namespace) if keeper.namespace else None


def holder_names(allocations: Iterable[Allocation], owners: Owners) -> str:
    """Everybody who has one of the allocations."""
    return ", ".join(holder_name(each, owners) for each in allocations)


class NameTable(NamedTuple):
    """How shares and waiting requests are called, and whose shares are, by their ids."""

    called: Mapping[str, str]
    owners: Owners


NO_NAMES = NameTable({}, NO_OWNERS)


def names_of(allocations: Iterable[Allocation], queue: Iterable[Waiter], owners: Owners) -> NameTable:
    """The names of all that are there."""
    there = tuple(allocations)
    waiting = {each.id: called(each.id, each.command, owner_name(owners.get(each.id))) for each in queue}
    known = {each.id: owner for each in there if (owner := owner_now(each, owners)) is not None}
    return NameTable({**waiting, **{each.id: holder_name(each, owners) for each in there}}, known)
