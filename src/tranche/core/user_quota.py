"""How much of a machine a user or a group may hold, and their weights in a fair queue, as the administrator sets them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tranche.core.errors import UsageError
from tranche.core.quantity import format_duration, memory_option, parse_memory
from tranche.core.request import Request, parse_time_limit

_GPUS = re.compile(r"\d{1,6}(?:\.\d{1,2})?|\.\d{1,2}", re.ASCII)
_SHARES = re.compile(r"\d{1,6}", re.ASCII)
_MOST_MEMORY = 2**50
EVERYONE = ""
"""Stands for all users except root, as far as they have no limits of their own."""
GROUP = "@"
"""Stands before the name of a group, whose limits hold for all its members together."""
_ROOT = "0"


class UserQuota(NamedTuple):
    """The most that one user, or all members of a group together, may hold at once; None is no limit.

    `gpu_percent` is in hundredths of a GPU: 150 are one and a half. `memory` is in bytes. A request for several GPUs gets
    as many `shares`. `time_limit`, in seconds, is the longest of one command, and that of a request without one. `gpu_hours`
    are those of today and the six days before. `weight` is no limit: in a fair queue, a larger one gets more.
    """

    gpu_percent: int | None = None
    memory: int | None = None
    shares: int | None = None
    time_limit: int | None = None
    gpu_hours: int | None = None
    weight: int | None = None

    @property
    def gpus(self) -> str:
        """The number of GPUs as an administrator writes it, such as `1.5`; "" without a limit."""
        return "" if self.gpu_percent is None else f"{self.gpu_percent / 100:g}"

    @property
    def limits_shares(self) -> bool:
        """Whether it limits which shares its user gets."""
        return (self.gpu_percent, self.memory, self.shares, self.gpu_hours) != (None, None, None, None)

    def over(self, others: UserQuota | None) -> UserQuota:
        """These limits, and those of `others` where this quota has none."""
        own = self if others is None else map(_first, self, others)
        return UserQuota(*own)

    def __str__(self) -> str:
        parts = []
        if self.gpu_percent is not None:
            parts.append(f"{self.gpus} GPU{'' if self.gpu_percent == 100 else 's'}")
        if self.memory is not None:
            parts.append(f"{memory_option(self.memory)} of GPU memory")
        if self.shares is not None:
            parts.append(f"{self.shares} share{'' if self.shares == 1 else 's'}")
        if self.time_limit is not None:
            parts.append(f"{format_duration(self.time_limit)} for each command")
        if self.gpu_hours is not None:
            parts.append(f"{self.gpu_hours} GPU-hour{'' if self.gpu_hours == 1 else 's'} in seven days")
        if self.weight is not None:
            parts.append(f"weight {self.weight}")
        return ", ".join(parts) or "no limit"


def quota_of(quotas: Mapping[str, UserQuota], uid: int) -> UserQuota | None:
    """The quota of a user: the user's own limits, and everyone's where there are none, except for root.

    None without one, and for processes of no known user (-1). The keys are uids as text.
    """
    if uid < 0:
        return None
    own, everyone = quotas.get(str(uid)), None if str(uid) == _ROOT else quotas.get(EVERYONE)
    return everyone if own is None else own.over(everyone)


def is_group(name: str) -> bool:
    """Whether a key of quotas names a group: `@` and its name."""
    return name.startswith(GROUP)


def is_fair(quotas: Mapping[str, UserQuota]) -> bool:
    """Whether the queue is fair: the administrator gave everyone a weight."""
    return EVERYONE in quotas and quotas[EVERYONE].weight is not None


def _first(own: int | None, other: int | None) -> int | None:
    return other if own is None else own


def within_time(request: Request, quotas: Mapping[str, UserQuota], uid: int) -> Request:
    """The request with the time limit that applies: the user's quota may give it one."""
    quota = quota_of(quotas, uid)
    if request.time_limit is not None or quota is None or quota.time_limit is None:
        return request
    return replace(request, time_limit=quota.time_limit)


def parse_quota(
    gpus: str | None, gpu_memory: str | None, shares: str | None, time: str | None = None, gpu_hours: str | None = None
) -> UserQuota:
    """The quota in an administrator's words; raises UsageError."""
    if gpus is not None and _GPUS.fullmatch(gpus) is None:
        raise UsageError(
            f"'{gpus}' is not a number of GPUs up to 999999 with at most two decimals",
            hint="write it as --gpus 2 or --gpus 1.5",
        )
    if shares is not None and _SHARES.fullmatch(shares) is None:
        raise UsageError(f"'{shares}' is not a whole number of shares up to 999999", hint="write it as --shares 4")
    if gpu_hours is not None and _SHARES.fullmatch(gpu_hours) is None:
        raise UsageError(
            f"'{gpu_hours}' is not a whole number of GPU-hours up to 999999", hint="write it as --gpu-hours 40"
        )
    memory = None if gpu_memory is None else parse_memory(gpu_memory)
    if memory is not None and memory > _MOST_MEMORY:
        raise UsageError(f"'{gpu_memory}' is more GPU memory than any machine has", hint="give at most 1024Ti")
    return UserQuota(
        None if gpus is None else round(float(gpus) * 100),
        memory,
        None if shares is None else int(shares),
        None if time is None else parse_time_limit(time),
        None if gpu_hours is None else int(gpu_hours),
    )
