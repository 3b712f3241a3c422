"""Asks the kubelet which pod holds which device, by its pod-resources API (v1 List over its unix socket)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.kubelet.proto.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse

DEFAULT_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_METHOD = "/v1.PodResourcesLister/List"
_TIMEOUT_SECONDS = 5.0
_RESOURCE_PREFIXES = ("nvidia.com/", "k8s.amazonaws.com/vgpu", "tranche.dev/")
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # the kubelet's own limit for what it sends
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new channel inherits the back-off of the one before
)


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The devices of one resource that the kubelet lists for a container: UUIDs, and `<uuid>::<number>` for replicas."""

    namespace: str
    name: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KubeletResponse:
    """One answer of the kubelet. `run` names the run of the kubelet that gave it, and differs after each restart.

    `by_claims` are the CDI devices that it lists with pods because of their claims.
    """

    run: str
    listed: tuple[ContainerDevices, ...] = ()
    by_claims: frozenset[str] = frozenset()


def socket_run(path: Path) -> str:
    """Names the run of the kubelet whose socket that is: it makes a new one at each start. "" without one.

    Some file systems reuse inode numbers at once, so the time of the last change counts too.
    """
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_ctime_ns:x}"


def accepts(path: Path) -> bool:
    """Whether a living process has that socket; one too busy to accept counts as well, and is left in peace."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


class PodResourcesClient:
    """The kubelet behind one socket. Each read opens a new connection, so that it reaches a restarted kubelet at once."""

    def __init__(self, socket: Path = DEFAULT_SOCKET) -> None:
        self._socket = socket

    def run(self) -> str:
        """The present run of the kubelet; "" without one."""
        return socket_run(self._socket)

    async def read(self) -> KubeletResponse:
        """Which pods the kubelet gave NVIDIA devices; KubeletUnavailable when it does not answer, or started meanwhile."""
        before = self.run()
        async with grpc.aio.insecure_channel(f"unix://{self._socket}", options=_OPTIONS) as channel:
            ask = channel.unary_unary(
                _METHOD,
                request_serializer=ListPodResourcesRequest.SerializeToString,
                response_deserializer=ListPodResourcesResponse.FromString,
            )
            try:
                answer = await ask(ListPodResourcesRequest(), timeout=_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise KubeletUnavailable(
                    f"the kubelet does not report which pod holds which device: {error.details() or error.code().name}",
                    hint=f"check that the kubelet is running, and that {self._socket} is its pod-resources socket",
                ) from error
        if not before or self.run() != before:
            raise KubeletUnavailable("the kubelet restarted while Tranche was asking it which pod holds which device")
        return KubeletResponse(before, tuple(_listed(answer)), frozenset(_by_claims(answer)))


def _listed(answer: ListPodResourcesResponse) -> Iterator[ContainerDevices]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            found: dict[str, dict[str, None]] = {}
            for devices in container.devices:
                if devices.resource_name.startswith(_RESOURCE_PREFIXES):
                    found.setdefault(devices.resource_name, {}).update(dict.fromkeys(devices.device_ids))
            for resource, ids in found.items():
                yield ContainerDevices(pod.namespace, pod.name, container.name, resource, tuple(ids))


def _by_claims(answer: ListPodResourcesResponse) -> Iterator[str]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                yield from (device.name for each in claim.claim_resources for device in each.cdi_devices)
