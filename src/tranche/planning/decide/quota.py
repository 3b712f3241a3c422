"""What a user may still get: the administrator's quota, less what the user holds.

A slice counts as its part of the GPU's memory or of its compute, the larger one; all its memory counts. So seven 1g slices are
one GPU. A part of a shared device counts as its part of the memory, with CUDA's context, or as its compute ceiling if that is
larger.
All grants on a GPU that does not show what it has count as one GPU, and with the memory that the ledger recorded for them.
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
    grant_memory,
)
from tranche.core.errors import QuotaExceeded
from tranche.core.grid import Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import GIB, MIB, format_duration
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
    """GPUs, of which a slice is a fraction, bytes, and grants."""

    gpus: Fraction
    memory: int
    shares: int = 1

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
            f"{request} exceeds the quota: {beyond[0].text}",
            hint="ask for less; see the quotas with: tranche policy list",
        )


def refuse_too_long(view: NodeView, request: Request) -> None:
    """Raises QuotaExceeded when the request's time limit is longer than its user may run a command."""
    quota = quota_of(view.quotas, view.asker)
    most = None if quota is None else quota.time_limit
    if most is not None and request.time_limit is not None and request.time_limit > most:
        raise QuotaExceeded(
            f"{request} is too long: the user may run a command for at most {format_duration(most)}",
            hint="ask for less time; see the quotas with: tranche policy list",
        )


def _held(view: NodeView) -> _Amount:
    from fractions import Fraction  # a slow import, and most machines have no quotas

    gpus = {gpu.uuid: gpu for gpu in view.node}
    most = max((gpu.usable_memory for gpu in view.node), default=0)
    found = nothing = _Amount(Fraction(0), 0, 0)
    dark: set[str] = set()
    for each in held_by_asker(view):
        share = nothing
        for grant in each.grants:
            gpu = gpus.get(grant.gpu_uuid)
            amount = _amount(grant, gpu, most)
            if gpu is None or gpu.lost:
                amount = amount._replace(gpus=Fraction(grant.gpu_uuid not in dark))
                dark.add(grant.gpu_uuid)
            share = share.plus(amount)
        found = found.plus(share._replace(memory=each.memory or share.memory))
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
    if quota.shares is not None and after.shares > quota.shares:
        return _words(str(UserQuota(shares=quota.shares)), held, str(held.shares), str(times))
    if quota.gpu_percent is not None and after.gpus > Fraction(quota.gpu_percent, 100):
        return _words(str(UserQuota(quota.gpu_percent)), held, _up(held.gpus), _up(times * asked.gpus))
    if quota.memory is not None and after.memory > quota.memory:
        unit, name = (GIB, "GiB") if quota.memory >= GIB else (MIB, "MiB")
        now, more = _up(Fraction(held.memory, unit)), _up(Fraction(times * asked.memory, unit))
        return _words(f"{quota.memory * 100 // unit / 100:g} {name}", held, f"{now} {name}", f"{more} {name}")
    return ""


def _words(most: str, held: _Amount, now: str, more: str) -> str:
    return (
        f"the user may hold at most {most} at once"
        + (f", already holds {now}" if held.shares else "")
        + f", and this needs {more}"
    )


def _up(number: Fraction) -> str:
    """Hundredths, rounded up: what exceeds a limit never looks as if it did not."""
    return f"{-(-number * 100 // 1) / 100:.2f}".rstrip("0").rstrip(".")


def _amount(grant: Grant, gpu: GpuState | None, most: int = 0) -> _Amount:
    """What a grant counts as. One on a GPU that does not show what it has counts as a whole GPU of `most` bytes."""
    from fractions import Fraction

    if gpu is None or gpu.lost:
        return _Amount(Fraction(1), grant.memory if isinstance(grant, FractionalShare) else most)
    memory = grant_memory(grant, gpu)
    match grant:
        case WholeGpu():
            return _Amount(Fraction(1), memory)
        case Slice():
            profile, slices = gpu.profile(grant.profile), max((each.slices for each in gpu.profiles), default=1)
            compute = Fraction(0 if profile is None else profile.slices, slices)
            part = Fraction(grant.placement.size, gpu.memory_slices or grant.placement.size)
            return _Amount(max(compute, part), memory)
        case ComputeSlice():
            return _amount(grant.inside, gpu)
        case FractionalShare():
            compute = _amount(grant.device, gpu).gpus * Fraction(grant.compute or 0, ALL_COMPUTE)
            return _Amount(max(compute, Fraction(grant.memory, max(gpu.usable_memory, 1))), memory)
