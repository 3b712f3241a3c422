"""Which kinds of shared GPUs the cluster has, by its resource slices: they decide how many bytes a fraction of a GPU is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.informer import ObjectSource
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.fleet.devices import FleetDevice, decode_fleet_slice

_PATH = "/apis/resource.k8s.io/v1/resourceslices"


class GpuModelWatch:
    """Follows the driver's resource slices."""

    name = "cards"

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._known: tuple[FleetDevice, ...] | None = None

    @property
    def shared(self) -> Sequence[FleetDevice] | None:
        """The shared devices of the cluster; None before they were read."""
        return self._known

    def ready(self) -> Readiness:
        """Whether they were read."""
        if self._known is None:
            return Readiness(False, "the controller has not read the ResourceSlices yet")
        return Readiness(True)

    async def run(self) -> None:
        """Follow them until cancelled."""
        selector = {"fieldSelector": f"spec.driver={DRIVER}"}
        source = ObjectSource(self._connection, "resource slices", _PATH, selector, _shared)
        async with aclosing(source.snapshots()) as snapshots:
            async for found in snapshots:
                self._known = tuple(device for devices in found for device in devices)


def _shared(resource_slice: Mapping[str, Any]) -> tuple[FleetDevice, ...]:
    """What matters here of a slice: a cluster has many, with tens of devices each."""
    return tuple(each for each in decode_fleet_slice(resource_slice).devices if each.shared)
