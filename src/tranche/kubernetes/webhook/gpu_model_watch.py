"""Which kinds of shared GPUs the cluster has, by its resource slices: what a fraction of a GPU is in bytes depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import Backoff, Informer
from tranche.kubernetes.api.selection import ObjectSource
from tranche.kubernetes.claims.vocabulary import DRIVER, AttributeName, CapacityName, DeviceType
from tranche.kubernetes.component import Readiness

_PATH = "/apis/resource.k8s.io/v1/resourceslices"
_ATTRIBUTES = (AttributeName.TYPE, AttributeName.PROFILE, AttributeName.MODEL, AttributeName.CARD_MEMORY)


class GpuModelWatch:
    """Follows the driver's resource slices. `random` gives numbers from 0 to 1."""

    name = "cards"

    def __init__(
        self,
        connection: ApiConnection,
        *,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connection = connection
        self._random = random
        self._sleep = sleep
        self._known: tuple[Json, ...] | None = None

    @property
    def resource_slices(self) -> Iterable[Json] | None:
        """The slices of the cluster, with no more than what shared devices say of their GPUs; None before they were read."""
        return self._known

    def ready(self) -> Readiness:
        """Whether they were read."""
        if self._known is None:
            return Readiness(False, "the resource slices were not read yet")
        return Readiness(True)

    async def run(self) -> None:
        """Follow them until cancelled."""
        selector = {"fieldSelector": f"spec.driver={DRIVER}"}
        source = ObjectSource(self._connection, "resource slices", _PATH, selector, only_cards)
        informer = Informer(source, Backoff(self._random), sleep=self._sleep)
        async with aclosing(informer.snapshots()) as snapshots:
            async for found in snapshots:
                self._known = tuple(found.values())


def only_cards(resource_slice: Json) -> Json:
    """The slice without all that does not matter here: a cluster has many, with tens of devices each."""
    spec = resource_slice.get("spec") or {}
    kept = []
    for device in spec.get("devices") or ():
        attributes = device.get("attributes") or {}
        if (attributes.get(AttributeName.TYPE) or {}).get("string") == DeviceType.SHARED:
            memory = (device.get("capacity") or {}).get(CapacityName.MEMORY)
            kept.append(
                {
                    "attributes": {str(name): attributes[name] for name in _ATTRIBUTES if name in attributes},
                    "capacity": {} if memory is None else {str(CapacityName.MEMORY): {"value": memory.get("value")}},
                }
            )
    return {"spec": {"driver": spec.get("driver"), "devices": kept}}
