"""Devices that are offered several times, each time as one replica: by which rules, and what the node then advertises. Pure.

The ids of replicas are those of NVIDIA's device plugin, `<uuid>::<number>`, with numbers from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tranche.core.allocation import Grant, Part, Slice, WholeGpu
from tranche.core.sharing import Sharing
from tranche.kubernetes.observation.listings import Holding
from tranche.kubernetes.observation.resources import Advertisement, PluginDevice, Resource


@dataclass(frozen=True, slots=True)
class SharedResource:
    """One rule: of the devices of resource `name`, those chosen are offered `replicas` times each, under `offered_as`.

    `devices` is None for all of them, a number for the first so many, or names: an index (`0`, on a cut GPU `0:1`), a UUID, or a
    MIG device's older name `MIG-GPU-<uuid>/<gpu instance>/<compute instance>`.
    """

    name: str
    replicas: int
    offered_as: str
    devices: int | tuple[str, ...] | None = None

    def chooses(self, place: int, device: PluginDevice) -> bool:
        """Whether it is about that device; `place` is the device's, from 0, among those of the resource."""
        if self.devices is None:
            return True
        if isinstance(self.devices, int):
            return place < self.devices
        return not set(_names(device)).isdisjoint(self.devices)


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """How a node's devices are shared. With `one_per_request` no container may ask for more than one replica."""

    resources: tuple[SharedResource, ...] = ()
    one_per_request: bool = False
    sharing: Sharing = Sharing.TIME_SLICING

    def rule(self, resource: str, place: int, device: PluginDevice) -> SharedResource | None:
        """The rule for a device, None for one that is not shared. The first that chooses it counts."""
        rules = (rule for rule in self.resources if rule.name == resource)
        return next((rule for rule in rules if rule.chooses(place, device)), None)

    def rule_of_first(self, resource: Resource) -> SharedResource | None:
        """The rule for the resource's first device."""
        return self.rule(resource.name, 0, resource.devices[0]) if resource.devices else None


NOT_SHARED = ReplicaRules()
"""Every device is one container's alone."""


def replicated(advertised: Advertisement, rules: ReplicaRules) -> Advertisement:
    """What the node advertises when devices are shared by the rules; names that it has not are passed over.

    A resource keeps its name, if need be with no device, also when each of its devices is offered under another one.
    """
    if not rules.resources:
        return advertised
    offered: dict[str, list[PluginDevice]] = {}
    for resource in advertised.resources:
        offered.setdefault(resource.name, [])
        for place, device in enumerate(resource.devices):
            rule = rules.rule(resource.name, place, device)
            if rule is None:
                offered[resource.name].append(device)
                continue
            numbers = range(rule.replicas)
            shared = replace(device, replicas=rule.replicas, sharing=rules.sharing)
            replicas = (replace(shared, replica=number) for number in numbers)
            offered.setdefault(rule.offered_as, []).extend(replicas)
    resources = tuple(Resource(name, tuple(devices)) for name, devices in offered.items())
    return replace(advertised, resources=resources)


def held_with(devices: Sequence[PluginDevice]) -> Holding:
    """What a container has that is given those devices: its replicas of one device are one part of it."""
    grants: dict[str, Grant] = {}
    memory: dict[WholeGpu | Slice, int] = {}
    for device in devices:
        grant, before = device.grant, grants.get(device.uuid)
        if isinstance(grant, Part):
            memory[grant.device] = device.memory
            if isinstance(before, Part):
                grant = replace(before, memory=before.memory + grant.memory)
        grants[device.uuid] = grant
    return Holding(tuple(grants.values()), tuple(device.id for device in devices if device.replica is not None), memory)


def _names(device: PluginDevice) -> tuple[str, ...]:
    if device.instance is None or device.piece is None:
        return (device.index, device.uuid)
    return (device.index, device.uuid, f"MIG-{device.gpu.uuid}/{device.instance.id}/{device.piece.id}")
