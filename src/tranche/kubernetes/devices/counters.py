"""What devices of one GPU cannot have at the same time, as the counters of dynamic resource allocation.

A GPU has a counter for each of its memory slices. Media extensions exist once, and a `+me.all` profile excludes all but `-me`
profiles, so boards with such profiles have counters for these as well. Compute slices need none: placements imply their limit on
every board with a published geometry. So a set of devices fits the counters exactly when `tranche.core.grid` has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.state import GpuState

_EXTENSIONS = "media-extensions"
_MEDIA = "media"


def counters_of(gpu: GpuState) -> Mapping[str, int]:
    """Every counter of the GPU with what it begins with: all of it. A GPU without MIG has one memory slice."""
    units = max(gpu.memory_slices, 1)
    found = {_memory_slice(number): 1 for number in range(units)}
    if any("me" in profile.name.added for profile in gpu.profiles):
        found[_EXTENSIONS] = 1
    if any("me.all" in profile.name.added for profile in gpu.profiles):
        found[_MEDIA] = units
    return found


def consumed_by(profile: ProfileName, placement: Placement, gpu: GpuState) -> Mapping[str, int]:
    """What an instance of the profile takes there."""
    every = counters_of(gpu)
    found = {_memory_slice(number): 1 for number in range(placement.start, placement.start + placement.size)}
    if "me" in profile.added:
        found[_EXTENSIONS] = 1
    if _MEDIA in every and "me" not in profile.removed:
        found[_MEDIA] = every[_MEDIA] if "me.all" in profile.added else 1
    return found


def _memory_slice(number: int) -> str:
    return f"memory-slice-{number}"
