"""A kubelet's side of dynamic resource allocation on real sockets: it finds a driver by its socket, prepares and gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.kubernetes.waiting import PATIENCE_SECONDS, until
from tranche.kubernetes.kubelet.pod_resources import accepts
from tranche.kubernetes.kubelet.proto import dra_pb2, drahealth_pb2, pluginregistration_pb2

_OWN_POOL = [("grpc.use_local_subchannel_pool", 1)]


@dataclass
class DraKubelet:
    """What it knows of one driver, found in `folder`; `version` is the API by which it speaks."""

    folder: Path
    version: str = "v1"
    info: Any = None
    claims: dict[str, dra_pb2.Claim] = field(default_factory=dict)
    asked: int = 0

    @property
    def sockets(self) -> list[Path]:
        """The driver's registration sockets that a kubelet would see."""
        return sorted(self.folder.glob("plugins_registry/gpu.tranche.dev*.sock"))

    async def register(self, *, error: str = "") -> None:
        """Find the one driver that is there, and tell it that it is registered, or why not."""
        await until(lambda: len(self.sockets) == 1 and accepts(self.sockets[0]))
        async with grpc.aio.insecure_channel(f"unix:{self.sockets[0]}", _OWN_POOL) as channel:
            pb = pluginregistration_pb2
            ask = _call(channel, "pluginregistration.Registration/GetInfo", pb.InfoRequest, pb.PluginInfo)
            self.info = await ask(pb.InfoRequest(), timeout=PATIENCE_SECONDS, wait_for_ready=True)
            tell = _call(
                channel,
                "pluginregistration.Registration/NotifyRegistrationStatus",
                pb.RegistrationStatus,
                pb.RegistrationStatusResponse,
            )
            await tell(pb.RegistrationStatus(plugin_registered=not error, error=error), timeout=PATIENCE_SECONDS)

    async def prepare(self, *claims: dra_pb2.Claim) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        """The answers by uid."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
        answer = await self._ask("NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse)
        return dict(answer.claims)

    async def unprepare(self, *claims: dra_pb2.Claim) -> dict[str, dra_pb2.NodeUnprepareResourceResponse]:
        """The answers by uid."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
        answer = await self._ask("NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse)
        return dict(answer.claims)

    @asynccontextmanager
    async def health(self) -> AsyncIterator[AsyncIterator[Any]]:
        """The reports of the health stream."""
        async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}", _OWN_POOL) as channel:
            stream = channel.unary_stream(
                "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                request_serializer=drahealth_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=drahealth_pb2.NodeWatchResourcesResponse.FromString,
            )(drahealth_pb2.NodeWatchResourcesRequest())
            try:
                yield aiter(stream)
            finally:
                stream.cancel()

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}", _OWN_POOL) as channel:
            self.asked += 1
            path = f"k8s.io.kubelet.pkg.apis.dra.{self.version}.DRAPlugin/{method}"
            return await _call(channel, path, type(request), answer)(request, timeout=PATIENCE_SECONDS)


def _call(channel: Any, path: str, request: Any, answer: Any) -> Any:
    return channel.unary_unary(
        f"/{path}", request_serializer=request.SerializeToString, response_deserializer=answer.FromString
    )
