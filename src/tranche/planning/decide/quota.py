"""What a user may still get: the administrator's quota, less what the user holds.

A share counts as what the ledger recorded when it was granted (`size_of`), so the loss of a GPU changes nothing.
"""

from __future__ import annotations

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
from tranche.core.user_quota import UserQuota, quota_of
from tranche.planning.decide.candidates import Candidate, candidate, gpus_needed
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.share_options import rules_of


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


def candidates_within_quota(view: NodeView, request: Request) -> tuple[Candidate | Obstacle, ...]:
    """Each GPU's candidate, as far as the user may still get it; the obstacle is the quota where the user may not."""
    found = tuple(candidate(request, gpu, rules_of(view, gpu)) for gpu in view.node)
    quota = quota_of(view.quotas, view.asker)
    if quota is None:
        return found
    held = _held(view)
    needed = gpus_needed(request)
    return tuple(_within(each, gpu, quota, held, needed) for each, gpu in zip(found, view.node, strict=True))


def refuse_beyond_quota(view: NodeView, request: Request) -> None:
    """Raises QuotaExceeded when the user could not get the request even while holding nothing."""
    if quota_of(view.quotas, view.asker) is None:
        return
    alone = candidates_within_quota(replace(view, allocations=()), request)
    beyond = [each for each in alone if isinstance(each, Obstacle) and each.reason is Reason.QUOTA]
    possible = sum(isinstance(each, Candidate) or each.reason is Reason.GPU_LOST for each in alone)
    if beyond and possible < gpus_needed(request):
        raise QuotaExceeded(
            f"{request} exceeds the quota: {beyond[0].text}",
            hint="ask for less; the quotas are in: tranche policy list",
        )


def refuse_too_long(view: NodeView, request: Request) -> None:
    """Raises QuotaExceeded when the request's time limit is longer than its user may run a command."""
    quota = quota_of(view.quotas, view.asker)
    most = None if quota is None else quota.time_limit
    if most is not None and request.time_limit is not None and request.time_limit > most:
        raise QuotaExceeded(
            f"{request} is too long: its user may run a command for at most {format_duration(most)}",
            hint="ask for less time; the quotas are in: tranche policy list",
        )


def _held(view: NodeView) -> _Held:
    found = [_size(each, view) for each in held_by_asker(view)]
    return _Held(
        sum(each.gpu_millionths for each in found),
        sum(each.memory for each in found),
        sum(len(each.grants) for each in held_by_asker(view)),
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


def _within(
    found: Candidate | Obstacle, gpu: GpuState, quota: UserQuota, held: _Held, needed: int
) -> Candidate | Obstacle:
    if isinstance(found, Obstacle):
        return found
    beyond: list[str] = []

    def allowed(grant: Grant) -> bool:
        why = _beyond(quota, held, grant_size(grant, gpu), needed)
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
        part = replace(part, ways=ways) if ways else None
    if profile is None and not whole and part is None:
        return obstacle(gpu, Reason.QUOTA, beyond[-1])
    return replace(found, profile=profile, whole=whole, part=part)


def _beyond(quota: UserQuota, held: _Held, asked: ShareSize, times: int) -> str:
    """What of the quota the user would exceed with so many times more, in words; "" for nothing."""
    after = held.plus(asked, times)
    if quota.shares is not None and after.shares > quota.shares:
        return _words(str(UserQuota(shares=quota.shares)), held, str(held.shares), str(times))
    if quota.gpu_percent is not None and after.gpu_millionths > quota.gpu_percent * WHOLE // 100:
        now, more = _up(held.gpu_millionths, WHOLE), _up(times * asked.gpu_millionths, WHOLE)
        return _words(str(UserQuota(quota.gpu_percent)), held, now, more)
    if quota.memory is not None and after.memory > quota.memory:
        unit, name = (GIB, "GiB") if quota.memory >= GIB else (MIB, "MiB")
        now, more = _up(held.memory, unit), _up(times * asked.memory, unit)
        return _words(f"{quota.memory * 100 // unit / 100:g} {name}", held, f"{now} {name}", f"{more} {name}")
    return ""


def _words(most: str, held: _Held, now: str, more: str) -> str:
    return f"its user may hold {most} at once" + (f", holds {now}" if held.shares else "") + f", and this needs {more}"


def _up(amount: int, unit: int) -> str:
    """Hundredths of the unit, rounded up: what exceeds a limit never looks as if it did not."""
    return f"{-(-amount * 100 // unit) / 100:.2f}".rstrip("0").rstrip(".")
