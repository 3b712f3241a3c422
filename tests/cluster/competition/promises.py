"""What must become true once nothing disturbs the node: layouts reached or waiting for somebody named, and no queue held up."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from tests.cluster.competition.pods import PodSeen, free_by_resource
from tests.cluster.competition.witness import Hardware

_POD = re.compile(r"pod [\w-]+/([\w-]+)")
_ALLOCATION = re.compile(r"allocation ([0-9a-f]+)")


def layout_held_up(
    labels: Mapping[str, str],
    condition: Mapping[str, str],
    pods: Sequence[PodSeen],
    competitors: Collection[str],
    allocations: Collection[str],
) -> str:
    """Why the layout counts as held up; "" when it is reached, or waits for holders that are named and there.

    `competitors` and `allocations` are those of which some process lives.
    """
    wished, state = labels.get("nvidia.com/mig.config"), labels.get("nvidia.com/mig.config.state")
    message = condition.get("message", "")
    if wished is None:
        return ""
    if state == "success":
        return "" if f"'{wished}'" in message else f"success is not about '{wished}': {message}"
    if state != "pending":
        return f"the layout '{wished}' is {state}: {condition.get('reason')}: {message}"
    known = {each.name for each in pods if not each.finished} | set(competitors)
    named = [*_POD.findall(message), *_ALLOCATION.findall(message)]
    if not named:
        return f"the layout '{wished}' is pending, and nobody is named: {message}"
    ended = [each for each in named if each not in known and each not in allocations]
    return f"the layout '{wished}' waits for {', '.join(ended)}, which is not there: {message}" if ended else ""


def pods_held_up(allocatable: Mapping[str, int], pods: Sequence[PodSeen]) -> str:
    """The pods that wait though the node has room for them; "" when there are none."""
    free = free_by_resource(dict(allocatable), pods)
    waiting = [each for each in pods if not each.node and not each.terminating and free.get(each.resource, 0) > 0]
    unstarted = [each for each in pods if each.counts and each.phase == "Pending" and not each.terminating]
    found = [f"{each.name} waits for {each.resource}, of which {free[each.resource]} are free" for each in waiting]
    found += [f"{each.name} was placed, and does not start" for each in unstarted]
    return "; ".join(found)


def run_held_up(name: str, request: str, hardware: Hardware, held: Collection[str]) -> str:
    """Why the first run that waits should not; "" when there is no room for it.

    Room is judged carefully: a slice of just that profile that nobody has, or a GPU that has no slices and that nobody has. Idle
    slices are no room for another request where Tranche does not know them for its own, as after the loss of the state folder.
    """
    cut = {gpu for _, gpu in hardware.slices.values()}
    room = [gpu for gpu in hardware.gpus if gpu not in cut and gpu not in held]
    if request.startswith("--mig-profile="):
        profile = request.partition("=")[2]
        room += [uuid for uuid, (name, _) in hardware.slices.items() if name == profile and uuid not in held]
    return f"{name} waits with {request}, though nobody has {', '.join(sorted(room)[:3])}" if room else ""


def offers_wrong(allocatable: Mapping[str, int], hardware: Hardware, held: Mapping[str, str]) -> str:
    """Where the node offers another number of slices under the mixed strategy than it should; "" where it does not.

    `held` has the resource as which a pod was given a device, and "" for what a run has.
    """
    found = []
    for profile in sorted({profile for profile, _ in hardware.slices.values()}):
        resource = f"nvidia.com/mig-{profile}"
        slices = [uuid for uuid, (name, _) in hardware.slices.items() if name == profile]
        whole = [uuid for uuid in slices if held.get(hardware.slices[uuid][1]) is None]
        wanted = sum(held.get(uuid, resource) == resource for uuid in whole)
        if allocatable.get(resource, 0) != wanted:
            found.append(f"{allocatable.get(resource, 0)} of {resource} are offered, not {wanted}")
    return "; ".join(found)
