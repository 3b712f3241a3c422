"""What the demo runs: its jobs, how long each takes, and what the comparison would give without any overhead.

The comparison is that of AWS's p4d.24xlarge example: 56 super-resolution jobs take about four minutes one per GPU on eight GPUs,
and 87 seconds all at once in 56 slices of 1g.5gb, 2.76 times faster. Seven rounds in four minutes make 34.3 s a job.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tranche.core.board import GpuInstanceProfile
from tranche.core.profile import ProfileName
from tranche.core.request import MigSlice, Request, WholeGpus, parse_request

WHOLE_GPU_SECONDS = 34.3
SLICE_SECONDS = 87.0
DEFAULT_SEED = 7

_MIXED_SIZES = (1, 2, 3)
_MIXED_MEMORY_COUNTS = (5, 3, 2)
_MIXED_PROFILE_COUNTS = (3, 3, 1)
_MIXED_SHARES = ("0.25", "0.25", "0.25", "0.5", "0.5")
_MIXED_SECONDS = (15.0, 45.0)
_MIXED_MEAN_GAP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `arrival` is when it asks after its batch began, and `seconds` how long it runs, both on the demo's clock."""

    name: str
    request: Request
    seconds: float
    arrival: float = 0.0


def whole_gpu_batch(count: int, gpu_model: str) -> tuple[Job, ...]:
    """So many equal jobs, each on a GPU of its own, all asked for at once."""
    request = Request(WholeGpus(1), gpu_model=gpu_model)
    return tuple(Job(f"whole-{number}", request, WHOLE_GPU_SECONDS) for number in range(1, count + 1))


def slice_batch(count: int, profile: ProfileName, gpu_model: str) -> tuple[Job, ...]:
    """The same jobs, each in a slice of that profile."""
    request = Request(MigSlice(profile), gpu_model=gpu_model)
    return tuple(Job(f"slice-{number}", request, SLICE_SECONDS) for number in range(1, count + 1))


def mixed_batch(profiles: Sequence[GpuInstanceProfile], gpu_model: str, seed: int) -> tuple[Job, ...]:
    """22 requests by memory, by share and by profile; order, times and lengths are drawn by the seed.

    `profiles` are those of the GPU without attributes, smallest first. Memory is asked for at four fifths of what the profiles
    of one, two and three slices hold, in whole GB.
    """
    draw = random.Random(seed)
    sized = [next((p for p in profiles if p.slices == slices), profiles[-1]) for slices in _MIXED_SIZES]
    options = [{"gpu": share} for share in _MIXED_SHARES]
    for profile, by_memory, by_name in zip(sized, _MIXED_MEMORY_COUNTS, _MIXED_PROFILE_COUNTS, strict=True):
        options += [{"gpu_memory": f"{(profile.memory or 0) * 4 // 5 // 10**9}G"}] * by_memory
        options += [{"mig_profile": str(profile.name)}] * by_name
    draw.shuffle(options)
    jobs: list[Job] = []
    arrival = 0.0
    for number, option in enumerate(options, start=1):
        request = parse_request(**option, gpu_model=gpu_model)
        jobs.append(Job(f"mixed-{number}", request, draw.uniform(*_MIXED_SECONDS), arrival))
        arrival += draw.expovariate(1 / _MIXED_MEAN_GAP_SECONDS)
    return tuple(jobs)


def ideal_seconds(jobs: Sequence[Job], at_once: int) -> float:
    """How long a batch of equal jobs takes when nothing else takes time."""
    return math.ceil(len(jobs) / at_once) * max(job.seconds for job in jobs)
