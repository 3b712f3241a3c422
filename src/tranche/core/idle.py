"""Whether a share is idle: every look over a whole period saw no work on the share's own devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, WholeGpu
from tranche.core.quantity import format_duration
from tranche.core.state import GpuProcess, GpuState

LOOK_SECONDS = 60.0
LONGEST_GAP_SECONDS = 2 * LOOK_SECONDS
"""Between two looks. After a longer one nobody knows what happened, as when the machine was suspended."""
WARNING_SECONDS = 300.0
"""Between the warning and the end of an idle hold."""
LEAST_WORK = 0.05
"""The utilization of a whole GPU, from 0 to 1, that counts as work."""


class IdlePolicy(NamedTuple):
    """After how many seconds a share counts as idle; with `ends`, an idle hold ends then."""

    after: int = 1800
    ends: bool = False

    def __str__(self) -> str:
        after = format_duration(self.after)
        return f"an idle hold ends after {after}" if self.ends else f"a share counts as idle after {after}"


IdlePeriod = tuple[float, float]
"""The first and the last of the looks that saw no work, in seconds of a clock that also runs while the machine is suspended."""


def extended(period: IdlePeriod | None, now: float, *, unused: bool) -> IdlePeriod | None:
    """The period after a look at `now`; None after work, and after a look that could not tell. It begins again after a gap."""
    if not unused:
        return None
    if period is None or not 0.0 <= now - period[1] <= LONGEST_GAP_SECONDS:
        return now, now
    return period[0], now


def shows_no_work(
    grant: Grant, gpu: GpuState, utilization: float | None, of_another: Callable[[int], bool], *, sees_all: bool
) -> bool:
    """Whether a look at the grant's GPU shows no work on the grant's device. False if the look cannot tell.

    A process counts as work, except on a whole GPU with a low `utilization`, which is None if the driver does not say. On a
    shared device, a process does not count if it is known to be `of_another`. Without `sees_all`, processes may be hidden.
    """
    listed = _processes_on(grant, gpu)
    if gpu.lost or listed is None:
        return False
    if isinstance(grant, WholeGpu) and utilization is not None:
        return utilization < LEAST_WORK
    if not (gpu.processes_known and sees_all):
        return False
    if isinstance(grant, FractionalShare):
        return all(of_another(each.pid) for each in listed)
    return not listed


def _processes_on(grant: Grant, gpu: GpuState) -> tuple[GpuProcess, ...] | None:
    """Those on the grant's device, and those of a cut GPU that the driver placed in no instance.

    None if the GPU does not show the device.
    """
    if grant.slot is None:
        return None if gpu.mig_enabled else gpu.processes
    instance = gpu.instance_in(grant.slot.place)
    if instance is None:
        return None
    if isinstance(grant, ComputeSlice):
        found = next((each for each in instance.compute_instances if each.start == grant.start), None)
        return None if found is None else (*found.processes, *instance.stray_processes, *gpu.processes)
    return (*instance.processes, *gpu.processes)
