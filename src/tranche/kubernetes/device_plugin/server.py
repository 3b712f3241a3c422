"""One resource's gRPC server: the kubelet's device plugin API on a socket of its own; and how the kubelet hears of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc

from tranche.core.errors import GpuNotFound, KubeletUnavailable, TrancheError
from tranche.kubernetes.device_plugin.allocate import ContainerResponse
from tranche.kubernetes.device_plugin.device_list import DeviceList, ListedDevice
from tranche.kubernetes.kubelet.grpc_service import service
from tranche.kubernetes.kubelet.proto import deviceplugin_pb2 as pb
from tranche.kubernetes.latest_value import LatestValue

API_VERSION = "v1beta1"
_TIMEOUT_SECONDS = 5.0


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
                hint="check that the kubelet is running and uses this device plugin folder",
            ) from error


def _details(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)


_HEALTH = {True: "Healthy", False: "Unhealthy"}

_log = logging.getLogger(__name__)


class DeviceRequestHandler(Protocol):
    """Answers for the devices. Both methods are called from the event loop."""

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> ContainerResponse:
        """The response for a container that is given those devices; raises TrancheError to refuse."""
        ...

    async def prefer(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """The best of the available devices for it."""
        ...


ContainerStart = Callable[[Sequence[str]], Awaitable[None]]
"""Asked before each start of a container that was given those devices; a TrancheError keeps it from starting, and the kubelet
tries again.
"""


class ResourceServer:
    """The server of one resource. It can be stopped and started again. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        resource: str,
        folder: Path,
        allocator: DeviceRequestHandler,
        clock: Callable[[], float],
        starter: ContainerStart | None = None,
    ) -> None:
        self.resource = resource
        self.starter = starter
        self.socket = folder / f"tranche-{resource.rpartition('/')[2]}.sock"
        self._allocator = allocator
        self._clock = clock
        self._list = DeviceList()
        self._allocating = 0
        self._devices: LatestValue[tuple[ListedDevice, ...]] = LatestValue()
        self._server: Any = None
        self._delivered: tuple[ListedDevice, ...] | None = None
        self._sent: tuple[ListedDevice, ...] = ()  # outlives the connection, as the kubelet's knowledge does
        self.heard: frozenset[str] = frozenset()
        """The ids that a kubelet may take for healthy: by the newest list, and by the previous one until the newest was sent."""
        self._watchers = 0

    @property
    def devices(self) -> tuple[ListedDevice, ...]:
        """The devices that the kubelet should know."""
        return self._list.told

    @property
    def leaving(self) -> bool:
        """Whether devices are listed as unhealthy only because they leave."""
        return bool(self._list.leaving)

    @property
    def serving(self) -> bool:
        """Whether the server runs and its socket is still where the kubelet looks for it."""
        return self._server is not None and self.socket.exists()

    @property
    def watched(self) -> bool:
        """Whether a kubelet listens."""
        return self._watchers > 0

    @property
    def delivered(self) -> bool:
        """Whether a kubelet listens and has been sent the present list."""
        return self.watched and self._delivered == self.devices

    @property
    def remembered(self) -> bool:
        """Whether the kubelet may count its devices, listening or not."""
        return bool(self._sent)

    def forgotten(self) -> None:
        """Note that the kubelet is a new one, which does not know this resource."""
        self._sent = ()
        self._tell(DeviceList(self._list.offered))

    def update(self, devices: Sequence[ListedDevice]) -> None:
        """Tell the kubelet of the devices, if they changed, and of those that leave."""
        kept = self._allocating > 0 or (self.watched and not self.delivered)
        self._tell(self._list.offer(devices, self._clock(), known={each.id for each in self._sent}, kept=kept))

    def _tell(self, devices: DeviceList) -> None:
        self._list = devices
        self._devices.publish(devices.told)

    async def start(self) -> None:
        """Serve, on a new socket.

        Raises:
            KubeletUnavailable: no socket can be made there.
        """
        await self.stop()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._service(),))
        try:
            self.socket.parent.mkdir(parents=True, exist_ok=True)
            self.socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{self.socket}")
        except (OSError, RuntimeError) as error:
            raise KubeletUnavailable(
                f"cannot serve {self.resource} on {self.socket}: {error}",
                hint="check that the kubelet's socket folder exists and is writable",
            ) from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop serving: open streams end at once."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)
            self._delivered = None

    def _service(self) -> Any:
        methods = {
            "GetDevicePluginOptions": (self._options, pb.Empty),
            "GetPreferredAllocation": (self._prefer, pb.PreferredAllocationRequest),
            "Allocate": (self._allocate, pb.AllocateRequest),
            "PreStartContainer": (self._pre_start, pb.PreStartContainerRequest),
        }
        return service(f"{API_VERSION}.DevicePlugin", methods, {"ListAndWatch": (self._list_and_watch, pb.Empty)})

    async def _options(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return plugin_options(self.starter is not None)

    async def _list_and_watch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._watchers += 1
        _log.info("kubelet connected", extra={"resource": self.resource})
        try:
            async for devices in self._devices.changes():
                self._sent = devices or self._sent
                ids = frozenset(each.id for each in devices if each.healthy)
                self.heard |= ids
                yield pb.ListAndWatchResponse(devices=[_device(each) for each in devices])
                self._delivered = self._sent = devices
                self.heard = ids
        finally:
            self._watchers -= 1
            if not self.watched:  # when its plugin disconnects, a kubelet marks the devices unhealthy
                self.heard = frozenset()

    async def _prefer(self, request: pb.PreferredAllocationRequest, context: Any) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for each in request.container_requests:
            chosen = await self._allocator.prefer(
                self.resource, each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
            )
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def _allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        answer = pb.AllocateResponse()
        self._allocating += 1  # nothing leaves the list in the meantime
        try:
            for each in request.container_requests:
                self._refuse_unlisted(each.devices_ids)
                given = await self._allocator.allocate(self.resource, each.devices_ids)
                answer.container_responses.append(_response(given))
            self._list = self._list.grant(
                (name for each in request.container_requests for name in each.devices_ids), self._clock()
            )
        except TrancheError as error:
            await self._refuse(context, "allocation refused", error)
        finally:
            self._allocating -= 1
        return answer

    def _refuse_unlisted(self, device_ids: Sequence[str]) -> None:
        """Refuse ids that are not listed: the kubelet may ask for what its list had a moment ago, and crashes if it gets it."""
        for device_id in device_ids:
            if device_id not in self._list.ids:
                raise GpuNotFound(f"invalid request: unknown device: {device_id}")

    async def _pre_start(self, request: pb.PreStartContainerRequest, context: Any) -> pb.PreStartContainerResponse:
        try:
            if self.starter is not None:
                await self.starter(request.devices_ids)
        except TrancheError as error:
            await self._refuse(context, "refused to start a container", error)
        return pb.PreStartContainerResponse()

    async def _refuse(self, context: Any, what: str, error: TrancheError) -> None:
        _log.warning(what, extra={"resource": self.resource, "error": str(error)})
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{error.message}; {error.hint}".rstrip("; "))


def _device(device: ListedDevice) -> pb.Device:
    listed = pb.Device(ID=device.id, health=_HEALTH[device.healthy])
    if device.numa_node is not None:
        listed.topology.nodes.add(ID=device.numa_node)
    return listed


def _response(answer: ContainerResponse) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=answer.environment,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in answer.device_nodes
        ],
        annotations=answer.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi_devices],
    )
