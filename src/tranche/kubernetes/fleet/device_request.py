"""What a claim asks of a device, read from its spec: the forms that Tranche writes, and what is plain in others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tranche.core.errors import UsageError
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import MIB, format_memory
from tranche.kubernetes.api.node_rules import Toleration
from tranche.kubernetes.claims.quantity import read_quantity
from tranche.kubernetes.claims.spec import NO_CONDITIONS, DeviceCondition, read_conditions
from tranche.kubernetes.claims.vocabulary import (
    DRIVER,
    WHOLE_RESOURCE,
    AttributeName,
    CapacityName,
    DeviceClassName,
    DeviceType,
    label_of_class,
    profile_label,
    profile_of_label,
)
from tranche.kubernetes.fleet.devices import FleetDevice
from tranche.kubernetes.fleet.objects import FleetClaim, FleetPod
from tranche.planning.decide.obstacle import Reason

_CLASS_TYPES = {
    DeviceClassName.ANY: None,
    DeviceClassName.SLICE: DeviceType.SLICE,
    DeviceClassName.WHOLE: DeviceType.WHOLE,
    DeviceClassName.SHARED: DeviceType.SHARED,
}


@dataclass(frozen=True, slots=True)
class DeviceMismatch:
    """Why a device can never serve: `rank` says how near it comes, and `missing` how much memory it lacks, in bytes."""

    reason: Reason
    text: str
    rank: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class DeviceRequestOption:
    """One alternative of a claim's request. None means not asked for; `memory` in bytes, `share` and `compute` in percent.

    `type` and `label` come from its class: a type of device, and a profile's label. `every` asks for all devices of a node that
    could serve. `unread` are conditions in other forms than Tranche's; they count as met.
    """

    name: str = ""
    type: DeviceType | None = None
    label: str = ""
    count: int = 1
    memory: int | None = None
    share: int | None = None
    compute: int | None = None
    conditions: DeviceCondition = NO_CONDITIONS
    distinct: bool = False
    every: bool = False
    tolerations: tuple[Toleration, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def by_name(self) -> bool:
        """Whether it names the wanted size: a profile, or a whole GPU."""
        return bool(self.label) or self.type is DeviceType.WHOLE

    def misfit(self, device: FleetDevice) -> DeviceMismatch | None:
        """Why the device can never serve it, the nearest miss with the highest rank; None when it can."""
        must = self.conditions
        if must.model and must.model not in device.model.lower():
            return DeviceMismatch(Reason.GPU_MODEL_MISMATCH, f"its GPUs are {device.model}", 0)
        if self.label and _label(device.profile) != self.label:
            return DeviceMismatch(Reason.PROFILE_NOT_SUPPORTED, "its GPUs do not support this profile", 1)
        if must.card_memory is not None and device.card_memory != must.card_memory:
            return DeviceMismatch(Reason.SHARING_UNAVAILABLE, "its GPUs have another memory size", 1)
        if self.type is not None and device.type != self.type:
            return DeviceMismatch(_TYPE_REASONS[self.type], _TYPE_TEXTS[self.type], 2)
        if must.isolations and device.isolation not in must.isolations:
            return DeviceMismatch(
                Reason.SHARING_UNAVAILABLE, f"its shared GPUs offer only {device.isolation} isolation", 3
            )
        if must.not_mechanism and device.mechanism == must.not_mechanism:
            return DeviceMismatch(
                Reason.SHARING_UNAVAILABLE, f"one program cannot use several parts shared by {device.mechanism}", 3
            )
        if self.compute is not None and device.compute is None:
            return DeviceMismatch(Reason.SHARING_UNAVAILABLE, "it cannot limit compute", 3)
        if self.compute is not None and device.compute is not None and device.compute < self.compute:
            text = f"the request asks for {self.compute}% of the compute; the highest limit here is {device.compute}%"
            return DeviceMismatch(Reason.SHARING_UNAVAILABLE, text, 4)
        if self.share is not None and (device.share is None or device.share < self.share):
            return DeviceMismatch(Reason.MEMORY_TOO_SMALL, "its slices are smaller", 4)
        if self.memory is not None and device.memory < self.memory:
            text = f"its largest device has {format_memory(device.memory)}"
            return DeviceMismatch(Reason.MEMORY_TOO_SMALL, text, 4, self.memory - device.memory)
        return None


_TYPE_REASONS = {
    DeviceType.SLICE: Reason.PROFILE_NOT_SUPPORTED,
    DeviceType.SHARED: Reason.SHARING_UNAVAILABLE,
    DeviceType.WHOLE: Reason.POLICY,
}
_TYPE_TEXTS = {
    DeviceType.SLICE: "its GPUs do not support MIG",
    DeviceType.SHARED: "its GPUs are not shared",
    DeviceType.WHOLE: "it offers no whole GPUs",
}


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a claim: alternatives, best first. `foreign` says why it is not for Tranche's driver; otherwise empty.

    `classes` are the device classes that it names. `claim` is the claim's name, where there is one.
    """

    name: str
    alternatives: tuple[DeviceRequestOption, ...] = ()
    foreign: str = ""
    classes: tuple[str, ...] = ()
    claim: str = ""


def demanded_by(claim: FleetClaim) -> tuple[DeviceRequest, ...]:
    """Every request of the claim."""
    distinct = any(
        str(each.get("distinctAttribute") or "") == f"{DRIVER}/{AttributeName.UUID}" for each in claim.constraints
    )
    return tuple(replace(_demanded(each, distinct), claim=claim.name) for each in claim.requests)


def demanded_by_limits(pod: FleetPod) -> tuple[DeviceRequest, ...]:
    """The pod's demands by NVIDIA's extended resources, as far as Tranche's classes serve them."""
    found = []
    for name, count in sorted(pod.limits.items()):
        if name == WHOLE_RESOURCE:
            found.append(DeviceRequest(name, (DeviceRequestOption(type=DeviceType.WHOLE, count=count),)))
        elif name.startswith("nvidia.com/mig-"):
            label = name.removeprefix("nvidia.com/mig-").replace(".", "-")
            found.append(DeviceRequest(name, (DeviceRequestOption(type=DeviceType.SLICE, label=label, count=count),)))
    return tuple(found)


def _demanded(raw: Mapping[str, Any], distinct: bool) -> DeviceRequest:
    name = str(raw.get("name") or "")
    several: Sequence[Mapping[str, Any]] = raw.get("firstAvailable") or ([raw["exactly"]] if "exactly" in raw else [])
    alternatives = []
    classes = tuple(str(each.get("deviceClassName") or "") for each in several)
    for each, class_name in zip(several, classes, strict=True):
        wanted = _class(class_name)
        if wanted is None:
            foreign = f"it requests devices of class '{class_name}', which does not belong to Tranche"
            return DeviceRequest(name, foreign=foreign, classes=classes)
        alternatives.append(replace(_wanted(each, wanted), name=str(each.get("name") or name), distinct=distinct))
    return DeviceRequest(name, tuple(alternatives), classes=classes)


def _class(name: str) -> DeviceRequestOption | None:
    if name in tuple(DeviceClassName):
        return DeviceRequestOption(type=_CLASS_TYPES[DeviceClassName(name)])
    label = label_of_class(name)
    return DeviceRequestOption(type=DeviceType.SLICE, label=label) if label else None


def _wanted(raw: Mapping[str, Any], of_class: DeviceRequestOption) -> DeviceRequestOption:
    capacity = (raw.get("capacity") or {}).get("requests") or {}
    conditions, unread = read_conditions(
        str((each.get("cel") or {}).get("expression") or "") for each in raw.get("selectors") or ()
    )
    return replace(
        of_class,
        count=int(raw.get("count") or 1),
        every=raw.get("allocationMode") == "All",
        memory=read_quantity(capacity.get(CapacityName.MEMORY)),
        share=read_quantity(capacity.get(CapacityName.SHARE)),
        compute=read_quantity(capacity.get(CapacityName.COMPUTE)),
        conditions=conditions,
        tolerations=tuple(Toleration.decode(each) for each in raw.get("tolerations") or ()),
        unread=unread,
    )


def _label(profile: str) -> str:
    try:
        name: ProfileName = parse_profile(profile)
    except UsageError:
        return ""
    return profile_label(name)


def in_words(wanted: DeviceRequestOption) -> str:
    """The wanted devices, for people: `2 × slice 1g.5gb`, `share of 4 GiB`."""
    kind = {
        None: "share",
        DeviceType.SLICE: "slice",
        DeviceType.SHARED: "part of a shared GPU",
        DeviceType.WHOLE: "whole GPU",
    }[wanted.type]
    must = wanted.conditions
    size = [
        wanted.label and (profile_of_label(wanted.label) or wanted.label),
        wanted.memory is not None and f"of {format_memory(wanted.memory)}",
        wanted.share is not None and f"of {wanted.share}% of a GPU",
        wanted.compute is not None and f"with at most {wanted.compute}% of the compute",
        must.card_memory is not None and f"on GPUs with {format_memory(must.card_memory * MIB)}",
        must.model and f"on a {must.model}",
        bool(must.isolations) and f"with isolation {' or '.join(sorted(must.isolations))}",
    ]
    several = "every " if wanted.every else f"{wanted.count} × " if wanted.count > 1 else ""
    return " ".join([f"{several}{kind}", *(str(each) for each in size if each)])
