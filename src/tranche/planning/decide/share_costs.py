"""What sharing a device costs beside what programs ask for, and how much of the device is therefore left to give away.

The figures are measurements of others on single boards, rounded up; they err on the side of giving away less.
"""

from __future__ import annotations

from collections.abc import Mapping

from tranche.core.board import GpuInstanceProfile
from tranche.core.quantity import MIB
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState

CONTEXT_MEMORY: Mapping[Sharing, int] = {
    Sharing.MEMORY_LIMITS: 512 * MIB,
    Sharing.MPS: 326 * MIB,
    Sharing.TIME_SLICING: 512 * MIB,
}
"""In bytes: what a program's CUDA context takes of its own limit before the program has asked for anything.

An MPS client of an H100's 3g.40gb that ran NVIDIA's BlackScholes sample was seen with 326 MiB. A context without MPS takes about
500 MiB on an H100; no measurement on other boards is known. Whoever asks for an amount of memory gets this on top, because the
driver and MPS count a context like everything else.
"""

RESERVED_MEMORY: Mapping[Sharing, int] = {Sharing.MEMORY_LIMITS: 0, Sharing.MPS: 64 * MIB, Sharing.TIME_SLICING: 0}
"""In bytes: what the mechanism itself takes of a device. An MPS server was seen with 30 MiB on a V100 and with 60 on an H100."""

FEWEST_CLIENTS = 16
"""How many clients MPS serves on a GPU where the driver's number is not known: the smallest that NVIDIA documents."""

ALL_COMPUTE = 100
"""In percent: what the ceilings on one device add up to at most, so that each of them can be reached."""


def capacity(sharing: Sharing, memory: int) -> int:
    """The bytes that can be given away in parts of a device of which programs can have so much `memory`."""
    return memory - RESERVED_MEMORY[sharing]


def clients_inside(clients: int, profile: GpuInstanceProfile, gpu: GpuState) -> int:
    """How many clients MPS serves in a slice, by its part of the GPU's compute slices: no source gives the numbers."""
    most = max((each.slices for each in gpu.profiles), default=profile.slices)
    return max(1, clients * profile.slices // most)
