"""What claims may be shown beside that which is counted as the device plugin's, and what they may have been shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tranche.core.allocation import Grant, NodeView, overlap
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import AttributeName
from tranche.kubernetes.devices.devices import NodeDevice
from tranche.kubernetes.devices.taints import excludes


@dataclass(frozen=True, slots=True)
class ClaimableDevices:
    """The devices that claims are shown: on which GPUs, by UUID, and which of them are free, by name and by GPU."""

    gpus: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    free_gpus: frozenset[str] = frozenset()

    @classmethod
    def of(cls, devices: Iterable[Json]) -> ClaimableDevices:
        """What those of ResourceSlices say."""
        uuids = {str(each["name"]): (_uuid(each), not each.get("taints")) for each in devices}
        free = {name for name, (_, free) in uuids.items() if free}
        return cls(frozenset(uuid for uuid, _ in uuids.values()), frozenset(free), frozenset(uuids[n][0] for n in free))


@dataclass(frozen=True, slots=True)
class PluginGrants:
    """What is not for claims: `grants` are counted as the device plugin's; of the resources `strangers` the node counts more."""

    grants: frozenset[Grant] = frozenset()
    strangers: frozenset[str] = frozenset()


UNKNOWN = PluginGrants(strangers=frozenset({"anything"}))
"""While the device plugin has not said what it lists: what is shown is kept true, and nothing more is shown."""


def open_gpus(
    mode: NodeMode, view: NodeView, other: PluginGrants, shown: ClaimableDevices, held: Collection[str]
) -> frozenset[str]:
    """The GPUs, by UUID, whose devices are to be shown, free or not. `held` are those of which claims have something.

    A GPU of which the device plugin may be taken to give something away is shown when that is over, and then as a whole.
    """
    if not mode.by_claims:
        return frozenset(held)
    taken = [grant for allocation in view.allocations for grant in allocation.grants]
    given_away = {each.gpu_uuid for each in other.grants if not any(overlap(each, other) for other in taken)}
    if other.strangers:
        given_away |= {gpu.uuid for gpu in view.node} - shown.free_gpus
    return frozenset(gpu.uuid for gpu in view.node if gpu.uuid not in given_away) | shown.gpus | frozenset(held)


def counted_otherwise(devices: Collection[NodeDevice], other: PluginGrants, shown: ClaimableDevices) -> frozenset[str]:
    """The devices, by name, that must not be shown as free now.

    The device plugin may be taken to give them away, or something across them. Of what nobody knows whose it is, none is shown
    that was not before.
    """
    by_gpu: dict[str, list[Grant]] = {}
    for grant in other.grants:
        by_gpu.setdefault(grant.gpu_uuid, []).append(grant)
    return frozenset(
        each.name
        for each in devices
        if any(excludes(each, grant) for grant in by_gpu.get(each.gpu_uuid, ()))
        or (other.strangers and each.name not in shown.free)
    )


@dataclass(frozen=True, slots=True)
class UnconfirmedGpus:
    """The GPUs, by UUID, of which a write may be showing something free that nobody has seen yet."""

    gpus: frozenset[str] = frozenset()

    def begin(self, mode: NodeMode, gpus: Collection[str]) -> UnconfirmedGpus:
        """Before it is decided what to write: in this mode these are shown. What was begun before may still come to be."""
        return UnconfirmedGpus(self.gpus | frozenset(gpus)) if mode.by_claims else self

    def end(self, mode: NodeMode, gpus: Collection[str]) -> UnconfirmedGpus:
        """After all that was decided has been seen: nothing of another decision is to come."""
        return UnconfirmedGpus(frozenset(gpus)) if mode.by_claims else UnconfirmedGpus()


def to_claims(shown: ClaimableDevices, opening: UnconfirmedGpus) -> frozenset[str]:
    """The GPUs, by UUID, of which claims may be taken to be shown something free."""
    return shown.free_gpus | opening.gpus


def _uuid(device: Json) -> str:
    return str(((device.get("attributes") or {}).get(AttributeName.UUID) or {}).get("string", ""))
