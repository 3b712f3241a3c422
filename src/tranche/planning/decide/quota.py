"""What a user may still get: the administrator's quota, less what the user holds.

A slice counts as its part of the GPU's memory or of its compute, the larger one; all its memory counts. A part of a shared device
counts with the memory that CUDA's context takes of it. So seven 1g slices are one GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tranche.core.allocation import (
    Allocation,
    ComputeSlice,
    FractionalShare,
    Grant,
    NodeView,
    Slice,
    WholeGpu,
    memory_of,
)
from tranche.core.errors import QuotaExceeded
from tranche.core.grid import Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import format_duration, format_memory
from tranche.core.request import Request
from tranche.core.sharing import ALL_COMPUTE
from tranche.core.state import GpuState
from tranche.core.user_quota import UserQuota, quota_of
from tranche.planning.decide.candidates import Candidate, candidate, gpus_needed
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.share_options import rules_of

if TYPE_CHECKING:
    from fractions import Fraction


class _Amount(NamedTuple):
    """GPUs, of which a slice is a fraction, bytes, and allocations."""

    gpus: Fraction
    memory: int
    shares: int = 0

    def plus(self, other: _Amount, times: int = 1) -> _Amount:
        return _Amount(
            self.gpus + times * other.gpus, self.memory + times * other.memory, self.shares + times * other.shares
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
            f"{request} is more than this user may ever hold: {beyond[0].text}",
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


def _held(view: NodeView) -> _Amount:
    from fractions import Fraction  # a slow import, and most machines have no quotas

    gpus = {gpu.uuid: gpu for gpu in view.node}
    found = _Amount(Fraction(0), 0)
    for each in held_by_asker(view):
        found = found.plus(_Amount(Fraction(0), 0, 1))
        for grant in each.grants:
            found = found.plus(_amount(grant, gpus.get(grant.gpu_uuid)))
    return found


def _within(
    found: Candidate | Obstacle, gpu: GpuState, quota: UserQuota, held: _Amount, needed: int
) -> Candidate | Obstacle:
    if isinstance(found, Obstacle):
        return found
    beyond: list[str] = []

    def allowed(grant: Grant) -> bool:
        why = _beyond(quota, held, _amount(grant, gpu), needed)
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


def _beyond(quota: UserQuota, held: _Amount, asked: _Amount, times: int) -> str:
    """What of the quota the user would exceed with so many times more, in words; "" for nothing."""
    from fractions import Fraction

    after = held.plus(asked, times)
    if quota.shares is not None and held.shares >= quota.shares:
        return f"the user may hold {UserQuota(shares=quota.shares)} at once, and holds {held.shares}"
    if quota.gpu_percent is not None and after.gpus > Fraction(quota.gpu_percent, 100):
        most, now, more = UserQuota(quota.gpu_percent), _decimal(held.gpus), _decimal(times * asked.gpus)
        return f"the user may hold {most} at once, holds {now}, and this is {more} more"
    if quota.memory is not None and after.memory > quota.memory:
        now, more = format_memory(held.memory), format_memory(times * asked.memory)
        return f"the user may hold {UserQuota(memory=quota.memory)} at once, holds {now}, and this is {more} more"
    return ""


def _amount(grant: Grant, gpu: GpuState | None) -> _Amount:
    """What a grant counts as. On a GPU that does not show what it has, a grant counts as the whole GPU."""
    from fractions import Fraction

    if gpu is None or gpu.lost:
        return _Amount(Fraction(1), grant.memory if isinstance(grant, FractionalShare) else 0)
    match grant:
        case WholeGpu():
            return _Amount(Fraction(1), gpu.usable_memory)
        case Slice():
            profile, most = gpu.profile(grant.profile), max((each.slices for each in gpu.profiles), default=1)
            compute = Fraction(0 if profile is None else profile.slices, most)
            memory = Fraction(grant.placement.size, gpu.memory_slices or grant.placement.size)
            return _Amount(max(compute, memory), memory_of(grant, gpu))
        case ComputeSlice():
            return _amount(grant.inside, gpu)
        case FractionalShare():
            compute = _amount(grant.device, gpu).gpus * Fraction(grant.compute or 0, ALL_COMPUTE)
            return _Amount(max(compute, Fraction(grant.memory, max(gpu.usable_memory, 1))), grant.memory)


def _decimal(gpus: Fraction) -> str:
    return f"{float(gpus):.2f}".rstrip("0").rstrip(".")
