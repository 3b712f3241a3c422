"""The CDI file of a command's share, by which a container runtime finds the share."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tranche.core.allocation import FractionalShare, Grant, device_uuid
from tranche.core.errors import CdiUnavailable, SharingUnavailable
from tranche.core.state import GpuState
from tranche.core.wire import request_to_dict
from tranche.hardware.cdi import CdiDevice, CdiSpec, edits_of, write_spec
from tranche.hardware.nodes import device_files, merged
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.processes.processes import KEY, MARK, REGISTER
from tranche.node.recovery.adoption import PARTS, REQUEST, part_word

CDI_DEVICE = "TRANCHE_CDI_DEVICE"
"""The variable with the CDI name of a share."""

_KIND = "tranche.dev/share"


def refuse_without_cdi(host: Host) -> None:
    """CdiUnavailable if this machine lacks what a container needs to find the driver."""
    if why := device_files(host.environment).why_no_cdi():
        raise CdiUnavailable(f"containers cannot use a share: {why}", hint="install NVIDIA's container toolkit")


def refuse_unlimited(host: Host, uid: int) -> None:
    """SharingUnavailable if the driver cannot limit the memory of containers that this user starts."""
    why = "only root can set the limit" if uid else device_files(host.environment).why_no_limit_hook()
    if why:
        raise SharingUnavailable(
            f"the driver cannot limit the memory of these containers: {why}", hint="use --isolation hard or --compute"
        )


def write_share_spec(host: Host, held: HeldAllocation, gpus: Mapping[str, GpuState], reader: int) -> str:
    """Write the CDI file of a command's share; returns the CDI name of the share. `gpus` are its GPUs as they are now.

    The file contains the share's key, so that a container counts as the share's program also if another user runs it. With the
    request and the devices, a lost register can be rebuilt. Only root and `reader`, the share's user, can read the file. podman
    passes over files that its user cannot read.

    With the driver's memory limits, containers have all of the share's memory, and its command none.

    Raises the errors of `edits_of`, and CdiUnavailable if the file cannot be written.
    """
    if held.group is not None:
        host.share_groups.close(held.group)
    files, pipes = device_files(host.environment), host.daemons.records.pipes
    allocation = held.allocation
    given = (_word(each, device_uuid(each, gpus[each.gpu_uuid])) for each in allocation.grants)
    marks = (
        (MARK, allocation.id),
        (KEY, held.key),
        (REGISTER, str(host.state_dir.resolve())),
        (REQUEST, json.dumps(request_to_dict(allocation.request))),
        (PARTS, ",".join(given)),
    )
    edits = merged(
        [edits_of(each, gpus[each.gpu_uuid], files, pipes, marks, allocation.id) for each in allocation.grants]
    )
    common = files.by_cdi(host.driver.observe().driver_version)
    spec = CdiSpec(
        _KIND, (CdiDevice(allocation.id, edits),), common, file=host.spec_file(allocation.id).name, reader=reader
    )
    write_spec(spec, host.cdi_folder, outlasts_power=False)
    return f"{_KIND}={allocation.id}"


def _word(grant: Grant, uuid: str) -> str:
    return part_word(uuid, grant) if isinstance(grant, FractionalShare) else uuid
