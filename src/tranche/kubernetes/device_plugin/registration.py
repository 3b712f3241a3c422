"""The kubelet's registration socket: detects a new kubelet, and announces resources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.kubelet.proto import deviceplugin_pb2 as pb

API_VERSION = "v1beta1"
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """Distinguishes a socket file from the next of the same name: a kubelet creates its socket at every start."""

    device: int
    inode: int
    changed: int


def identify(path: Path) -> SocketIdentity | None:
    """The identity of the file there now; None when there is none.

    Some file systems reuse inode numbers at once, so the time of the last change counts too.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return SocketIdentity(status.st_dev, status.st_ino, status.st_ctime_ns)


def plugin_options(asks_before_start: bool) -> pb.DevicePluginOptions:
    """What a kubelet is to call beside Allocate; with `asks_before_start` also PreStartContainer before each start."""
    return pb.DevicePluginOptions(
        get_preferred_allocation_available=not asks_before_start, pre_start_required=asks_before_start
    )


async def register(kubelet_socket: Path, *, endpoint: str, resource: str, asks_before_start: bool = False) -> None:
    """Announce a resource that is served on the socket `endpoint` in the same folder.

    Raises:
        KubeletUnavailable: the kubelet does not answer, or refuses.
    """
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=plugin_options(asks_before_start),
    )
    async with grpc.aio.insecure_channel(f"unix:{kubelet_socket}") as channel:
        call = channel.unary_unary(
            f"/{API_VERSION}.Registration/Register",
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        try:
            await call(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise KubeletUnavailable(
                f"cannot register {resource} with the kubelet at {kubelet_socket}: {_details(error)}",
                hint="check that the kubelet runs and uses this device plugin folder",
            ) from error


def _details(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
