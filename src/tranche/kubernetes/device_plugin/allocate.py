"""Builds the kubelet's answer for a container that was given devices, by device-list strategy. It reads only the device files.

On a device shared by MPS, every process of the container speaks to the device's daemon by sockets in one folder, and shares the
host's /dev/shm with it. A container uses one daemon, so all its replicas are of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tranche.core.allocation import FractionalShare
from tranche.core.errors import UsageError
from tranche.core.sharing import MEMORY_LIMIT, Sharing
from tranche.core.state import PROHIBITED, NodeState, unavailable
from tranche.hardware.cdi import CdiDevice, CdiSpec
from tranche.hardware.mps_control import client_environment
from tranche.hardware.nodes import ContainerEdits, DeviceFiles, DeviceNode, Mount
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.settings import DeviceIdStrategy, DeviceListStrategy
from tranche.kubernetes.node.replicas import ReplicaPolicy, held_with
from tranche.kubernetes.node.resources import PluginDevice, slices_of
from tranche.node.processes.pod_processes import device_mark

CDI_KIND = "k8s.device-plugin.nvidia.com/gpu"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_VISIBLE_FOLDER = "/var/run/nvidia-container-devices"


@dataclass(frozen=True, slots=True)
class ContainerResponse:
    """The additions to one container, as the kubelet's API has them. `cdi_devices` are qualified names."""

    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


def respond(
    devices: Sequence[PluginDevice], config: PluginConfig, files: DeviceFiles, *, request_id: str
) -> ContainerResponse:
    """The response for one container; `request_id` makes the annotation's key unique. It names a shared device once."""
    devices = list({device.uuid: device for device in devices}.values())
    ids = [device.index if config.device_id_strategy is DeviceIdStrategy.INDEX else device.uuid for device in devices]
    names = tuple(f"{CDI_KIND}={device.uuid}" for device in devices)
    lists = config.device_lists
    environment: dict[str, str] = {}
    mounts: list[Mount] = []
    nodes: list[DeviceNode] = []
    if not config.cdi_only:
        beside = files.beside_runtime()
        environment.update(beside.environment)
        mounts += beside.mounts
        environment.update(_features(config))
        environment.update((device_mark(device.uuid), device.uuid) for device in devices)
        if config.pass_device_specs:
            nodes += device_nodes(devices, files)
    if DeviceListStrategy.ENVVAR in lists:
        environment[_VISIBLE] = ",".join(ids)
    if DeviceListStrategy.VOLUME_MOUNTS in lists:
        environment[_VISIBLE] = _VISIBLE_FOLDER
        mounts += [Mount("/dev/null", f"{_VISIBLE_FOLDER}/{device_id}", read_only=False) for device_id in ids]
    annotations: dict[str, str] = {}
    if DeviceListStrategy.CDI_ANNOTATIONS in lists:
        annotations[f"{config.cdi_annotation_prefix}nvidia-device-plugin_{request_id}"] = ",".join(names)
    return ContainerResponse(
        environment=environment,
        mounts=tuple(mounts),
        device_nodes=tuple(nodes),
        annotations=annotations,
        cdi_devices=names if DeviceListStrategy.CDI_CRI in lists else (),
    )


def cdi_spec(node: NodeState, files: DeviceFiles) -> CdiSpec:
    """The CDI specification of every device that exists.

    It includes devices that are not advertised at the moment: a container that has one may be restarted.
    """
    gpus = [gpu for gpu in node if not gpu.lost]
    found = [device for gpu in gpus for device in (PluginDevice(gpu), *slices_of(gpu))]
    devices = tuple(CdiDevice(device.uuid, _cdi_edits(device, files)) for device in found)
    return CdiSpec(CDI_KIND, devices, files.by_cdi(node.driver_version))


def device_nodes(devices: Sequence[PluginDevice], files: DeviceFiles) -> tuple[DeviceNode, ...]:
    """The control nodes and those of the devices, each once."""
    nodes = [*files.control_nodes()]
    for device in devices:
        nodes += _own_nodes(device, files)
    return tuple(dict.fromkeys(nodes))


def _own_nodes(device: PluginDevice, files: DeviceFiles) -> tuple[DeviceNode, ...]:
    if device.instance is None or device.piece is None:
        return files.gpu_nodes(device.gpu)
    return files.slice_nodes(device.gpu, device.instance, device.piece)


def _cdi_edits(device: PluginDevice, files: DeviceFiles) -> ContainerEdits:
    more = files.device_by_cdi(device.uuid)
    named = (device_mark(device.uuid), device.uuid)
    return ContainerEdits(
        _own_nodes(device, files) + more.device_nodes, more.mounts, (*more.environment, named), more.hooks
    )


def _features(config: PluginConfig) -> Mapping[str, str]:
    wanted = {"GDRCOPY": config.gdrcopy_enabled, "GDS": config.gds_enabled, "MOFED": config.mofed_enabled}
    return {f"NVIDIA_{name}": "enabled" for name, enabled in wanted.items() if enabled}


_SHARED_MEMORY = "/dev/shm"


def refuse_request(devices: Sequence[PluginDevice], rules: ReplicaPolicy) -> None:
    """Raise UsageError for a container that asks for more replicas than it may, or for replicas that it could not use."""
    replicas = [device for device in devices if device.replica is not None]
    alike = [device for device in replicas if not (rules.virtual and device.sharing is Sharing.MPS)]
    if alike and rules.one_per_request and len(devices) > 1:
        raise UsageError(f"invalid request: maximum request size for shared resources is 1; found {len(devices)}")
    if len({device.uuid for device in replicas if device.sharing is Sharing.MPS}) > 1:
        raise UsageError(
            "invalid request: a container can use only one MPS daemon, but these replicas belong to several devices",
            hint="request fewer, or wait until one device has room for all of them",
        )


def why_unavailable(device: PluginDevice) -> str:
    """Why that device's daemon admits no more clients; "" when it does, and for a device without a daemon."""
    if device.replica is None or device.sharing is not Sharing.MPS:
        return ""
    return unavailable(device.gpu, device.grant.slot)


def why_prohibited(device: PluginDevice) -> str:
    """Why no program may use that device's GPU, when its compute mode prohibits it; "" otherwise, and for a slice."""
    return PROHIBITED if device.grant.slot is None and device.gpu.prohibited else ""


def with_mps(
    answer: ContainerResponse, resource: str, devices: Sequence[PluginDevice], pipes: Callable[[str], Path]
) -> ContainerResponse:
    """The answer with what MPS clients need, including each one's limit; unchanged for devices not shared by MPS."""
    clients = [device for device in devices if device.replica is not None and device.sharing is Sharing.MPS]
    if not clients:
        return answer
    (uuid,) = {device.uuid for device in clients}
    folder = f"/mps/{resource}/pipe"
    (part,) = held_with(clients).grants
    assert isinstance(part, FractionalShare)
    threads = clients[0].threads
    percent = None if threads is None else min(100, threads * len(clients))
    told = {MEMORY_LIMIT: str(part.memory)} if part.kept else {}
    own = client_environment(folder, part.memory if part.kept else None, percent)
    shared = Mount(_SHARED_MEMORY, _SHARED_MEMORY, read_only=False)
    mounts = (*answer.mounts, Mount(str(pipes(uuid)), folder, read_only=False), shared)
    return replace(answer, environment={**answer.environment, **own, **told}, mounts=mounts)
