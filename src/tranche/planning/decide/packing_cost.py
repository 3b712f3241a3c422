"""When a machine has to be careful with its room, and what each way to serve a request then takes from those to come.

A machine with room to spare gives the strongest fence that is free. One that fills up looks first at what it keeps for others:
GPUs on which nothing is, which only a request for a whole GPU, a large one or one for slices makes full use of.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tranche.core.allocation import ComputeSlice, FractionalShare, memory_of
from tranche.core.request import GpuMemory, GpuShare, Request
from tranche.core.sharing import MachineSharing
from tranche.planning.decide.candidates import gpus_needed
from tranche.planning.decide.options import Option, OptionKind, gpu_blocked
from tranche.planning.decide.share_options import ShareOptions, accepted
from tranche.planning.occupancy.gpu_occupancy import GpuOccupancy


class _PackingCost(IntEnum):
    """What an option takes from those to come, least first; GPUs in use are those that nobody could have whole now anyway.

    FITTING: a slice of a GPU in use, of which the request needs more than half. JOINED: one more part of a shared device. BESIDE:
    the first part of a slice, on a GPU in use. ROOMY: a slice of a GPU in use, of which the request leaves half or more unused.
    WHOLE: a whole GPU, of which the request needs more than half. OPENED: the first part of a GPU that is not cut. CUT: what lies
    on a GPU that is cut and on which nothing is. SPREAD: all else, such as cutting one more GPU.
    """

    FITTING = 0
    JOINED = 1
    BESIDE = 2
    ROOMY = 3
    WHOLE = 4
    OPENED = 5
    CUT = 6
    SPREAD = 7


def why_thrifty(request: Request, means: MachineSharing, gpus: Sequence[GpuOccupancy]) -> str:
    """Why the machine is careful with its room, in words that follow "because"; "" when it has room to spare.

    It has as long as slices are all that anybody holds, and half of its GPUs would stay untouched if the request took one more.
    Where nothing can be shared, and for a request that accepts no part, there is nothing to be careful with.
    """
    if not isinstance(request.demand, GpuMemory | GpuShare) or not accepted(request):
        return ""
    if not means.offered:
        return ""
    if any(here.whole for here in gpus):
        return "GPUs are held whole or in parts here"
    untouched = sum(
        here.untouched and not here.changing and not here.withheld and gpu_blocked(here) is None for here in gpus
    )
    if 2 * (untouched - gpus_needed(request)) < len(gpus):
        return "fewer than half of the GPUs would stay untouched"
    return ""


def toll(here: GpuOccupancy, option: Option, wish: ShareOptions | None) -> _PackingCost:
    """What the option takes from those to come; `wish` is the part that would serve the request, where one would."""
    whole = option.grant.slot is None
    if isinstance(option.grant, FractionalShare):
        if option.change is OptionKind.NONE:
            return _PackingCost.JOINED
        if not here.untouched:
            return _PackingCost.BESIDE
        return _PackingCost.OPENED if whole else _PackingCost.CUT
    assert not isinstance(option.grant, ComputeSlice)
    fitting = wish is not None and 2 * wish.amount > memory_of(option.grant, here.gpu)
    if not here.untouched:
        return _PackingCost.FITTING if fitting else _PackingCost.ROOMY
    if whole:
        return _PackingCost.WHOLE if fitting else _PackingCost.SPREAD
    return _PackingCost.CUT if fitting and option.change is not OptionKind.MODE else _PackingCost.SPREAD
