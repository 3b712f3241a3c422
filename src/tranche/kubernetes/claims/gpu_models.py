"""What kinds of GPUs a cluster gives parts of, as its resource slices say: what a share of a GPU is in bytes depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tranche.kubernetes.api.decoding import part
from tranche.kubernetes.claims.quantity import read_quantity
from tranche.kubernetes.claims.vocabulary import DRIVER, AttributeName, CapacityName, DeviceType, TaintKey


@dataclass(frozen=True, slots=True)
class SharedGpuModel:
    """GPUs of one size that are shared uncut. `memory` is what programs can have of one, in MiB, as its devices say;
    `room` is what can be given away of it, in bytes, where it is least; `gpus` is how many there are on nodes whose mode offers
    them, 0 where they would be offered in another mode alone.
    """

    memory: int
    room: int
    gpus: int = 1


def shared_cards(resource_slices: Iterable[Mapping[str, Any]], gpu_model: str = "") -> tuple[SharedGpuModel, ...]:
    """The sizes of GPUs that are shared uncut, smallest first, of those whose model's name holds `gpu_model` in any case.

    `resource_slices` are API objects; what is not of Tranche's driver, or is not understood, is passed over.
    """
    found: dict[int, SharedGpuModel] = {}
    for device in _devices(resource_slices):
        attributes = device.get("attributes") or {}
        memory = (attributes.get(AttributeName.CARD_MEMORY) or {}).get("int")
        room = read_quantity(part(part(device, "capacity"), CapacityName.MEMORY).get("value")) or 0
        shared = _text(attributes, AttributeName.TYPE) == DeviceType.SHARED and not _text(
            attributes, AttributeName.PROFILE
        )
        named = gpu_model.lower() in _text(attributes, AttributeName.MODEL).lower()
        if shared and named and isinstance(memory, int) and memory > 0 and room > 0:
            before = found.get(memory, SharedGpuModel(memory, room, 0))
            found[memory] = SharedGpuModel(memory, min(room, before.room), before.gpus + _offered(device))
    return tuple(found[memory] for memory in sorted(found))


def _devices(resource_slices: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for each in resource_slices:
        spec = each.get("spec") or {}
        if spec.get("driver") == DRIVER:
            yield from spec.get("devices") or ()


def _offered(device: Mapping[str, Any]) -> bool:
    return all(each.get("key") != TaintKey.MODE for each in device.get("taints") or ())


def _text(attributes: Mapping[str, Any], name: AttributeName) -> str:
    return str((attributes.get(name) or {}).get("string") or "")
