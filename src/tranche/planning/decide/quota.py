"""What a user may still get: the administrator's quotas of the user and of the user's groups, less what they hold.

A share counts as what the ledger recorded when it was granted (`size_of`), so the loss of a GPU changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tranche.core.allocation import (
    WHOLE,
    Allocation,
    FractionalShare,
    Grant,
    NodeView,
    ShareSize,
    Slice,
    WholeGpu,
    grant_size,
)
from tranche.core.errors import QuotaExceeded
from tranche.core.grid import Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import GIB, MIB, format_duration
from tranche.core.request import Request
from tranche.core.state import GpuState
from tranche.core.user_quota import GROUP, UserQuota, quota_of
from tranche.planning.decide.candidates import Candidate, candidate, gpus_needed
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.share_options import rules_of

HOUR_SECONDS = 3600


class _Held(NamedTuple):
    """Millionths of a GPU, bytes, and grants."""

    gpu_millionths: int
    memory: int
    shares: int

    def plus(self, size: ShareSize, times: int = 1) -> _Held:
        return _Held(
            self.gpu_millionths + times * size.gpu_millionths, self.memory + times * size.memory, self.shares + times
        )


def held_by_asker(view: NodeView) -> tuple[Allocation, ...]:
    """The allocations of the user that the view's decision is for."""
    return tuple(
        each for each in view.allocations if isinstance(each.keeper, ProcessKeeper) and each.keeper.uid == view.asker
    )


class _Limit(NamedTuple):
    """A quota, who it is for, what they hold and, in seconds, their recent use."""

    quota: UserQuota
    who: str
    held: _Held
    used: float

    def beyond(self, asked: ShareSize, times: int) -> str:
        """What of the quota so many times more would exceed, in words; "" for nothing."""
        quota, held, after = self.quota, self.held, self.held.plus(asked, times)
        if quota.shares is not None and after.shares > quota.shares:
            return self._words(str(UserQuota(shares=quota.shares)), str(held.shares), str(times))
        if quota.gpu_percent is not None and after.gpu_millionths > quota.gpu_percent * WHOLE // 100:
            now, more = _up(held.gpu_millionths, WHOLE), _up(times * asked.gpu_millionths, WHOLE)
            return self._words(str(UserQuota(quota.gpu_percent)), now, more)
        if quota.memory is not None and after.memory > quota.memory:
            unit, name = (GIB, "GiB") if quota.memory >= GIB else (MIB, "MiB")
            most = f"{quota.memory * 100 // unit / 100:g} {name}"
            return self._words(most, f"{_up(held.memory, unit)} {name}", f"{_up(times * asked.memory, unit)} {name}")
        if quota.gpu_hours is not None and self.used >= quota.gpu_hours * HOUR_SECONDS:
            used = f", and has used {_hours(self.used)}" if quota.gpu_hours else ""
            return f"{self.who} may use at most {UserQuota(gpu_hours=quota.gpu_hours)}{used}"
        return ""

    def _words(self, most: str, now: str, more: str) -> str:
        holds = f", already holds {now}" if self.held.shares else ""
        return f"{self.who} may hold at most {most} at once{holds}, and this request needs {more}"

    def beyond_now(self) -> Iterator[str]:
        """What of the quota they exceed already, in words, each limit by itself."""
        for field, value in self.quota._asdict().items():
            alone = self._replace(quota=UserQuota(**{field: value}))
            if words := alone.beyond(ShareSize(0, 0), 0).partition(", and this request needs")[0]:
                yield words


def _limits(view: NodeView, user: str = "the user") -> tuple[_Limit, ...]:
    """All quotas that the decision must keep; `user` are words for the asker."""
    asker = str(view.asker)
    own = quota_of(view.quotas, view.asker)
    found = (
        []
        if own is None or not own.limits_shares
        else [_Limit(own, user, _held(view, {asker}), view.recent.get(asker, 0.0))]
    )
    for group in (
        each for each in view.groups.get(asker, ()) if each in view.quotas and view.quotas[each].limits_shares
    ):
        members = {uid for uid, groups in view.groups.items() if group in groups}
        who = f"group {group.removeprefix(GROUP)}"
        found.append(_Limit(view.quotas[group], who, _held(view, members), view.recent.get(group, 0.0)))
    return tuple(found)


def holders_beyond(view: NodeView, name_of: Callable[[str], str]) -> tuple[str, ...]:
    """Who holds more than which limit of their quota, in words; `name_of` names a user by uid."""
    uids = sorted({each.keeper.uid for each in view.allocations if isinstance(each.keeper, ProcessKeeper)})
    limits = (limit for uid in uids for limit in _limits(replace(view, asker=uid), name_of(str(uid))))
    return tuple(dict.fromkeys(words for limit in limits for words in limit.beyond_now()))


def limits_alike(view: NodeView) -> Hashable:
    """Equal for users to whom the quotas leave the same."""
    if not view.quotas:
        return None
    own = quota_of(view.quotas, view.asker)
    return _limits(view), None if own is None else own.time_limit


def candidates_within_quota(view: NodeView, request: Request) -> tuple[Candidate | Obstacle, ...]:
    """Each GPU's candidate, as far as the user may still get it; the obstacle is the quota where the user may not."""
    found = tuple(candidate(request, gpu, rules_of(view, gpu)) for gpu in view.node)
    limits = _limits(view) if view.quotas and not request.preemptible else ()
    if not limits:
        return found
    needed = gpus_needed(request)
    return tuple(_within(each, gpu, limits, needed) for each, gpu in zip(found, view.node, strict=True))


def refuse_beyond_quota(view: NodeView, request: Request) -> None:
    """Raises QuotaExceeded when the user could not get the request even while nobody holds anything."""
    if not view.quotas or request.preemptible:
        return
    alone = candidates_within_quota(replace(view, allocations=(), recent={}), request)
    beyond = [each for each in alone if isinstance(each, Obstacle) and each.reason is Reason.QUOTA]
    possible = sum(isinstance(each, Candidate) or each.reason is Reason.GPU_LOST for each in alone)
    if beyond and possible < gpus_needed(request):
        raise QuotaExceeded(
            f"{request} exceeds the quota: {beyond[0].text}",
            hint="ask for less, or ask an administrator; see the quotas with: tranche policy list",
        )


def refuse_too_long(view: NodeView, request: Request) -> None:
    """Raises QuotaExceeded when the request's time limit is longer than its user may run a command."""
    quota = quota_of(view.quotas, view.asker)
    most = None if quota is None else quota.time_limit
    if most is not None and request.time_limit is not None and request.time_limit > most:
        raise QuotaExceeded(
            f"{request} is too long: this user's commands can run for at most {format_duration(most)}",
            hint="ask for less time; see the quotas with: tranche policy list",
        )


def _held(view: NodeView, uids: Collection[str]) -> _Held:
    """What these users hold together, except by preemptible commands."""
    counted = (each for each in view.allocations if not each.request.preemptible)
    own = [each for each in counted if isinstance(each.keeper, ProcessKeeper) and str(each.keeper.uid) in uids]
    found = [_size(each, view) for each in own]
    return _Held(
        sum(each.gpu_millionths for each in found),
        sum(each.memory for each in found),
        sum(len(each.grants) for each in own),
    )


def _size(allocation: Allocation, view: NodeView) -> ShareSize:
    """The recorded size. Without one, as after the loss of a ledger, each grant on a GPU that shows nothing counts as a GPU."""
    gpus = {gpu.uuid: gpu for gpu in view.node if not gpu.lost}
    most = max((gpu.usable_memory for gpu in gpus.values()), default=0)
    found = ShareSize(0, 0)
    for grant in allocation.grants:
        gpu = gpus.get(grant.gpu_uuid)
        size = ShareSize(WHOLE, most) if gpu is None else grant_size(grant, gpu)
        found = ShareSize(found.gpu_millionths + size.gpu_millionths, found.memory + size.memory)
    return ShareSize(allocation.gpu_millionths or found.gpu_millionths, allocation.memory or found.memory)


def _within(found: Candidate | Obstacle, gpu: GpuState, limits: Sequence[_Limit], needed: int) -> Candidate | Obstacle:
    if isinstance(found, Obstacle):
        return found
    beyond: list[str] = []

    def allowed(grant: Grant) -> bool:
        size = grant_size(grant, gpu)
        why = next(filter(None, (limit.beyond(size, needed) for limit in limits)), "")
        beyond.extend([why] if why else [])
        return not why

    device = WholeGpu(gpu.uuid)
    profile, whole, part = found.profile, found.whole, found.part
    if profile is not None:
        profile = profile if allowed(Slice(gpu.uuid, profile.name, Placement(0, profile.size))) else None
    whole = whole and allowed(device)
    if part is not None:
        ways = tuple(
            way for way in part.ways if allowed(FractionalShare(device, way.memory, way.sharing, part.compute))
        )
        part = part._replace(ways=ways) if ways else None
    if profile is None and not whole and part is None:
        return obstacle(gpu, Reason.QUOTA, beyond[-1])
    return found._replace(profile=profile, whole=whole, part=part)


def _up(amount: int, unit: int) -> str:
    """Hundredths of the unit, rounded up: what exceeds a limit never looks as if it did not."""
    return f"{-(-amount * 100 // unit) / 100:.2f}".rstrip("0").rstrip(".")


def _hours(seconds: float) -> str:
    """Whole hours, rounded down, or minutes below an hour."""
    return f"{int(seconds // HOUR_SECONDS)}" if seconds >= HOUR_SECONDS else f"{int(seconds // 60)} minutes"
