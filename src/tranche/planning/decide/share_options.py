"""The parts of a shared device that would serve a request: their mechanisms and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tranche.core.allocation import NodeView
from tranche.core.board import GpuInstanceProfile
from tranche.core.quantity import MIB, format_memory
from tranche.core.request import GpuMemory, GpuShare, Isolation, Request
from tranche.core.sharing import ALL_COMPUTE, FEWEST_CLIENTS, GpuPolicy, Sharing, capacity
from tranche.core.sharing_policy import GpuSharing
from tranche.core.state import GpuState

if TYPE_CHECKING:
    from fractions import Fraction


def rules_of(view: NodeView, gpu: GpuState) -> GpuSharing:
    """The sharing rules of one of the view's GPUs."""
    return GpuSharing(view.use_of(gpu.uuid), view.node.sharing)


_FEWEST_SM = 2
"""MPS rounds ceilings to pairs of multiprocessors, and a program needs at least one pair."""


class ShareOption(NamedTuple):
    """A mechanism and its part for the request: `memory` in bytes."""

    sharing: Sharing
    memory: int


class ShareOptions(NamedTuple):
    """The parts that serve a request, strongest mechanism first.

    `compute` is the ceiling in percent, or None. `clients` is how many clients MPS serves on one GPU. `inside` says whether
    slices may be shared too, not only uncut GPUs. `amount` is the bytes for the program itself.
    """

    ways: tuple[ShareOption, ...]
    compute: int | None
    clients: int
    inside: bool
    amount: int = 0

    def way(self, sharing: Sharing) -> ShareOption | None:
        """The part by that mechanism; None if it does not serve the request."""
        return next((each for each in self.ways if each.sharing is sharing), None)

    def too_fine_for(self, profile: GpuInstanceProfile | None) -> str:
        """Why MPS cannot keep the ceiling in a slice of that profile, in words that follow its name; "" if it can."""
        if self.compute is None or profile is None or profile.sm is None:
            return ""
        if profile.sm * self.compute >= _FEWEST_SM * ALL_COMPUTE:
            return ""
        few = f"{self.compute}% of them is less than the minimum of {_FEWEST_SM} for MPS"
        return f"has {profile.sm} multiprocessors, and {few}"


def part_wish(request: Request, gpu: GpuState, rules: GpuSharing) -> ShareOptions | None:
    """The parts of that GPU, were it empty, that serve a request for memory or a share; None if none does."""
    if rules.use in (GpuPolicy.MIG, GpuPolicy.OFF) or not rules.means.offered:
        return None
    ways = [
        way
        for sharing in accepted(request)
        if not rules.why_not(sharing, gpu) and (way := _way(request, gpu, sharing)) is not None
    ]
    if not ways:
        return None
    clients = rules.means.mps_clients or FEWEST_CLIENTS
    inside = rules.use is GpuPolicy.AUTO
    return ShareOptions(tuple(ways), request.compute, clients, inside, _amount(request, gpu))


def _amount(request: Request, gpu: GpuState) -> int:
    """The requested bytes, without the context."""
    match request.demand:
        case GpuMemory(amount):
            return amount
        case GpuShare(share):
            return int(share * gpu.usable_memory)
        case _:
            return 0


def accepted(request: Request) -> tuple[Sharing, ...]:
    """The mechanisms that the request accepts, strongest first, independent of the machine.

    A program with several shares cannot use MPS: it can use only one daemon, and each device has its own. All of a GPU is never
    shared.
    """
    everything = isinstance(request.demand, GpuShare) and request.demand.share == 1 and request.compute is None
    if request.isolation is Isolation.HARD or everything:
        return ()
    ways = {*Sharing} if request.count == 1 else {*Sharing} - {Sharing.MPS}
    if request.compute is not None:
        ways &= {Sharing.MPS}
    elif request.isolation not in (Isolation.NONE, Isolation.ANY):
        ways -= {Sharing.TIME_SLICING}
    return tuple(each for each in Sharing if each in ways)


def _way(request: Request, gpu: GpuState, sharing: Sharing) -> ShareOption | None:
    """None if the GPU is too small for it, or the share for a CUDA context."""
    room = capacity(sharing, gpu.usable_memory)
    match request.demand:
        case GpuMemory(amount):
            memory = _whole_mebibytes(amount + gpu.context_memory)
        case GpuShare(share):
            memory = int(share * room) // MIB * MIB
            if memory <= gpu.context_memory:
                return None
        case _:
            return None
    return ShareOption(sharing, memory) if 0 < memory <= room else None


def _whole_mebibytes(amount: int) -> int:
    """Rounds up to MiB, the unit of limits."""
    return -(-amount // MIB) * MIB


def no_part_text(request: Request, gpu: GpuState, rules: GpuSharing) -> str:
    """Why no part of that GPU serves a request that no exclusive device serves, in words that follow its name."""
    if rules.use is GpuPolicy.OFF:
        return "is only granted whole: its policy is sharing=off"
    if request.isolation is Isolation.HARD:
        return "does not support MIG, and a part with hard isolation requires MIG"
    if rules.use is GpuPolicy.MIG:
        return "is shared only in slices: its policy is sharing=mig"
    refused = [(each, rules.why_not(each, gpu) or _misfit(request, gpu, each)) for each in accepted(request)]
    if request.count > 1:
        refused.append((Sharing.MPS, "one program can use it on only one GPU"))
    ways = " or ".join(f"{sharing.for_people} ({why})" for sharing, why in refused)
    if request.compute is not None and request.count > 1:
        return "limits the compute of a share with MPS, and a program can use MPS on only one GPU"
    if request.compute is not None:
        return f"a compute ceiling needs {ways}"
    uncut = (
        f"is not partitioned for requests (its policy is sharing={rules.use})"
        if gpu.mig_capable
        else "does not support MIG"
    )
    return f"{uncut}; a part of it needs {ways}"


def smallest_share(request: Request, gpu: GpuState, rules: GpuSharing) -> Fraction | None:
    """The smallest share of that GPU with room for a CUDA context, if that is why it serves no smaller one."""
    if not isinstance(request.demand, GpuShare):
        return None
    ways = [each for each in accepted(request) if not rules.why_not(each, gpu)]
    enough = [_smallest(capacity(each, gpu.usable_memory), gpu.context_memory) for each in ways]
    share = min((each for each in enough if each is not None), default=None)
    return share if share is not None and share > request.demand.share else None


def _smallest(room: int, context: int) -> Fraction | None:
    """In hundredths, rounded up; None if no share exceeds the context."""
    from fractions import Fraction  # a slow import, and most commands meet no fraction

    share = Fraction(100 * (context + MIB) // max(room, 1) + 1, 100)
    return share if share <= 1 else None


def _misfit(request: Request, gpu: GpuState, sharing: Sharing) -> str:
    """Why no part by the GPU's mechanisms has the requested size."""
    room = capacity(sharing, gpu.usable_memory)
    most = room - gpu.context_memory
    share = _smallest(room, gpu.context_memory) if isinstance(request.demand, GpuShare) else None
    if share is not None:
        return f"a share smaller than {float(share):g} of it has no room for a CUDA context"
    return f"its parts can have at most {format_memory(most)}"
