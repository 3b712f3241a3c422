"""What a container gets for one share of its claim: device nodes, and what an MPS client needs to stay within its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tranche.core.allocation import FractionalShare, device_uuid
from tranche.core.errors import SharingUnavailable, VerificationFailed
from tranche.core.keeper import ChosenFor
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.hardware.cdi import CdiDevice, CdiSpec
from tranche.hardware.mps_control import client_environment
from tranche.hardware.nodes import ContainerEdits, DeviceFiles, DeviceNode, Mount
from tranche.kubernetes.claims.vocabulary import CDI_KIND
from tranche.node.processes.pod_processes import claim_mark
from tranche.node.recovery.adoption import MEMORY_LIMIT
from tranche.planning.decide.realise import ChosenDevice

_PIPES_INSIDE = "/mps/share/pipe"
_SHARED_MEMORY = "/dev/shm"


def share_spec(
    keeper: ChosenFor,
    grants: tuple[ChosenDevice, ...],
    gpus: Mapping[str, GpuState],
    files: DeviceFiles,
    driver_version: str,
    pipes: Callable[[str], Path],
) -> CdiSpec:
    """The CDI specification of a claim: a device for each grant, in order, named `<uid>-<number>`.

    `gpus` are the GPUs of the grants by UUID, as they are now. `pipes` gives the folder of a device's MPS daemon by the device's
    UUID.

    Raises:
        VerificationFailed: a device no longer exists.
        SharingUnavailable: nothing could keep a container within its limit.
    """
    mark = (claim_mark(keeper.uid), f"{keeper.namespace}/{keeper.name}")
    devices = tuple(
        CdiDevice(cdi_name(keeper.uid, number), _edits(grant, gpus[grant.gpu_uuid], files, pipes, mark))
        for number, grant in enumerate(grants)
    )
    return CdiSpec(CDI_KIND, devices, files.by_cdi(driver_version), keeper.uid)


def cdi_name(uid: str, number: int) -> str:
    """The name of a claim's device in its specification."""
    return f"{uid}-{number}"


def cdi_id(uid: str, number: int) -> str:
    """The same name in the form that a runtime reads."""
    return f"{CDI_KIND}={cdi_name(uid, number)}"


def claim_of(cdi_device: str) -> str:
    """The uid of the claim that a device of that name belongs to; "" for a device of another kind."""
    kind, _, name = cdi_device.partition("=")
    return name.rpartition("-")[0] if kind == CDI_KIND else ""


def _edits(
    grant: ChosenDevice, gpu: GpuState, files: DeviceFiles, pipes: Callable[[str], Path], mark: tuple[str, str]
) -> ContainerEdits:
    uuid = device_uuid(grant, gpu)
    if not uuid:
        raise VerificationFailed(f"{gpu.label}: {grant.slot or 'the GPU'} no longer exists")
    more = files.device_by_cdi(uuid)
    mounts, environment = more.mounts, (*more.environment, mark)
    if isinstance(grant, FractionalShare):
        mounts, environment = (*mounts, *_part_mounts(grant, uuid, pipes)), (*environment, *_part_environment(grant))
    return ContainerEdits((*_nodes(grant, gpu, files), *more.device_nodes), mounts, environment, more.hooks)


def _nodes(grant: ChosenDevice, gpu: GpuState, files: DeviceFiles) -> tuple[DeviceNode, ...]:
    if grant.slot is None:
        return files.gpu_nodes(gpu)
    instance = gpu.instance_in(grant.slot.place)
    if instance is None or instance.whole_slice is None:
        raise VerificationFailed(f"{gpu.label}: {grant.slot} no longer exists")
    return files.slice_nodes(gpu, instance, instance.whole_slice)


def _part_mounts(part: FractionalShare, uuid: str, pipes: Callable[[str], Path]) -> tuple[Mount, ...]:
    if part.sharing is not Sharing.MPS:
        return ()
    shared = Mount(_SHARED_MEMORY, _SHARED_MEMORY, read_only=False)
    return (Mount(str(pipes(uuid)), _PIPES_INSIDE, read_only=False), shared)


def _part_environment(part: FractionalShare) -> tuple[tuple[str, str], ...]:
    told = (MEMORY_LIMIT, str(part.memory))
    match part.sharing:
        case Sharing.TIME_SLICING:
            return (told,)
        case Sharing.MPS:
            return (*client_environment(_PIPES_INSIDE, part.memory, part.compute).items(), told)
        case Sharing.MEMORY_LIMITS:
            raise SharingUnavailable("the driver's memory limits work for commands, but not for containers yet")
