"""The sizes of shared GPUs, read from resource slices."""

from __future__ import annotations

from typing import Any

from tranche.core.quantity import MIB
from tranche.kubernetes.claims.spec import SharedGpuModel
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.fleet.devices import decode_fleet_slice, shared_cards


def device(card: Any = 14_914, room: str = "14850Mi", model: str = "Tesla T4", **strings: str) -> dict[str, Any]:
    attributes = {"type": {"string": "shared"}, "model": {"string": model}, "cardMemoryMiB": {"int": card}}
    attributes |= {name: {"string": text} for name, text in strings.items()}
    return {"name": "d", "attributes": attributes, "capacity": {"memory": {"value": room}}}


def resource_slice(*devices: dict[str, Any], driver: str = DRIVER) -> dict[str, Any]:
    return {"spec": {"driver": driver, "devices": list(devices)}}


def models(slices: list[dict[str, Any]], gpu_model: str = "") -> tuple[SharedGpuModel, ...]:
    return shared_cards((each for found in slices for each in decode_fleet_slice(found).devices), gpu_model)


def test_gpus_of_one_size_are_one_and_the_least_room_counts() -> None:
    slices = [resource_slice(device(), device(40_000, "39Gi")), resource_slice(device(room="14Gi"))]
    assert models(slices) == (
        SharedGpuModel(14_914, 14 * 1024 * MIB, 2),
        SharedGpuModel(40_000, 39 * 1024 * MIB, 1),
    )


def test_only_shared_gpus_that_are_not_cut_of_the_model_and_of_this_driver_count() -> None:
    slices = [
        resource_slice(device(), device(type="whole"), device(profile="1g.5gb"), device(model="NVIDIA A10G")),
        resource_slice(device(), driver="gpu.example.com"),
        {"spec": {"driver": DRIVER, "sharedCounters": []}},
    ]
    assert models(slices, "t4") == (SharedGpuModel(14_914, 14_850 * MIB, 1),)


def test_what_another_mode_of_its_node_would_offer_is_kept_in_mind() -> None:
    tainted = {**device(), "taints": [{"key": "tranche.dev/mode", "effect": "NoSchedule"}]}
    assert models([resource_slice(tainted)]) == (SharedGpuModel(14_914, 14_850 * MIB, 0),)


def test_what_is_not_understood_is_passed_over() -> None:
    slices = [{}, resource_slice({"name": "d"}, device("x"), device(0), device(room="much"))]
    assert models(slices) == ()
