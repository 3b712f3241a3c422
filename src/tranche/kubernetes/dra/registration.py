"""How the kubelet finds the driver: by a socket in its folder of plugins' registrations, which it watches.

Each agent pod has sockets of its own, so that one can start before the other has ended; the kubelet asks the one that registered
last. Sockets that a killed agent left behind are removed, as nothing listens there.

A restarted kubelet asks which plugins are there, and waits one second for the answer. Without an answer it fails the pods that it
syncs in the meantime, and retries them after 60 to 90 s. So threads answer it, however busy the event loop is.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.dra.plugin_server import SERVICES, PluginServer
from tranche.kubernetes.kubelet.grpc_service import service
from tranche.kubernetes.kubelet.pod_resources import accepts
from tranche.kubernetes.kubelet.proto import pluginregistration_pb2 as pb
from tranche.kubernetes.latest_value import LatestValue

_LONGEST_PATH = 107
_TYPE = "DRAPlugin"
_THREADS = 2

_log = logging.getLogger(__name__)


def socket_folder(kubelet_folder: Path) -> Path:
    """The folder for the driver's sockets: its own among those of other plugins."""
    return kubelet_folder / "plugins" / DRIVER


class PluginSocketFiles:
    """The two sockets of one agent. `instance` tells agents of one node apart: the uid of the agent's pod, or "" without one."""

    def __init__(self, kubelet_folder: Path, instance: str) -> None:
        suffix = f"-{instance}" if instance else ""
        self.plugin = socket_folder(kubelet_folder) / f"dra{suffix}.sock"
        self.registration = kubelet_folder / "plugins_registry" / f"{DRIVER}{suffix}-reg.sock"

    def make_room(self) -> None:
        """Make the folders, and remove sockets on which no agent listens; KubeletUnavailable when that fails."""
        for path in (self.plugin, self.registration):
            if len(str(path)) > _LONGEST_PATH:
                raise KubeletUnavailable(
                    f"the socket path {path} is longer than the limit of {_LONGEST_PATH} characters",
                    hint="check that --kubelet-folder is the kubelet's folder",
                )
        try:
            for path, pattern in (
                (self.registration, f"{DRIVER}*-reg.sock"),
                (self.plugin, "dra*.sock"),
            ):
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                for found in path.parent.glob(pattern):
                    if found == path or not accepts(found):
                        found.unlink(missing_ok=True)
        except OSError as error:
            raise KubeletUnavailable(
                f"cannot use the kubelet's plugin folders: {error}",
                hint="mount them read-write, at the same paths as on the host",
            ) from error

    @property
    def there(self) -> bool:
        """Whether the kubelet can find both."""
        return self.plugin.exists() and self.registration.exists()

    def remove(self) -> None:
        """Remove both; the kubelet drops the driver when its registration socket is gone."""
        for path in (self.registration, self.plugin):
            with suppress(OSError):
                path.unlink(missing_ok=True)


class RegistrationServer:
    """Serves the driver and its registration until `stop`. `refusal` says why the kubelet does not want the driver, "" otherwise.

    `registered` is told whether the kubelet has the driver at its present socket.
    """

    def __init__(self, sockets: PluginSocketFiles, plugin: PluginServer, registered: LatestValue[bool]) -> None:
        self._sockets = sockets
        self._plugin = plugin
        self._server: Any = None
        self.registered = registered
        self.refusal = ""

    async def start(self) -> None:
        """Serve the driver first, then its registration; KubeletUnavailable when that fails."""
        self._sockets.make_room()
        self.registered.publish(False)
        self.refusal = ""
        loop = asyncio.get_running_loop()

        def noted(request: pb.RegistrationStatus, context: Any) -> pb.RegistrationStatusResponse:
            loop.call_soon_threadsafe(self._note, request.plugin_registered, request.error)
            return pb.RegistrationStatusResponse()

        server = grpc.server(ThreadPoolExecutor(_THREADS, "registration"))
        methods = {"GetInfo": (self._info, pb.InfoRequest), "NotifyRegistrationStatus": (noted, pb.RegistrationStatus)}
        server.add_generic_rpc_handlers((service("pluginregistration.Registration", methods),))
        try:
            await self._plugin.start()
            server.add_insecure_port(f"unix:{self._sockets.registration}")
        except (OSError, RuntimeError) as error:
            await self._plugin.stop()
            raise KubeletUnavailable(f"cannot serve on {self._sockets.registration.parent}: {error}") from error
        server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop the registration first, so that the kubelet asks no more, then the driver."""
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.stop(None).wait)
        await self._plugin.stop()
        self._sockets.remove()

    @property
    def found(self) -> bool:
        """Whether it serves, and the kubelet can find it."""
        return self._server is not None and self._sockets.there

    def _info(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:
        return pb.PluginInfo(
            type=_TYPE, name=DRIVER, endpoint=str(self._sockets.plugin), supported_versions=list(SERVICES)
        )

    def _note(self, registered: bool, error: str) -> None:
        if self._server is None:
            return
        if registered:
            _log.info("registered", extra={"driver": DRIVER})
            self.refusal = ""
            self.registered.publish(True)
        else:
            _log.warning("cannot register with the kubelet", extra={"driver": DRIVER, "error": error})
            self.refusal = f"the kubelet rejected the DRA driver: {error}"
