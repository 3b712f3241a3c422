"""What claims may be shown beside what counts as the device plugin's, and what they may have been shown. Pure."""

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
    """The devices that claims are shown: their GPUs, by UUID, and the free ones, by name and by GPU."""

    gpus: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    free_gpus: frozenset[str] = frozenset()

    @classmethod
    def of(cls, devices: Iterable[Json]) -> ClaimableDevices:
        """The claimable devices in those of ResourceSlices."""
        uuids = {str(each["name"]): (_uuid(each), not each.get("taints")) for each in devices}
        free = {name for name, (_, free) in uuids.items() if free}
        return cls(frozenset(uuid for uuid, _ in uuids.values()), frozenset(free), frozenset(uuids[n][0] for n in free))


@dataclass(frozen=True, slots=True)
class PluginGrants:
    """What is not for claims. `grants` count as the device plugin's; the node counts more of the resources `strangers`."""

    grants: frozenset[Grant] = frozenset()
    strangers: frozenset[str] = frozenset()


UNKNOWN = PluginGrants(strangers=frozenset({"anything"}))
"""Until the device plugin says what it lists: keeps what is shown true, and shows nothing more."""


def open_gpus(
    mode: NodeMode, view: NodeView, other: PluginGrants, shown: ClaimableDevices, held: Collection[str]
) -> frozenset[str]:
    """The GPUs, by UUID, whose devices are to be shown, free or not. `held` are those of which claims have something.

    While the device plugin may be giving away something of a GPU, the GPU is not newly shown; after that, all of it is.
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

    The device plugin may be giving them away, or something across them. While it is unknown which devices it gives away, no
    device becomes free that was not shown so before.
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


def shown_in(mode: NodeMode, gpus: frozenset[str]) -> frozenset[str]:
    """The GPUs, by UUID, on which a decision to show these in this mode may show something free."""
    return gpus if mode.by_claims else frozenset()


def to_claims(shown: ClaimableDevices, opening: frozenset[str]) -> frozenset[str]:
    """The GPUs, by UUID, on which claims may be seeing something free, with those on which an unconfirmed write may show it."""
    return shown.free_gpus | opening


def _uuid(device: Json) -> str:
    return str(((device.get("attributes") or {}).get(AttributeName.UUID) or {}).get("string", ""))
