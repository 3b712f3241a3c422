"""What the fence lets the processes of a share open, and where the control groups of fenced shares are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tranche.core.allocation import Allocation, Grant, device_uuid
from tranche.core.errors import FenceUnavailable, VerificationFailed
from tranche.core.state import GpuState
from tranche.hardware.control_groups import machine_group, session_groups
from tranche.hardware.device_filter import FenceFilter, attached_filters
from tranche.hardware.nodes import DeviceTable, device_files

FENCED_SHARES: Final = "tranche-shares"
"""The control group, below the top, of the groups of fenced shares."""


def fenced_groups() -> Path:
    """The folder for the groups of fenced shares, outside all sessions; FenceUnavailable if there can be none."""
    folder = top_group() / FENCED_SHARES
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FenceUnavailable(f"cannot create the control group {folder}: {error.strerror}") from error
    return folder


def top_group() -> Path:
    """The machine's topmost control group; FenceUnavailable if this process does not see it."""
    found = machine_group()
    if found is None:
        raise FenceUnavailable(
            "the machine's cgroup version 2 hierarchy is not visible here",
            hint="run the command on the machine itself, outside any container",
        )
    return found


def sessions_fenced(owner: str) -> bool:
    """Whether users' sessions have filters of that register's fence, as far as this process can see it."""
    try:
        top = top_group()
        return any(attached_filters(top / each, owner) for each in session_groups(top))
    except FenceUnavailable:
        return False


def share_rule(grants: Iterable[Grant], gpus: Mapping[str, GpuState], numbers: DeviceTable) -> FenceFilter:
    """What the processes of a share may open: the share's devices.

    Raises VerificationFailed if a device does not exist any more, and FenceUnavailable if its numbers are unknown.
    """
    allowed = numbers.control
    for grant in grants:
        allowed |= _numbers_of(grant, gpus[grant.gpu_uuid], numbers)
    return FenceFilter(numbers.majors, allowed)


def _numbers_of(grant: Grant, gpu: GpuState, numbers: DeviceTable) -> frozenset[tuple[int, int]]:
    if grant.slot is None:
        return numbers.of_gpu(gpu)
    instance, uuid = gpu.instance_in(grant.slot.place), device_uuid(grant, gpu)
    pieces = () if instance is None else tuple(each for each in instance.compute_instances if each.uuid == uuid)
    if instance is None or not pieces:
        raise VerificationFailed(f"{gpu.label}: {grant.slot} no longer exists")
    return numbers.of_slice(gpu, instance, pieces[0])


def rule_of(allocation: Allocation, observe: Callable[[str], GpuState], environment: Mapping[str, str]) -> FenceFilter:
    """The rule for a share that begins now. Raises the errors of `share_rule`."""
    gpus = {uuid: observe(uuid) for uuid in {each.gpu_uuid for each in allocation.grants}}
    return share_rule(allocation.grants, gpus, device_files(environment).numbers())
