"""What nodes offer, decoded from their resource slices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tranche.kubernetes.api.decoding import part
from tranche.kubernetes.api.node_rules import Taint
from tranche.kubernetes.claims.quantity import read_quantity
from tranche.kubernetes.claims.spec import SharedGpuModel
from tranche.kubernetes.claims.vocabulary import (
    DRIVER,
    MEMORY_COUNTER,
    AttributeName,
    CapacityName,
    DeviceType,
    TaintKey,
)


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device of a node.

    `memory` in bytes, `card_memory` in MiB; `share` and `compute` in percent, None without such a capacity. `uuid` is the GPU's.
    `counters` are what it takes of its GPU's `counter_set`, without that of memory, which excludes nothing more. `least` and
    `step`, in bytes, apply to parts of a shared device. A `kept` device is for requests that name its size.
    """

    node: str
    name: str
    type: str
    model: str = ""
    uuid: str = ""
    minor: int = 0
    profile: str = ""
    isolation: str = ""
    mechanism: str = ""
    card_memory: int = 0
    memory: int = 0
    share: int | None = None
    compute: int | None = None
    clients: int | None = None
    least: int = 0
    step: int = 1
    counter_set: str = ""
    counters: Mapping[str, int] = field(default_factory=dict, hash=False)
    kept: bool = False
    taints: tuple[Taint, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether several claims may have parts of it."""
        return self.type == DeviceType.SHARED

    def consumed(self, memory: int | None) -> int:
        """The bytes of a shared device that a request for that many takes; all of it for None."""
        if memory is None:
            return self.memory
        return max(self.least, -(-memory // self.step) * self.step)


@dataclass(frozen=True, slots=True)
class Pool:
    """A node's offer: its devices in the order in which the scheduler tries them, and the counters of its GPUs.

    `complete` is false while the node publishes: the scheduler gives nothing of it then.
    """

    node: str
    devices: tuple[FleetDevice, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class FleetSlice:
    """A ResourceSlice by name, as its pool needs it. `generation` and `count` are what it says of the pool."""

    name: str
    driver: str
    node: str
    generation: int
    count: int
    devices: tuple[FleetDevice, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)


def decode_fleet_slice(raw: Mapping[str, Any]) -> FleetSlice:
    """A `resource.k8s.io/v1.ResourceSlice`; another driver's without its devices."""
    spec = part(raw, "spec")
    pool, driver, node = part(spec, "pool"), str(spec.get("driver") or ""), str(spec.get("nodeName") or "")
    ours = driver == DRIVER
    return FleetSlice(
        name=str(part(raw, "metadata").get("name") or ""),
        driver=driver,
        node=node,
        generation=_number(pool.get("generation")),
        count=_number(pool.get("resourceSliceCount")),
        devices=tuple(_device(node, each) for each in spec.get("devices") or ()) if ours else (),
        counters={str(each.get("name")): _counters(each) for each in spec.get("sharedCounters") or ()},
    )


def pools_of(resource_slices: Iterable[FleetSlice]) -> Mapping[str, Pool]:
    """The pools of Tranche's driver by node, each in its newest generation, with slices in the scheduler's order: by name."""
    by_pool: dict[str, list[FleetSlice]] = {}
    for each in sorted(resource_slices, key=lambda each: each.name):
        if each.driver == DRIVER and each.node:
            by_pool.setdefault(each.node, []).append(each)
    return {node: _pool(node, slices) for node, slices in sorted(by_pool.items())}


def shared_cards(devices: Iterable[FleetDevice], gpu_model: str = "") -> tuple[SharedGpuModel, ...]:
    """The sizes of GPUs shared uncut, smallest first, for models with `gpu_model` in their name, ignoring case."""
    found: dict[int, SharedGpuModel] = {}
    for each in devices:
        named = gpu_model.lower() in each.model.lower()
        if each.shared and not each.profile and named and each.card_memory > 0 and each.memory > 0:
            before = found.get(each.card_memory, SharedGpuModel(each.card_memory, each.memory, 0))
            offered = all(taint.key != TaintKey.MODE for taint in each.taints)
            found[each.card_memory] = SharedGpuModel(
                each.card_memory, min(each.memory, before.room), before.gpus + offered
            )
    return tuple(found[memory] for memory in sorted(found))


def _pool(node: str, slices: Sequence[FleetSlice]) -> Pool:
    newest = max(each.generation for each in slices)
    current = [each for each in slices if each.generation == newest]
    counters = {name: counters for each in current for name, counters in each.counters.items()}
    devices = tuple(device for each in current for device in each.devices)
    return Pool(node, devices, counters, len(current) == current[0].count)


def _device(node: str, raw: Mapping[str, Any]) -> FleetDevice:
    capacity = part(raw, "capacity")
    consumed: Mapping[str, Any] = next(iter(raw.get("consumesCounters") or ()), {})
    policy = part(part(part(capacity, CapacityName.MEMORY), "requestPolicy"), "validRange")
    device = fleet_device(
        node,
        str(raw.get("name") or ""),
        {name: _value(each) for name, each in part(raw, "attributes").items()},
        _amounts(capacity),
    )
    return replace(
        device,
        least=read_quantity(policy.get("min")) or 0,
        step=max(read_quantity(policy.get("step")) or 0, 1),
        counter_set=str(consumed.get("counterSet") or ""),
        counters=_counters(consumed),
        taints=tuple(map(Taint.decode, raw.get("taints") or ())),
    )


def fleet_device(node: str, name: str, attributes: Mapping[str, object], amounts: Mapping[str, int]) -> FleetDevice:
    """The device by its attributes and the amounts of its capacities, without counters and taints."""

    def text(name: AttributeName) -> str:
        return str(attributes.get(name) or "")

    return FleetDevice(
        node=node,
        name=name,
        type=text(AttributeName.TYPE),
        model=text(AttributeName.MODEL),
        uuid=text(AttributeName.UUID),
        minor=_number(attributes.get(AttributeName.MINOR)),
        profile=text(AttributeName.PROFILE),
        isolation=text(AttributeName.ISOLATION),
        mechanism=text(AttributeName.MECHANISM),
        card_memory=_number(attributes.get(AttributeName.CARD_MEMORY)),
        memory=amounts.get(CapacityName.MEMORY, 0),
        share=amounts.get(CapacityName.SHARE),
        compute=amounts.get(CapacityName.COMPUTE),
        clients=amounts.get(CapacityName.CLIENTS),
        kept=attributes.get(AttributeName.KEPT) is True,
    )


def _value(attribute: Any) -> object:
    return next(iter(attribute.values()), None) if isinstance(attribute, dict) else None


def _counters(raw: Mapping[str, Any]) -> Mapping[str, int]:
    return {name: each for name, each in _amounts(part(raw, "counters")).items() if name != MEMORY_COUNTER}


def _amounts(raw: Mapping[str, Any]) -> Mapping[str, int]:
    return {name: read_quantity(part(raw, name).get("value")) or 0 for name in raw}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
