"""Devices and counters as a ResourceSlice of `resource.k8s.io/v1` holds them, and what of two such texts is the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tranche.core.errors import UsageError
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.claims.quantity import format_bytes, parse_quantity
from tranche.kubernetes.claims.vocabulary import CapacityName, TaintKey
from tranche.kubernetes.devices.attributes import AttributeValue, VersionValue
from tranche.kubernetes.devices.devices import DeviceCapacity, NodeDevice

_QUANTITIES = ("value", "default", "min", "max", "step")


def encode_device(device: NodeDevice, reasons: Sequence[TaintKey] = ()) -> Json:
    """The device with a taint for each reason against it."""
    found: dict[str, Any] = {
        "name": device.name,
        "attributes": {name: _attribute(value) for name, value in device.attributes.items()},
        "capacity": {name: _capacity(name, amount) for name, amount in device.capacity.items()},
        "consumesCounters": [{"counterSet": device.counter_set, "counters": encode_counters(device.counters)}],
    }
    if device.sharing is not None:
        found["allowMultipleAllocations"] = True
    return tainted(found, reasons)


def tainted(device: Json, reasons: Iterable[TaintKey]) -> Json:
    """The device with those taints in the place of its own; no pod is given it that does not tolerate them."""
    bare = {name: value for name, value in device.items() if name != "taints"}
    taints = [{"key": str(reason), "effect": "NoSchedule"} for reason in reasons]
    return {**bare, "taints": taints} if taints else bare


def encode_counters(counters: Mapping[str, int]) -> Json:
    """Counters with their values."""
    return {name: {"value": str(value)} for name, value in counters.items()}


def taint_keys(device: Mapping[str, Any]) -> frozenset[str]:
    """The keys of a device's taints."""
    return frozenset(str(each.get("key", "")) for each in device.get("taints") or ())


def with_times(device: Json, shown: Mapping[str, Any]) -> Json:
    """The device with the times that the API server wrote at the taints that it has already."""
    times = {(each.get("key"), each.get("effect")): each.get("timeAdded") for each in shown.get("taints") or ()}
    if not device.get("taints"):
        return device
    taints = [
        {**each, "timeAdded": time} if (time := times.get((each["key"], each["effect"]))) else each
        for each in device["taints"]
    ]
    return {**device, "taints": taints}


def plain(text: Any) -> Any:
    """What two texts of one meaning have in common: without the times of taints, and with quantities as numbers."""
    if isinstance(text, Mapping):
        known = {name: value for name, value in text.items() if name != "timeAdded" and value is not None}
        return {name: _number(value) if name in _QUANTITIES else plain(value) for name, value in known.items()}
    return [plain(each) for each in text] if isinstance(text, list | tuple) else text


def _number(value: Any) -> Any:
    try:
        return parse_quantity(value) if isinstance(value, str) else plain(value)
    except UsageError:
        return value


def _attribute(value: AttributeValue) -> Json:
    match value:
        case VersionValue(text):
            return {"version": text}
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}


def _capacity(name: str, amount: DeviceCapacity) -> Json:
    def quantity(value: int) -> str:
        return format_bytes(value) if name == CapacityName.MEMORY else str(value)

    found: dict[str, Any] = {"value": quantity(amount.value)}
    if amount.default is not None:
        limits = {"min": quantity(amount.least), "max": quantity(amount.value), "step": quantity(amount.step)}
        found["requestPolicy"] = {"default": quantity(amount.default), "validRange": limits}
    return found
