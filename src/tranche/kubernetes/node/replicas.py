"""Devices offered several times, each time as one replica: the rules, and what the node then advertises. Pure.

Replicas have the ids of NVIDIA's device plugin, `<uuid>::<number>`, with numbers from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tranche.core.allocation import FractionalShare, Grant, Slice, WholeGpu
from tranche.core.sharing import GpuPolicy, MachineSharing, Sharing
from tranche.kubernetes.claims.vocabulary import VGPU_RESOURCE
from tranche.kubernetes.node.pod_settlement import HeldGrants
from tranche.kubernetes.node.resources import DOMAIN, Advertisement, PluginDevice, Resource


@dataclass(frozen=True, slots=True)
class SharedResource:
    """One rule: the chosen devices of resource `name` are offered `replicas` times each, under `offered_as`.

    `sharing` is the mechanism. `devices` is None for all of them, a number for the first so many, or names: an index (`0`, on a
    cut GPU `0:1`), a UUID, or a MIG device's older name `MIG-GPU-<uuid>/<gpu instance>/<compute instance>`.
    """

    name: str
    replicas: int
    offered_as: str
    devices: int | tuple[str, ...] | None = None
    sharing: Sharing = Sharing.TIME_SLICING

    def chooses(self, place: int, device: PluginDevice) -> bool:
        """Whether the rule applies to that device; `place` is the device's, from 0, among those of the resource."""
        if self.devices is None:
            return True
        if isinstance(self.devices, int):
            return place < self.devices
        return not set(_names(device)).isdisjoint(self.devices)


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """How a node's devices are shared. With `one_per_request` no container may ask for more than one replica.

    `virtual` is how many virtual GPUs each device is offered as, beside its own resource; 0 for none. Each has a ceiling of
    `virtual_threads` percent of the device's compute, None for none, and limited memory unless `virtual_limited` is off.
    """

    resources: tuple[SharedResource, ...] = ()
    one_per_request: bool = False
    virtual: int = 0
    virtual_threads: int | None = None
    virtual_limited: bool = True

    @property
    def by_mps(self) -> bool:
        """Whether anything is shared by MPS."""
        return self.virtual > 0 or any(rule.sharing is Sharing.MPS for rule in self.resources)

    def rule(self, resource: str, place: int, device: PluginDevice) -> SharedResource | None:
        """The first rule that chooses a device, None for one that is not shared."""
        rules = (rule for rule in self.resources if rule.name == resource)
        return next((rule for rule in rules if rule.chooses(place, device)), None)


_SLICES = f"{DOMAIN}/mig-"
_NO_USES: Mapping[str, GpuPolicy] = {}

NOT_SHARED = ReplicaPolicy()
"""Each device belongs to one container alone."""


def replicated(
    advertised: Advertisement, rules: ReplicaPolicy, means: MachineSharing, uses: Mapping[str, GpuPolicy] = _NO_USES
) -> Advertisement:
    """What the node advertises when devices are shared by the rules. Names that the node does not have are ignored.

    A resource keeps its name, possibly without devices, even when each of its devices is offered under another one. What the
    machine's means, or the administrator's policy in `uses` by GPU UUID, do not allow to be shared is not offered at all: a pod
    that asked for limits must not meet one without any.
    """
    offered: dict[str, list[PluginDevice]] = {}
    unshared: dict[str, None] = {}

    def share(device: PluginDevice, rule: SharedResource, threads: int | None = None, limited: bool = True) -> None:
        replicas = offered.setdefault(rule.offered_as, [])
        if why := _why_not_shared(device, rule, means, uses.get(device.gpu.uuid, GpuPolicy.AUTO)):
            unshared[why] = None
            return
        shared = replace(device, replicas=rule.replicas, sharing=rule.sharing, threads=threads, limited=limited)
        replicas += (replace(shared, replica=number) for number in range(rule.replicas))

    for resource in advertised.resources:
        offered.setdefault(resource.name, [])
        for place, device in enumerate(resource.devices):
            rule = rules.rule(resource.name, place, device)
            if rule is None:
                offered[resource.name].append(device)
            else:
                share(device, rule)
            if rules.virtual:
                virtual = SharedResource(resource.name, rules.virtual, VGPU_RESOURCE, sharing=Sharing.MPS)
                share(device, virtual, rules.virtual_threads, rules.virtual_limited)
    unshared.update(dict.fromkeys(_without_mig(advertised, rules)))
    resources = tuple(Resource(name, tuple(devices)) for name, devices in offered.items())
    return replace(advertised, resources=resources, unshared=tuple(unshared))


def can_share(sharing: Sharing, replicas: int, means: MachineSharing) -> str:
    """Why a machine with these means cannot share a device among so many, in words; "" when it can."""
    if sharing is not Sharing.MPS:
        return ""
    if why := means.why_not(sharing):
        return f"MPS is not available: {why}"
    if replicas > means.mps_clients:
        return f"{replicas} replicas exceed the {means.mps_clients} clients that MPS supports"
    return ""


def _without_mig(advertised: Advertisement, rules: ReplicaPolicy) -> list[str]:
    """What to say of slices that should be shared on a node without a GPU that can be cut."""
    gpus = [device.gpu for resource in advertised.resources for device in resource.devices if not device.gpu.lost]
    if not gpus or any(gpu.mig_capable for gpu in gpus):
        return []
    names = (rule.name for rule in rules.resources if rule.name.startswith(_SLICES))
    return [f"{name} is not offered: no GPU of this node supports MIG" for name in names]


def _why_not_shared(device: PluginDevice, rule: SharedResource, means: MachineSharing, use: GpuPolicy) -> str:
    if why := can_share(rule.sharing, rule.replicas, means):
        return f"{rule.offered_as} is not offered: {why}"
    if rule.sharing is Sharing.MPS and device.instance is None and device.gpu.mig_enabled:
        return (
            f"{rule.offered_as} is not offered on {device.gpu.label}: it is in MIG mode, where MPS shares only slices"
        )
    if use in (GpuPolicy.OFF, GpuPolicy.MIG):
        return f"{rule.offered_as} is not offered on {device.gpu.label}: its policy is sharing={use}"
    return ""


def held_with(devices: Sequence[PluginDevice]) -> HeldGrants:
    """What a container has that is given those devices: its replicas of one device are one part of it."""
    grants: dict[str, Grant] = {}
    memory: dict[WholeGpu | Slice, int] = {}
    for device in devices:
        grant, before = device.grant, grants.get(device.uuid)
        if isinstance(grant, FractionalShare):
            memory[grant.device] = device.memory
            if isinstance(before, FractionalShare):
                grant = before._replace(memory=before.memory + grant.memory)
        grants[device.uuid] = grant
    return HeldGrants(
        tuple(grants.values()), tuple(device.id for device in devices if device.replica is not None), memory
    )


def _names(device: PluginDevice) -> tuple[str, ...]:
    if device.instance is None or device.piece is None:
        return (device.index, device.uuid)
    return (device.index, device.uuid, f"MIG-{device.gpu.uuid}/{device.instance.id}/{device.piece.id}")
