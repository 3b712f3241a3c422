"""Which profile of a GPU serves a request, when the GPU is empty.

Memory is compared with what the driver reports for a profile, which is less than the profile's name says: 1g.5gb of an
A100-40GB holds 4864 MiB. A share is compared in memory slices instead, because the driver keeps a part of the memory for itself:
measured in bytes, no profile but the whole GPU would ever reach a half.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import DoesNotFit, GpuNotFound, ProfileUnknown, SharingUnavailable, TrancheError
from tranche.core.quantity import format_memory
from tranche.core.request import GpuMemory, GpuShare, MigSlice, Request, WholeGpus
from tranche.core.state import GpuState
from tranche.planning.obstacle import Obstacle, Reason, obstacle


@dataclass(frozen=True, slots=True)
class Candidate:
    """How a GPU serves a request: by an instance of `profile`, as a whole (`whole`), or, when both are set, by either."""

    profile: GpuInstanceProfile | None
    whole: bool

    @property
    def memory(self) -> int:
        """Bytes of the slice as the driver reports them; 0 for a whole GPU and where no source shows the figure."""
        return 0 if self.profile is None else self.profile.memory or 0


_WHOLE = Candidate(None, True)


def candidate(request: Request, gpu: GpuState) -> Candidate | Obstacle:
    """What of this GPU, were it empty, is the smallest that serves the request; or why nothing does."""
    if not matches_model(request, gpu):
        return obstacle(gpu, Reason.GPU_MODEL_MISMATCH, f"is {gpu.name}, not {request.gpu_model}")
    if request.compute is not None:
        return obstacle(gpu, Reason.SHARING_UNAVAILABLE, "a ceiling of compute needs MPS, which is not served yet")
    if request.limit is not None:
        text = "memory that may grow needs memory limits of the driver, which are not served yet"
        return obstacle(gpu, Reason.SHARING_UNAVAILABLE, text)
    match request.demand:
        case WholeGpus():
            return _WHOLE
        case MigSlice():
            return _for_profile(request.demand, gpu)
        case GpuMemory():
            return _for_memory(request.demand, gpu)
        case GpuShare():
            return _for_share(request.demand, gpu)


def matches_model(request: Request, gpu: GpuState) -> bool:
    """Whether the GPU's product name contains what `--gpu-model` says, in any case."""
    return request.gpu_model.lower() in gpu.name.lower()


def gpus_needed(request: Request) -> int:
    """How many GPUs the request takes at once."""
    return request.demand.count if isinstance(request.demand, WholeGpus) else request.count


def one_of(request: Request) -> Request:
    """The same for one of the GPUs that the request takes."""
    return replace(request, demand=WholeGpus(1)) if isinstance(request.demand, WholeGpus) else replace(request, count=1)


def check_possible(request: Request, gpus: Iterable[tuple[GpuState, int]]) -> None:
    """Raise the error that says why no state of these GPUs could ever serve the request; return if one could.

    Each GPU comes with how many there are of its kind. Raises GpuNotFound (no GPU, or none of the model), ProfileUnknown,
    SharingUnavailable or DoesNotFit.
    """
    numbers = list(gpus)
    matching = [(gpu, number) for gpu, number in numbers if matches_model(request, gpu)]
    if not matching:
        raise _no_gpu(request, [gpu for gpu, _ in numbers])
    answers = [(candidate(request, gpu), number) for gpu, number in matching]
    obstacles = [answer for answer, _ in answers if isinstance(answer, Obstacle)]
    if len(obstacles) == len(matching):
        raise _impossible(request, [gpu for gpu, _ in matching], obstacles)
    count = sum(number for answer, number in answers if isinstance(answer, Candidate))
    if gpus_needed(request) > count:
        which = f" whose name contains '{request.gpu_model}'" if request.gpu_model else ""
        which += " that could serve one of its shares" if obstacles else ""
        raise DoesNotFit(
            f"{request} asks for {gpus_needed(request)} GPUs and this machine has {count}{which}",
            hint="ask for fewer GPUs",
        )


def plain_profiles(gpu: GpuState) -> tuple[GpuInstanceProfile, ...]:
    """The placeable profiles without attributes, smallest first: by memory slices, then by compute slices."""
    usable = (p for p in gpu.profiles if p.starts and not p.name.has_attributes)
    return tuple(sorted(usable, key=lambda p: (p.size, p.slices)))


def _for_profile(demand: MigSlice, gpu: GpuState) -> Candidate | Obstacle:
    profile = gpu.profile(demand.profile)
    if profile is not None and profile.starts:
        return Candidate(profile, False)
    text = f"offers no {demand.profile}" if gpu.mig_capable else "cannot be cut: it has no MIG"
    return obstacle(gpu, Reason.PROFILE_NOT_SUPPORTED, text)


def _for_memory(demand: GpuMemory, gpu: GpuState) -> Candidate | Obstacle:
    for profile in plain_profiles(gpu):
        if profile.memory is not None and profile.memory >= demand.amount:
            return Candidate(profile, profile.size == gpu.memory_slices)
    if demand.amount > gpu.memory:
        return obstacle(
            gpu,
            Reason.MEMORY_TOO_SMALL,
            f"has {format_memory(gpu.memory)} in all",
            missing_memory=demand.amount - gpu.memory,
        )
    return _uncut(gpu, demand.amount * 2 > gpu.memory)


def _for_share(demand: GpuShare, gpu: GpuState) -> Candidate | Obstacle:
    for profile in plain_profiles(gpu):
        if profile.size >= demand.share * gpu.memory_slices:
            return Candidate(profile, profile.size == gpu.memory_slices)
    return _uncut(gpu, demand.share * 2 > 1)


def _uncut(gpu: GpuState, more_than_half: bool) -> Candidate | Obstacle:
    """A GPU of which no slice serves the request: whole, unless another share of the same size would fit beside it."""
    if gpu.mig_capable or more_than_half:
        return _WHOLE
    return obstacle(
        gpu, Reason.SHARING_UNAVAILABLE, "has no MIG; part of it could be given only by MPS, which is not served yet"
    )


def _no_gpu(request: Request, gpus: list[GpuState]) -> TrancheError:
    if not gpus:
        return GpuNotFound("this machine has no GPU", hint="try a simulated machine: tranche sim create p4d.24xlarge")
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return GpuNotFound(f"no GPU of this machine is a '{request.gpu_model}'; it has: {names}")


def _impossible(request: Request, gpus: list[GpuState], obstacles: list[Obstacle]) -> TrancheError:
    if isinstance(request.demand, MigSlice):
        offered = sorted({p.name for gpu in gpus for p in gpu.profiles if p.starts})
        if not offered:
            return ProfileUnknown(
                f"no GPU of this machine can be cut into {request.demand.profile}: none has MIG",
                hint="ask for a whole GPU with --gpus 1",
            )
        return ProfileUnknown(
            f"no GPU of this machine can be cut into {request.demand.profile}",
            hint="it offers " + ", ".join(map(str, offered)),
        )
    if request.compute is not None or request.limit is not None:
        option = "--compute" if request.limit is None else "--gpu-memory-limit"
        return SharingUnavailable(
            f"{request} cannot be served: {obstacles[0].text}", hint=f"ask for the same without {option}"
        )
    if any(each.reason is Reason.SHARING_UNAVAILABLE for each in obstacles):
        return SharingUnavailable(
            f"{request} needs a part of a GPU that has no MIG; parts of it need MPS, which this version does not serve",
            hint="ask for a whole GPU with --gpus 1",
        )
    largest = max(gpu.memory for gpu in gpus)
    return DoesNotFit(
        f"{request} is more than any GPU of this machine has; the largest has {format_memory(largest)}",
        hint="ask for less, or for several whole GPUs with --gpus N",
    )
