"""The driver's side of the kubelet's DRA plugin API, v1 and v1beta1, and of its health stream, on one socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from operator import is_not
from pathlib import Path
from typing import Any

import grpc

from tranche.core.errors import TrancheError
from tranche.core.printable import shortened
from tranche.kubernetes.claims.claim import ClaimRef
from tranche.kubernetes.dra.given import GivenDevice
from tranche.kubernetes.dra.preparer import ClaimPreparer
from tranche.kubernetes.kubelet.grpc_service import service
from tranche.kubernetes.kubelet.proto import dra_pb2 as pb
from tranche.kubernetes.kubelet.proto import drahealth_pb2 as health_pb
from tranche.kubernetes.latest_value import LatestValue, within
from tranche.kubernetes.node.share_edits import cdi_id

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""The services on the socket, in the kubelet's short names."""

_PACKAGES = ("k8s.io.kubelet.pkg.apis.dra.v1", "k8s.io.kubelet.pkg.apis.dra.v1beta1")
_REPEAT_SECONDS = 20.0
_STALE_SECONDS = 90

_log = logging.getLogger(__name__)


class PluginServer:
    """One server on a socket. `health` says of each published device, by name, what is wrong, "" when it is healthy. `now` is
    seconds since the epoch.
    """

    def __init__(
        self,
        socket: Path,
        pool: str,
        servant: ClaimPreparer,
        health: LatestValue[Mapping[str, str]],
        *,
        now: Callable[[], float],
    ) -> None:
        self.socket = socket
        self._pool = pool
        self._servant = servant
        self._health = health
        self._now = now
        self._server: Any = None

    async def start(self) -> None:
        """Serve on the socket; OSError or RuntimeError when none can be made there."""
        server = grpc.aio.server()
        methods = {
            "NodePrepareResources": (self._prepare, pb.NodePrepareResourcesRequest),
            "NodeUnprepareResources": (self._unprepare, pb.NodeUnprepareResourcesRequest),
        }
        streams = {"NodeWatchResources": (self._watch, health_pb.NodeWatchResourcesRequest)}
        preparing = [service(f"{package}.DRAPlugin", methods) for package in _PACKAGES]
        server.add_generic_rpc_handlers((*preparing, service("v1alpha1.DRAResourceHealth", {}, streams)))
        server.add_insecure_port(f"unix:{self.socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def _prepare(self, request: pb.NodePrepareResourcesRequest, context: Any) -> pb.NodePrepareResourcesResponse:
        async def one(ref: ClaimRef) -> pb.NodePrepareResourceResponse:
            given = await self._servant.prepare(ref)
            return pb.NodePrepareResourceResponse(
                devices=[_device(each, self._pool, cdi_id(ref.uid, number)) for number, each in enumerate(given)]
            )

        return pb.NodePrepareResourcesResponse(claims=await _each(request, one, pb.NodePrepareResourceResponse))

    async def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        async def one(ref: ClaimRef) -> pb.NodeUnprepareResourceResponse:
            await self._servant.unprepare(ref)
            return pb.NodeUnprepareResourceResponse()

        return pb.NodeUnprepareResourcesResponse(claims=await _each(request, one, pb.NodeUnprepareResourceResponse))

    async def _watch(
        self, request: health_pb.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        """Send the health of all devices at each change, and again before the kubelet considers it stale."""
        while True:
            devices = await self._health.first()
            yield self._report(devices)
            await within(_REPEAT_SECONDS, self._health.until(partial(is_not, devices)))

    def _report(self, devices: Mapping[str, str]) -> health_pb.NodeWatchResourcesResponse:
        return health_pb.NodeWatchResourcesResponse(
            devices=[
                health_pb.DeviceHealth(
                    device=health_pb.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health="UNHEALTHY" if trouble else "HEALTHY",
                    last_updated_time=int(self._now()),
                    health_check_timeout_seconds=_STALE_SECONDS,
                    message=shortened(trouble),
                )
                for name, trouble in devices.items()
            ]
        )


async def _each(request: Any, work: Callable[[ClaimRef], Awaitable[Any]], answer: Callable[..., Any]) -> dict[str, Any]:
    """The answers by claim; one claim's failure does not affect others."""

    async def told(ref: ClaimRef) -> Any:
        try:
            return await work(ref)
        except TrancheError as error:
            _log.warning(
                "claim refused",
                extra={"claim": f"{ref.namespace}/{ref.name}", "reason": error.reason, "error": error.message},
            )
            return answer(error=f"{error.reason}: {error.message}" + (f"; {error.hint}" if error.hint else ""))
        except Exception as error:
            _log.error("claim failed", extra={"claim": f"{ref.namespace}/{ref.name}"}, exc_info=error)
            return answer(error=f"Internal: {type(error).__name__}: {error}")

    refs = [ClaimRef(each.namespace, each.name, each.uid) for each in request.claims]
    return dict(zip((ref.uid for ref in refs), await asyncio.gather(*map(told, refs)), strict=True))


def _device(given: GivenDevice, pool: str, cdi: str) -> pb.Device:
    return pb.Device(
        request_names=[given.allocated.request.partition("/")[0]],  # without the alternative
        pool_name=pool,
        device_name=given.allocated.device,
        cdi_device_ids=[cdi],
        share_id=given.allocated.share_id or None,
    )
