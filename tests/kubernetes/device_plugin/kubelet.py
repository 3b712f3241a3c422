"""A kubelet's side of the device plugin API on real sockets: registration, ListAndWatch, Allocate."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from tests.last_look import last_look
from tranche.kubernetes.device_plugin.device_list import ListedDevice
from tranche.kubernetes.kubelet.proto import deviceplugin_pb2 as pb

_DEADLINE_SECONDS = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; TimeoutError after a minute, which says `what` was to be and what was seen last."""
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise TimeoutError(f"{what}: not in {_DEADLINE_SECONDS:g} s\n{last_look(condition)}") from error


class KubeletStandIn:
    """Does what a kubelet does with plugins in one folder; `devices` is what it knows of each resource.

    As in Kubernetes 1.36 a plugin that registers a resource anew does not end the connection of the one before; both may send
    lists, and the last one counts. When either connection ends, it is the newest client that is given up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "kubelet.sock"
        self.registrations: list[pb.RegisterRequest] = []
        self.devices: dict[str, dict[str, pb.Device]] = {}
        self.ended: list[str] = []
        self.refuse = False
        self._clients: dict[str, Any] = {}
        self._channels: list[Any] = []
        self._watches: list[asyncio.Task[None]] = []
        self._server: Any = None

    async def start(self) -> None:
        """Start as a kubelet does: with an empty folder, and a new socket."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """End, and forget everything."""
        await self._server.stop(None)
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for channel in self._channels:
            await channel.close()
        self._watches, self._channels, self._clients = [], [], {}
        self.devices.clear()

    def counts(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable, by resource."""
        return {
            name: (len(devices), sum(device.health == "Healthy" for device in devices.values()))
            for name, devices in self.devices.items()
        }

    def knows(self, lists: Mapping[str, Sequence[ListedDevice]]) -> bool:
        """Whether it has these devices of these resources, whatever else it has."""
        known = {name: set(devices) for name, devices in self.devices.items()}
        return all(known.get(name) == {each.id for each in listed} for name, listed in lists.items())

    async def allocate(self, resource: str, *device_ids: str) -> pb.ContainerAllocateResponse:
        """What the plugin answers for one container."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=device_ids)])
        answer = await self._call(resource, "Allocate", request, pb.AllocateResponse)
        (container,) = answer.container_responses
        return pb.ContainerAllocateResponse.FromString(container.SerializeToString())

    async def prefer(self, resource: str, available: Sequence[str], size: int) -> list[str]:
        """Which devices the plugin prefers."""
        one = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        request = pb.PreferredAllocationRequest(container_requests=[one])
        answer = await self._call(resource, "GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs)

    async def options(self, resource: str) -> pb.DevicePluginOptions:
        """What the plugin says that it can do."""
        answer: pb.DevicePluginOptions = await self._call(
            resource, "GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions
        )
        return answer

    async def _call(self, resource: str, method: str, request: Any, answer: Any) -> Any:
        call = self._clients[resource].unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=_DEADLINE_SECONDS)

    async def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if self.refuse:
            await context.abort(grpc.StatusCode.UNKNOWN, "not now")
        self.registrations.append(request)
        name = request.resource_name
        # A pool of its own: else a channel to a socket of the same name as before would find the old connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(f"unix:{self.folder / request.endpoint}", options)
        self._channels.append(channel)
        self._clients[name] = channel
        self._watches.append(asyncio.create_task(self._watch(name, channel)))
        return pb.Empty()

    async def _watch(self, name: str, channel: Any) -> None:
        stream = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )(pb.Empty())
        with suppress(grpc.RpcError):
            async for answer in stream:
                self.devices[name] = {device.ID: device for device in answer.devices}
        self.ended.append(name)
        if client := self._clients.pop(name, None):
            await client.close()
