"""What a workload asks for: one grammar for the whole product.

Exactly one of `--gpus N`, `--gpu SHARE`, `--gpu-memory AMOUNT` and `--mig-profile NAME`, with `--isolation` and `--gpu-model`
beside it. The canonical text of a request is the options that make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from tranche.core.errors import UsageError
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import format_fraction, memory_option, parse_fraction, parse_memory
from tranche.core.spelling import did_you_mean


class Isolation(StrEnum):
    """How strong the fence around a share is.

    HARD: own memory, own compute, own faults (a MIG slice or a whole GPU). SOFT: limits that the driver keeps among cooperating
    processes (MPS). NONE: taking turns. ANY, in a request, accepts each of them.
    """

    HARD = "hard"
    SOFT = "soft"
    NONE = "none"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """`--gpus N`: N whole GPUs."""

    count: int

    def __str__(self) -> str:
        return f"--gpus {self.count}"


@dataclass(frozen=True, slots=True)
class GpuShare:
    """`--gpu SHARE`: a share of one GPU, 0 < share <= 1, counted in memory slices of whichever GPU serves it."""

    share: Fraction

    def __str__(self) -> str:
        return f"--gpu {format_fraction(self.share)}"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """`--gpu-memory AMOUNT`: at least so many bytes of GPU memory."""

    amount: int

    def __str__(self) -> str:
        return f"--gpu-memory {memory_option(self.amount)}"


@dataclass(frozen=True, slots=True)
class MigSlice:
    """`--mig-profile NAME`: a MIG slice of exactly that profile."""

    profile: ProfileName

    def __str__(self) -> str:
        return f"--mig-profile {self.profile}"


Demand = WholeGpus | GpuShare | GpuMemory | MigSlice


@dataclass(frozen=True, slots=True)
class Request:
    """One workload's demand with its conditions. `gpu_model` is matched as a case-insensitive part of the product name."""

    demand: Demand
    isolation: Isolation = Isolation.HARD
    gpu_model: str = ""

    def __str__(self) -> str:
        text = str(self.demand)
        if self.isolation is not Isolation.HARD:
            text += f" --isolation {self.isolation}"
        if self.gpu_model:
            text += f" --gpu-model '{self.gpu_model}'" if " " in self.gpu_model else f" --gpu-model {self.gpu_model}"
        return text


def parse_request(
    *,
    gpus: str | None = None,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    mig_profile: str | None = None,
    isolation: str = "hard",
    gpu_model: str = "",
) -> Request:
    """The request that the options make; UsageError when there is not exactly one demand or one is malformed."""
    given = [text for text in (gpus, gpu, gpu_memory, mig_profile) if text is not None]
    if len(given) != 1:
        raise UsageError(
            "ask for exactly one of --gpus, --gpu, --gpu-memory and --mig-profile",
            hint="for example: tranche run --gpu-memory 4Gi -- python train.py",
        )
    demand: Demand
    if gpus is not None:
        demand = WholeGpus(_parse_count(gpus))
    elif gpu is not None:
        demand = GpuShare(parse_fraction(gpu))
    elif gpu_memory is not None:
        demand = GpuMemory(parse_memory(gpu_memory))
    else:
        assert mig_profile is not None
        demand = _parse_slice(mig_profile)
    if isolation not in (Isolation.HARD, Isolation.ANY):
        raise UsageError(f"--isolation is 'hard' or 'any', not '{isolation}'")
    return Request(demand, Isolation(isolation), gpu_model.strip())


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18) or int(text) == 0:
        raise UsageError(
            f"'{text}' is not a number of whole GPUs",
            hint="write it as --gpus 1; for a part of one GPU use --gpu 0.5",
        )
    return int(text)


def _parse_slice(text: str) -> MigSlice:
    try:
        profile = parse_profile(text)
    except UsageError as error:
        raise UsageError(error.message, hint=f"{_similar_profiles(text)}{error.hint}") from error
    if not profile.spans_gpu_instance:
        raise UsageError(
            f"a request cannot name '{text}': shares are whole GPU instances",
            hint=f"ask for {profile.gpu_instance}, or declare {profile} in a layout",
        )
    return MigSlice(profile)


def _similar_profiles(text: str) -> str:
    from tranche.core.board import catalogue  # slow to read, and needed only after a mistake

    return did_you_mean(text, dict.fromkeys(str(profile.name) for board in catalogue() for profile in board.profiles))
