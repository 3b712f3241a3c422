"""Which pod holds which device, asked of the kubelet by its pod-resources API (v1 List over its unix socket)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc

from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.api.objects import PodRef
from tranche.kubernetes.kubelet.proto.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse

DEFAULT_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_METHOD = "/v1.PodResourcesLister/List"
_TIMEOUT_SECONDS = 5.0
_RESOURCE_PREFIX = "nvidia.com/"
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # the kubelet's own limit for what it sends
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the one before
)


class PodResources:
    """The kubelet behind one socket. Each read connects anew, so that a restarted kubelet is reached at once."""

    def __init__(self, socket: Path = DEFAULT_SOCKET) -> None:
        self._socket = socket

    async def read(self) -> Mapping[str, PodRef]:
        """The pod of each NVIDIA device that the kubelet gave away; KubeletUnavailable when it does not answer."""
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
                    f"the kubelet does not say which pod holds which device: {error.details() or error.code().name}",
                    hint=f"is the kubelet running, and is {self._socket} its pod-resources socket?",
                ) from error
        return holders(answer)


def holders(answer: ListPodResourcesResponse) -> Mapping[str, PodRef]:
    """The pod of each NVIDIA device; shared devices, `<uuid>::<replica>`, are listed by their UUID."""
    return {
        device_id.partition("::")[0]: PodRef(pod.namespace, pod.name)
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
        if devices.resource_name.startswith(_RESOURCE_PREFIX)
        for device_id in devices.device_ids
    }
