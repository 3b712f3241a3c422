"""The servers of all resources: kept in line with what is advertised and with the present kubelet.

Another device plugin runs beside this one if a process accepts connections on a socket named after the resource.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tranche.core.errors import KubeletUnavailable
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.device_plugin.device_list import KubeletDevices, ListedDevice
from tranche.kubernetes.device_plugin.server import ContainerStart, DeviceRequestHandler, ResourceServer, register
from tranche.kubernetes.kubelet.pod_resources import accepts, socket_run

LINGER_SECONDS = 5.0
_FIRST_PAUSE = 2.0
_LAST_PAUSE = 30.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Place:
    """One endpoint: when to announce it (again), since when a kubelet listens, and since when it is unwanted and empty."""

    endpoint: ResourceServer
    not_before: float = 0.0
    pause: float = _FIRST_PAUSE
    watched_since: float | None = None
    unwanted_since: float | None = None

    def begin_anew(self) -> None:
        """Announce it at once: the kubelet is a new one."""
        self.not_before, self.pause = 0.0, _FIRST_PAUSE


class ResourceServerManager:
    """Level-based: call `settle` at any time and any number of times; it does what is missing.

    The devices of an unwanted resource leave its list (`DeviceList`), then the resource is withdrawn. It stays while another
    plugin serves it, as the kubelet takes the end of one plugin's connection for the end of the resource. A new socket shows a
    new kubelet, which has removed every other socket in the folder, so the servers get new ones.
    """

    def __init__(
        self,
        folder: Path,
        kubelet_socket: Path | None,
        allocator: DeviceRequestHandler,
        clock: Callable[[], float],
        starter: ContainerStart | None = None,
    ) -> None:
        """`kubelet_socket` None: serve, but announce nothing. `clock` is monotonic, in seconds. With a `starter` the kubelet asks
        before each start of a container.
        """
        self._starter = starter
        self._folder = folder
        self._kubelet_socket = kubelet_socket
        self._allocator = allocator
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._kubelet = ""
        self._failure = ""

    def ready(self) -> Readiness:
        """Ready when the kubelet has been sent the present list of every resource."""
        if self._failure:
            return Readiness(False, self._failure)
        if self._kubelet_socket is None:
            return Readiness(True)
        for resource, place in self._places.items():
            if place.unwanted_since is None and not place.endpoint.delivered:
                return Readiness(False, f"the kubelet has not received the devices of {resource} yet")
        return Readiness(True)

    @property
    def listened_to(self) -> bool:
        """Whether a kubelet listens."""
        return any(place.endpoint.watched for place in self._places.values())

    @property
    def heard(self) -> KubeletDevices:
        """The devices that the kubelet may have read last."""
        ids = {resource: place.endpoint.heard for resource, place in self._places.items()}
        return KubeletDevices(self._kubelet, ids)

    @property
    def leaving(self) -> frozenset[str]:
        """The resources with devices that are listed as unhealthy only because they leave."""
        return frozenset(resource for resource, place in self._places.items() if place.endpoint.leaving)

    def another_serves(self, resource: str) -> bool:
        """Whether another living plugin serves the resource, on a socket named after it."""
        place = self._places.get(resource)
        return served_on(self._folder, resource, own=place.endpoint.socket if place is not None else None)

    async def settle(self, wanted: Mapping[str, Sequence[ListedDevice]]) -> None:
        """Bring servers, lists and registrations in line with `wanted`. Retries a kubelet that does not answer later.

        Raises:
            KubeletUnavailable: a socket cannot be made in the folder.
        """
        now = self._clock()
        for resource, devices in wanted.items():
            if resource not in self._places:
                server = ResourceServer(resource, self._folder, self._allocator, self._clock, self._starter)
                self._places[resource] = _Place(server)
            place = self._places[resource]
            place.unwanted_since = None
            place.endpoint.update(devices)
        for resource in [name for name in self._places if name not in wanted]:
            await self._withdraw(resource, now)
        await self._follow_kubelet()
        for place in self._places.values():
            if not place.endpoint.serving:
                await place.endpoint.start()
                place.begin_anew()
            if self._kubelet:
                await self._announce(place, now)

    async def close(self) -> None:
        """Stop every server."""
        for place in self._places.values():
            await place.endpoint.stop()
        self._places.clear()

    async def _withdraw(self, resource: str, now: float) -> None:
        place = self._places[resource]
        place.endpoint.update(())
        if place.unwanted_since is None or place.endpoint.leaving:
            place.unwanted_since = now
        told = place.endpoint.delivered or not (place.endpoint.watched or self._left_behind(place))
        if not told or now - place.unwanted_since < LINGER_SECONDS:
            return
        if not (place.endpoint.watched and self.another_serves(resource)):
            _log.info("resource withdrawn", extra={"resource": resource})
            await place.endpoint.stop()
            del self._places[resource]

    async def _follow_kubelet(self) -> None:
        """Notice a new kubelet. Without a kubelet the servers stay as they are."""
        self._failure = ""
        if self._kubelet_socket is None:
            return
        found = socket_run(self._kubelet_socket)
        if not found:
            self._failure = f"no kubelet listens at {self._kubelet_socket}"
            return
        if found != self._kubelet:
            if self._kubelet:
                _log.info("kubelet restarted")
            self._kubelet = found
            for place in self._places.values():
                await place.endpoint.stop()
                place.endpoint.forgotten()

    def _left_behind(self, place: _Place) -> bool:
        """Whether a kubelet that no longer listens may still count devices, and only this server can correct it."""
        endpoint = place.endpoint
        return endpoint.remembered and not endpoint.watched and not self.another_serves(endpoint.resource)

    async def _announce(self, place: _Place, now: float) -> None:
        """Register with a kubelet that does not listen: it was not told yet, or another plugin took over the resource."""
        assert self._kubelet_socket is not None
        endpoint = place.endpoint
        if endpoint.watched:
            place.watched_since = place.watched_since or now
            if now - place.watched_since >= _LAST_PAUSE:
                place.begin_anew()
            return
        place.watched_since = None
        # A kubelet that was just told calls back by itself; one that counts none of the resource need not learn of its end.
        if now < place.not_before or (place.unwanted_since is not None and not self._left_behind(place)):
            return
        place.not_before = now + place.pause
        place.pause = min(2 * place.pause, _LAST_PAUSE)
        try:
            await register(
                self._kubelet_socket,
                endpoint=endpoint.socket.name,
                resource=endpoint.resource,
                asks_before_start=endpoint.starter is not None,
            )
        except KubeletUnavailable as error:
            self._failure = str(error)
            _log.warning("cannot register with the kubelet", extra={"resource": endpoint.resource, "error": str(error)})
            return
        _log.info("registered", extra={"resource": endpoint.resource, "devices": len(endpoint.devices)})


def served_on(folder: Path, resource: str, *, own: Path | None) -> bool:
    """Whether a living plugin has a socket for the resource in the kubelet's folder; `own` does not count.

    NVIDIA's plugin and Tranche name a socket `<plugin>-<last part of the resource's name>.sock`. A killed plugin leaves its
    socket behind, but nothing accepts connections on it.
    """
    ending = f"-{resource.rpartition('/')[2]}.sock"
    try:
        sockets = [path for path in folder.iterdir() if path.name.endswith(ending) and path != own and path.is_socket()]
    except OSError:
        return False
    return any(map(accepts, sockets))
