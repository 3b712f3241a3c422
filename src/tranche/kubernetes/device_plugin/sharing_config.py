"""The block `sharing` of the v1 file: which devices are offered several times, and under which name. Pure.

NVIDIA's plugin treats `rename` and `devices` as mistakes and continues without them; Tranche serves them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from tranche.core.board import catalogue
from tranche.core.errors import PluginConfigInvalid
from tranche.core.sharing import Sharing
from tranche.core.spelling import did_you_mean
from tranche.kubernetes.node.replicas import NOT_SHARED, ReplicaPolicy, SharedResource
from tranche.kubernetes.node.resources import DOMAIN, GPU_RESOURCE, is_device_resource

PLACE = "sharing"
MOST_CLIENTS = 60
"""The most clients that MPS serves on one device, from CUDA 13.1 on; 48 before, which the driver's version shows."""
MOST_REPLICAS = 1000
"""No driver limits programs that take turns; this keeps a kubelet from being told of more devices than it can count."""
_MECHANISMS = {"timeSlicing": Sharing.TIME_SLICING, "mps": Sharing.MPS}
_LONGEST_NAME = 63
_SHARED = ".shared"
_FIELDS = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_RULE_FIELDS = ("name", "replicas", "rename", "devices")
_DEVICE = re.compile(r"\d+|\d+:\d+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Fa-f-]+|MIG-GPU-[0-9A-Fa-f-]+/\d+/\d+")


def read_sharing(block: object) -> ReplicaPolicy:
    """The rules of a decoded `sharing`, None for a missing one; PluginConfigInvalid otherwise."""
    if block is None:
        return NOT_SHARED
    blocks = {name: each for name, each in _mapping(block, PLACE, tuple(_MECHANISMS)).items() if each is not None}
    if len(blocks) > 1:
        raise PluginConfigInvalid(
            f"{PLACE}: a node can use timeSlicing or mps, but not both",
            hint="remove one of them",
        )
    for name, found in blocks.items():
        return _rules(found, f"{PLACE}.{name}", _MECHANISMS[name])
    return NOT_SHARED


def _rules(block: object, where: str, sharing: Sharing) -> ReplicaPolicy:
    fields = _mapping(block, where, _FIELDS)
    by_default = _boolean(fields, "renameByDefault", where)
    listed = fields.get("resources")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise PluginConfigInvalid(
            f"{where}: no resources specified", hint="list them under resources, each with its name"
        )
    rules = tuple(_rule(each, f"{where}.resources[{place}]", by_default, sharing) for place, each in enumerate(listed))
    _refuse_twice(rules, where)
    one = _boolean(fields, "failRequestsGreaterThanOne", where, default=sharing is Sharing.MPS)
    return ReplicaPolicy(rules, one_per_request=one)


def _rule(entry: object, where: str, rename_by_default: bool, sharing: Sharing) -> SharedResource:
    fields = _mapping(entry, where, _RULE_FIELDS)
    name = _name(fields, where)
    replicas = fields.get("replicas")
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise PluginConfigInvalid(f"{where}.replicas must be a number")
    if replicas < 2:
        raise PluginConfigInvalid(f"{where}.replicas: number of replicas must be >= 2, not {replicas}")
    if replicas > (most := MOST_CLIENTS if sharing is Sharing.MPS else MOST_REPLICAS):
        raise PluginConfigInvalid(f"{where}.replicas: {replicas} is more than the {most} that a device can have")
    offered_as = _offered_as(fields, name, where, rename_by_default)
    return SharedResource(name, replicas, offered_as, _devices(fields.get("devices"), f"{where}.devices"), sharing)


def _name(fields: Mapping[str, Any], where: str) -> str:
    name = _qualified(fields.get("name"), f"{where}.name")
    if name not in _device_names():
        raise PluginConfigInvalid(
            f"{where}.name: no known GPU offers {name}",
            hint=f"{did_you_mean(name, sorted(_device_names()))}use {GPU_RESOURCE} or {DOMAIN}/mig-<profile>",
        )
    return name


def _offered_as(fields: Mapping[str, Any], name: str, where: str, by_default: bool) -> str:
    if fields.get("rename") in (None, ""):
        return f"{name}{_SHARED}" if by_default else name
    where = f"{where}.rename"
    wanted = _qualified(fields["rename"], where)
    if wanted == name:
        return name
    if not (wanted.startswith(f"{name}.") and is_device_resource(wanted)) or wanted in _device_names():
        raise PluginConfigInvalid(
            f"{where}: {wanted} must start with {name} and a dot, and must not be the name of a slice",
            hint=f"for example {name}{_SHARED}",
        )
    return wanted


def _qualified(text: object, where: str) -> str:
    if not isinstance(text, str) or not text:
        raise PluginConfigInvalid(f"{where} must be the name of a resource")
    name = text if "/" in text else f"{DOMAIN}/{text}"
    if len(name) > _LONGEST_NAME:
        raise PluginConfigInvalid(f"{where}: {name} is longer than {_LONGEST_NAME} characters")
    return name


def _devices(given: object, where: str) -> int | tuple[str, ...] | None:
    if given is None or given == "all":
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise PluginConfigInvalid(f"{where}: the number of devices must be at least 1, not {given}")
        return given
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise PluginConfigInvalid(f"{where} must be all, a number, or a list of indexes and UUIDs")
    names = tuple(str(each) for each in given)
    for each, name in zip(given, names, strict=True):
        if isinstance(each, bool) or not isinstance(each, int | str) or _DEVICE.fullmatch(name) is None:
            raise PluginConfigInvalid(
                f"{where}: '{name}' is not a device", hint="a device is an index (0, or 0:1 for a slice) or a UUID"
            )
    return tuple(dict.fromkeys(names))


def _refuse_twice(rules: Sequence[SharedResource], where: str) -> None:
    """Refuse a device that two rules name, as far as visible without a machine."""
    for place, rule in enumerate(rules):
        for other in rules[:place]:
            if other.name == rule.name and not _apart(other.devices, rule.devices):
                raise PluginConfigInvalid(
                    f"{where}: two resources share the same devices of {rule.name}",
                    hint="list each device only once, by index or UUID, under devices",
                )


def _apart(one: int | tuple[str, ...] | None, other: int | tuple[str, ...] | None) -> bool:
    return isinstance(one, tuple) and isinstance(other, tuple) and set(one).isdisjoint(other)


@cache
def _device_names() -> Collection[str]:
    """The resource names of GPUs and of every known board's slices."""
    slices = (f"{DOMAIN}/{profile.name.resource_name}" for board in catalogue() for profile in board.profiles)
    return frozenset((GPU_RESOURCE, *slices))


def _mapping(value: object, where: str, known: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PluginConfigInvalid(f"{where} must be a mapping")
    for key in value:
        if key not in known:
            raise PluginConfigInvalid(f"unknown field: {where}.{key}", hint=f"known fields: {', '.join(known)}")
    return value


def _boolean(fields: Mapping[str, Any], name: str, where: str, *, default: bool = False) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise PluginConfigInvalid(f"{where}.{name} must be true or false")
