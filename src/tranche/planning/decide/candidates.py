"""The smallest profile of an empty GPU that serves a request.

Memory is compared with the driver's figure for a profile, which is less than its name says: 1g.5gb of an A100-40GB holds 4864
MiB. A share is compared in memory slices instead, because the driver keeps a part of the memory for itself: measured in bytes, no
profile but the whole GPU would ever reach a half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tranche.core.allocation import NodeView
from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import DoesNotFit, GpuNotFound, ProfileUnknown, SharingUnavailable, TooManyGpus, TrancheError
from tranche.core.quantity import format_memory
from tranche.core.request import GpuMemory, GpuShare, MigSlice, Request, WholeGpus
from tranche.core.sharing import GpuPolicy
from tranche.core.sharing_policy import NO_RULES, GpuSharing
from tranche.core.state import GpuState
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle
from tranche.planning.decide.share_options import ShareOptions, no_part_text, part_wish, rules_of, smallest_share


class Candidate(NamedTuple):
    """How a GPU serves a request: by an instance of `profile`, whole (`whole`), or by a `part` of a shared device.

    If several are set, any of them serves; an exclusive device is preferred. `named` means that the request names this size, not
    an amount.
    """

    profile: GpuInstanceProfile | None
    whole: bool
    part: ShareOptions | None = None
    named: bool = False

    @property
    def alone(self) -> bool:
        """Whether an exclusive device serves the request."""
        return self.whole or self.profile is not None


_WHOLE = Candidate(None, True)
_A_WHOLE_GPU = "ask for a whole GPU with --gpus 1"


def candidate(request: Request, gpu: GpuState, rules: GpuSharing = NO_RULES) -> Candidate | Obstacle:
    """The smallest share of this GPU, were it empty, that serves the request; or else the obstacle.

    For a lost GPU the obstacle is always that it is lost.
    """
    return lost_obstacle(gpu) if gpu.lost else _fitting(request, gpu, rules)


def lost_obstacle(gpu: GpuState) -> Obstacle:
    """The obstacle of a GPU that the driver cannot reach."""
    return obstacle(gpu, Reason.GPU_LOST, "the driver has lost it")


def _fitting(request: Request, gpu: GpuState, rules: GpuSharing) -> Candidate | Obstacle:
    if not matches_model(request, gpu):
        return obstacle(gpu, Reason.GPU_MODEL_MISMATCH, f"is {gpu.name}, not {request.gpu_model}")
    match request.demand:
        case WholeGpus():
            return _WHOLE._replace(named=True)
        case MigSlice():
            return _for_profile(request.demand, gpu, rules.use)
        case GpuMemory() | GpuShare():
            return _for_part_of_gpu(request, gpu, rules)


def _for_part_of_gpu(request: Request, gpu: GpuState, rules: GpuSharing) -> Candidate | Obstacle:
    part = part_wish(request, gpu, rules)
    alone = _smallest_for_one_holder(request, gpu, rules)
    if isinstance(alone, Candidate):
        return alone if part is None else alone._replace(part=part)
    return alone if part is None else Candidate(None, False, part)


def _smallest_for_one_holder(request: Request, gpu: GpuState, rules: GpuSharing) -> Candidate | Obstacle:
    """The smallest profile with room for the request; or the whole GPU."""
    cuttable = gpu.mig_capable and rules.use in (GpuPolicy.AUTO, GpuPolicy.MIG)
    profiles = plain_profiles(gpu) if cuttable else ()
    match request.demand:
        case GpuMemory(amount):
            most = max([gpu.usable_memory, *(profile.memory or 0 for profile in profiles)])
            if amount > most:
                return _too_small(gpu, amount, most)
            if request.compute is not None:
                return _no_part(request, gpu, rules)
            for profile in profiles:
                if profile.memory is not None and profile.memory >= amount:
                    return Candidate(profile, profile.size == gpu.memory_slices and amount <= gpu.usable_memory)
            more_than_half = amount * 2 > gpu.usable_memory
        case GpuShare(share):
            if request.compute is not None:
                return _no_part(request, gpu, rules)
            for profile in profiles:
                if profile.size >= share * gpu.memory_slices:
                    return Candidate(profile, profile.size == gpu.memory_slices)
            more_than_half = share * 2 > 1
        case _:
            return _WHOLE
    # If no slice serves the request: the whole GPU, unless another share of the same size would fit beside it.
    return _WHOLE if more_than_half or cuttable else _no_part(request, gpu, rules)


def _no_part(request: Request, gpu: GpuState, rules: GpuSharing) -> Obstacle:
    reason = Reason.POLICY if rules.use is GpuPolicy.OFF else Reason.SHARING_UNAVAILABLE
    return obstacle(gpu, reason, no_part_text(request, gpu, rules))


def _too_small(gpu: GpuState, amount: int, most: int) -> Obstacle:
    text = f"has {format_memory(most)} available to programs"
    return obstacle(gpu, Reason.MEMORY_TOO_SMALL, text, missing_memory=amount - most)


def matches_model(request: Request, gpu: GpuState) -> bool:
    """Whether the GPU's product name contains the `--gpu-model` text, case-insensitive."""
    return request.gpu_model.lower() in gpu.name.lower()


def gpus_needed(request: Request) -> int:
    """How many GPUs the request takes at once."""
    return request.demand.count if isinstance(request.demand, WholeGpus) else request.count


def one_of(request: Request) -> Request:
    """The same request for a single GPU."""
    return replace(request, demand=WholeGpus(1)) if isinstance(request.demand, WholeGpus) else replace(request, count=1)


def check_possible(view: NodeView, request: Request) -> None:
    """Raise the error that says why no state of these GPUs could ever serve the request; return if one could.

    Raises GpuNotFound (no GPU, or none of the model), ProfileUnknown, SharingUnavailable, DoesNotFit or TooManyGpus.
    """
    of_model = [gpu for gpu in view.node if matches_model(request, gpu)]
    if not of_model:
        raise _no_gpu(request, view.node.gpus)
    # Lost GPUs could serve unknown requests, so the others decide. Without others, none can.
    matching = [(gpu, rules_of(view, gpu)) for gpu in of_model if not gpu.lost]
    if not matching:
        return
    lost = len(of_model) - len(matching)
    answers = [candidate(request, gpu, rules) for gpu, rules in matching]
    obstacles = [answer for answer in answers if isinstance(answer, Obstacle)]
    if len(obstacles) == len(matching):
        raise _impossible(request, matching, obstacles)
    count = len(matching) - len(obstacles)
    refused = list(filter(_is_refusal, obstacles))
    if count + lost < gpus_needed(request) <= count + lost + len(refused):
        texts = dict.fromkeys(answer.text for answer in refused)
        raise SharingUnavailable(
            f"{request} asks for {gpus_needed(request)} GPUs, but only {count} GPU{'s' if count != 1 else ''} "
            f"on this machine can serve one of its shares; "
            f"every other GPU {'; '.join(texts)}",
            hint="ask for fewer GPUs",
        )
    if gpus_needed(request) > count + lost:
        which = f" with '{request.gpu_model}' in the name" if request.gpu_model else ""
        which += " that could serve one of its shares" if obstacles else ""
        raise TooManyGpus(
            f"{request} asks for {gpus_needed(request)} GPUs, but this machine has {count}{which}",
            hint="ask for fewer GPUs",
        )


def plain_profiles(gpu: GpuState) -> tuple[GpuInstanceProfile, ...]:
    """The placeable profiles without attributes, smallest first: by memory slices, then by compute slices."""
    usable = (p for p in gpu.profiles if p.starts and not p.name.has_attributes)
    return tuple(sorted(usable, key=lambda p: (p.size, p.slices)))


def _for_profile(demand: MigSlice, gpu: GpuState, use: GpuPolicy) -> Candidate | Obstacle:
    profile = gpu.profile(demand.profile)
    if profile is None or not profile.starts:
        text = f"offers no {demand.profile}" if gpu.mig_capable else "cannot be partitioned: it does not support MIG"
        return obstacle(gpu, Reason.PROFILE_NOT_SUPPORTED, text)
    if use in (GpuPolicy.SHARED, GpuPolicy.OFF):
        return obstacle(gpu, Reason.POLICY, f"is not partitioned for requests: its policy is sharing={use}")
    return Candidate(profile, False, named=True)


def _no_gpu(request: Request, gpus: Sequence[GpuState]) -> TrancheError:
    if not gpus:
        return GpuNotFound("this machine has no GPU", hint="try a simulated machine: tranche sim create p4d.24xlarge")
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return GpuNotFound(f"no GPU on this machine is a '{request.gpu_model}'; it has: {names}")


def _impossible(
    request: Request, known: Sequence[tuple[GpuState, GpuSharing]], obstacles: Sequence[Obstacle]
) -> TrancheError:
    refused = list(filter(_is_refusal, obstacles))
    gpus = [gpu for gpu, _ in known]
    if refused:
        texts = dict.fromkeys(each.text for each in refused)
        whole_only = all(each.reason is Reason.POLICY for each in refused)
        return SharingUnavailable(
            f"no GPU on this machine can serve {request}: {'; '.join(texts)}",
            hint=_A_WHOLE_GPU if whole_only else _way_out(request, known),
        )
    if isinstance(request.demand, MigSlice):
        offered = sorted({p.name for gpu in gpus for p in gpu.profiles if p.starts})
        if not offered:
            return ProfileUnknown(
                f"no GPU on this machine offers {request.demand.profile}: none supports MIG",
                hint=_A_WHOLE_GPU,
            )
        return ProfileUnknown(
            f"no GPU on this machine offers {request.demand.profile}",
            hint="it offers " + ", ".join(map(str, offered)),
        )
    largest = max(gpu.usable_memory for gpu in gpus)
    return DoesNotFit(
        f"{request} is more than any GPU on this machine has; the largest has {format_memory(largest)} available to programs",
        hint="ask for less, or for several whole GPUs with --gpus N",
    )


def _is_refusal(answer: Obstacle) -> bool:
    """Whether the GPU is large enough, but has no mechanism or permission to be shared as the request wants."""
    return answer.reason in (Reason.SHARING_UNAVAILABLE, Reason.POLICY)


def _way_out(request: Request, known: Sequence[tuple[GpuState, GpuSharing]]) -> str:
    """An alternative to a part that no GPU gives."""
    shares = (smallest_share(request, gpu, rules) for gpu, rules in known if rules.use is not GpuPolicy.OFF)
    if enough := min((each for each in shares if each is not None), default=None):
        return f"ask for --gpu {float(enough):g} or more"
    if request.compute is not None:
        return "omit --compute"
    return _A_WHOLE_GPU
