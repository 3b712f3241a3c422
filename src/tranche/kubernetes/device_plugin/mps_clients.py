"""What containers need that share a device by MPS, and which of them are not let in.

Every process of such a container speaks to the daemon of its device by sockets in one folder, and shares the host's /dev/shm
with it. A container meets one daemon, so all its replicas are of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tranche.core.allocation import FractionalShare
from tranche.core.errors import UsageError
from tranche.core.sharing import Sharing
from tranche.core.state import PROHIBITED, unavailable
from tranche.hardware.mps_environment import client_environment
from tranche.hardware.nodes import Mount
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.node.replicas import ReplicaPolicy, held_with
from tranche.kubernetes.node.resources import PluginDevice
from tranche.node.recovery.adoption import MEMORY_LIMIT

_SHARED_MEMORY = "/dev/shm"


def refuse_request(devices: Sequence[PluginDevice], rules: ReplicaPolicy) -> None:
    """UsageError for a container that asks for more replicas than it may, or for replicas that it could not use."""
    replicas = [device for device in devices if device.replica is not None]
    alike = [device for device in replicas if not (rules.virtual and device.sharing is Sharing.MPS)]
    if alike and rules.one_per_request and len(devices) > 1:
        raise UsageError(f"invalid request: maximum request size for shared resources is 1; found {len(devices)}")
    if len({device.uuid for device in replicas if device.sharing is Sharing.MPS}) > 1:
        raise UsageError(
            "invalid request: a container speaks to one MPS daemon, and these replicas are of several devices",
            hint="ask for fewer, or wait until one device has room for all of them",
        )


def why_unavailable(device: PluginDevice) -> str:
    """Why nobody more may be let in on that device's daemon; "" when they may, and for a device that has no daemon."""
    if device.replica is None or device.sharing is not Sharing.MPS:
        return ""
    return unavailable(device.gpu, device.grant.slot)


def why_prohibited(device: PluginDevice) -> str:
    """That somebody lets no program use that device's GPU, in words; "" when nobody does, and for a slice."""
    return PROHIBITED if device.grant.slot is None and device.gpu.prohibited else ""


def with_mps(
    answer: ContainerResponse, resource: str, devices: Sequence[PluginDevice], pipes: Callable[[str], Path]
) -> ContainerResponse:
    """The answer with what clients of MPS need, and with the limit of each; as it is for devices that are not shared so."""
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
