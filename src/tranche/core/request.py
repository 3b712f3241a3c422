"""Requests of workloads: one grammar for the whole product.

Exactly one of `--gpus N`, `--gpu SHARE`, `--gpu-memory AMOUNT` and `--mig-profile NAME`, with `--count`, `--compute`,
`--isolation`, `--gpu-model`, `--time` and `--preemptible` beside it. The canonical text of a request is the options that make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tranche.core.errors import UsageError
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import (
    format_duration,
    format_fraction,
    memory_option,
    parse_duration,
    parse_fraction,
    parse_memory,
)
from tranche.core.spelling import did_you_mean

if TYPE_CHECKING:
    from fractions import Fraction


class Isolation(StrEnum):
    """How strongly a share is isolated; in a request, the least that it accepts.

    HARD: own memory, compute, faults and bandwidth (a MIG slice or a whole GPU). SOFT: memory limits that the driver enforces,
    whatever else is shared. NONE: memory without limits. ANY, in a request, accepts all three.
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
    """`--gpu SHARE`: a share of one GPU, 0 < share <= 1: of the memory slices of a cut GPU, else of its memory."""

    share: Fraction

    def __str__(self) -> str:
        return f"--gpu {format_fraction(self.share)}"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """`--gpu-memory AMOUNT`: at least that many bytes of GPU memory."""

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
    """One workload's demand and conditions. `gpu_model` matches a case-insensitive part of the product name.

    `count` is how many such shares it takes, each on another GPU. `compute` is a ceiling in percent. `time_limit` is in seconds
    from the command's start. The command of a `preemptible` one ends for requests that are not, and starts again later.
    """

    demand: Demand
    isolation: Isolation = Isolation.SOFT
    gpu_model: str = ""
    count: int = 1
    compute: int | None = None
    time_limit: int | None = None
    preemptible: bool = False

    def __str__(self) -> str:
        text = str(self.demand)
        if self.count != 1:
            text += f" --count {self.count}"
        if self.compute is not None:
            text += f" --compute {self.compute}"
        if self.isolation is not Isolation.SOFT:
            text += f" --isolation {self.isolation}"
        if self.gpu_model:
            text += f" --gpu-model '{self.gpu_model}'" if " " in self.gpu_model else f" --gpu-model {self.gpu_model}"
        if self.time_limit is not None:
            text += f" --time {format_duration(self.time_limit)}"
        if self.preemptible:
            text += " --preemptible"
        return text


def parse_request(
    *,
    gpus: str | None = None,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    mig_profile: str | None = None,
    count: str | None = None,
    compute: str | None = None,
    isolation: str = "soft",
    gpu_model: str = "",
    time: str | None = None,
    preemptible: str | None = None,
) -> Request:
    """The request that the options make; raises UsageError unless there is exactly one demand and the options are compatible."""
    given = [text for text in (gpus, gpu, gpu_memory, mig_profile) if text is not None]
    if len(given) != 1:
        raise UsageError(
            "give exactly one of --gpus, --gpu, --gpu-memory or --mig-profile",
            hint="for example: --gpu-memory 4Gi",
        )
    demand: Demand
    if gpus is not None:
        demand = WholeGpus(
            _whole(gpus, "number of whole GPUs", "write it as --gpus 1; for a part of one GPU, use --gpu 0.5")
        )
    elif gpu is not None:
        demand = GpuShare(parse_fraction(gpu))
    elif gpu_memory is not None:
        demand = GpuMemory(parse_memory(gpu_memory))
    else:
        assert mig_profile is not None
        demand = _parse_slice(mig_profile)
    if isolation not in list(Isolation):
        raise UsageError(
            f"--isolation must be {_LEVELS}, not '{isolation}'", hint="it is the weakest isolation that you accept"
        )
    if not gpu_model.strip().isprintable():
        raise UsageError(
            "--gpu-model contains characters that do not occur in the names of GPU models",
            hint="write a part of the name: --gpu-model A100",
        )
    if len(gpu_model) > _LONGEST_MODEL:
        raise UsageError(
            f"--gpu-model has more than {_LONGEST_MODEL} characters, but no GPU model has a name that long"
        )
    request = Request(
        demand,
        Isolation(isolation),
        gpu_model.strip(),
        1 if count is None else _parse_shares(count, demand),
        None if compute is None else _parse_percent(compute),
        None if time is None else parse_time_limit(time),
        preemptible is not None,
    )
    _refuse_contradiction(request)
    return request


_LONGEST_MODEL = 100
_LEVELS = "'hard', 'soft', 'none' or 'any'"


def _parse_shares(text: str, demand: Demand) -> int:
    if isinstance(demand, WholeGpus):
        raise UsageError(
            "--count needs --gpu, --gpu-memory or --mig-profile", hint="for several whole GPUs, use --gpus N"
        )
    return _whole(text, "number of shares", "write it as --count 2: two shares, each on a different GPU")


def _parse_percent(text: str) -> int:
    digits = text.strip().removesuffix("%").rstrip()
    return _whole(text, "compute ceiling", "write it as a whole percentage from 1 to 100", digits, most=100)


def parse_time_limit(text: str) -> int:
    """The seconds of a time limit; raises UsageError for less than one."""
    seconds = round(parse_duration(text))
    if seconds < 1:
        raise UsageError(
            f"a time limit of '{text}' is shorter than a second", hint="use a time such as 45m, 4h or 1h30m"
        )
    return seconds


def _whole(text: str, what: str, hint: str, digits: str = "", most: int = 10**18) -> int:
    """The positive number that the text, or its `digits`, are; raises UsageError."""
    digits = digits or text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or not 1 <= int(digits) <= most:
        raise UsageError(f"'{text}' is not a {what}", hint=hint)
    return int(digits)


def _refuse_contradiction(request: Request) -> None:
    """Raise UsageError for conditions that no share can meet together."""
    if request.compute is None:
        return
    if isinstance(request.demand, WholeGpus | MigSlice):
        raise UsageError(
            f"--compute cannot be used with {request.demand}, which has its own compute units",
            hint="use --compute with --gpu or --gpu-memory",
        )
    if request.isolation is Isolation.HARD:
        raise UsageError(
            "--compute cannot be used with --isolation hard",
            hint="only a part of a shared device has a compute ceiling",
        )


def _parse_slice(text: str) -> MigSlice:
    try:
        profile = parse_profile(text)
    except UsageError as error:
        raise UsageError(error.message, hint=f"{_similar_profiles(text)}{error.hint}") from error
    if not profile.spans_gpu_instance:
        raise UsageError(
            f"a request for '{text}' is not possible: shares are whole GPU instances",
            hint=f"ask for {profile.gpu_instance}, or declare {profile} in a layout",
        )
    return MigSlice(profile)


def _similar_profiles(text: str) -> str:
    from tranche.core.board import catalogue  # slow to read, and needed only after a mistake

    return did_you_mean(text, dict.fromkeys(str(profile.name) for board in catalogue() for profile in board.profiles))
