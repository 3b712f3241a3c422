"""A fair queue: who goes first by what users have used. Pure.

The order is that of Slurm's Fair Tree with one level of groups: among the groups, and the users in none, the least use for its
weight goes first; inside a group, the same between its users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tranche.core.user_quota import UserQuota, is_group


class _Waits(Protocol):
    @property
    def uid(self) -> int: ...


_W = TypeVar("_W", bound=_Waits)


class FairOrder(NamedTuple):
    """Who goes first: `used` is the `weighed_use` of users, `groups` names the group of each user who is in one.

    `quotas` has the weights; without one it is 1.
    """

    used: Mapping[int, float]
    groups: Mapping[int, str]
    quotas: Mapping[str, UserQuota]

    def in_turn(self, waiters: Sequence[_W]) -> tuple[_W, ...]:
        """Those that wait, in the order of service; requests that rank alike stay in the given order."""
        levels = {uid: self.level(uid) for uid in {each.uid for each in waiters}}
        return tuple(sorted(waiters, key=lambda each: levels[each.uid]))

    def level(self, uid: int) -> tuple[float, float]:
        """A user's place, lowest first: the use for its weight of the user's group, and of the user in it."""
        group = self.groups.get(uid)
        own = self.used.get(uid, 0.0) / self.weight(str(uid))
        return (own, 0.0) if group is None else (self.used_by(group) / self.weight(group), own)

    def rivals(self, first: int, other: int) -> tuple[str, str]:
        """What decides between two users: their groups or, within one group or without any, the users, by uid as text."""
        mine, theirs = self.groups.get(first), self.groups.get(other)
        return (str(first), str(other)) if mine == theirs else (mine or str(first), theirs or str(other))

    def use_of(self, name: str) -> float:
        """The use of a user, by uid as text, or of a group."""
        return self.used_by(name) if is_group(name) else self.used.get(int(name), 0.0)

    def used_by(self, group: str) -> float:
        """The use of all users in the group."""
        return sum(used for uid, used in self.used.items() if self.groups.get(uid) == group)

    def weight(self, name: str) -> int:
        """The weight of a user, by uid as text, or of a group."""
        quota = self.quotas.get(name)
        return 1 if quota is None or quota.weight is None else quota.weight


def group_in_order(names: Iterable[str], quotas: Mapping[str, UserQuota]) -> str | None:
    """The group that a member of these groups counts in: the first by name that has a weight."""
    weighed = (name for name in sorted(names) if is_group(name) and name in quotas)
    return next((name for name in weighed if quotas[name].weight is not None), None)
