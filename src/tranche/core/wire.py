"""Requests, grants and keepers as JSON data, as the ledger keeps them and `-o json` prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.errors import LedgerCorrupt
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper, Keeper, PlacedPodKeeper, PodKeeper, ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Demand, GpuMemory, GpuShare, Isolation, MigSlice, Request, WholeGpus
from tranche.core.sharing import GrantIsolation, Sharing

_FRACTION = re.compile(r"\d{1,40}(?:\.\d{1,40}|/[1-9]\d{0,39})?", re.ASCII)
"""A share of a GPU. Python also reads "1e999999999", and fills the memory with it."""


def request_to_dict(request: Request) -> dict[str, Any]:
    """The request as JSON data: exactly one of gpus, gpu, gpuMemoryBytes or migProfile, beside isolation and gpuModel.

    Omits count, computePercent, timeLimitSeconds and preemptible if the request did not set them.
    """
    demand: dict[str, Any]
    match request.demand:
        case WholeGpus(count):
            demand = {"gpus": count}
        case GpuShare(share):
            demand = {"gpu": str(share)}
        case GpuMemory(amount):
            demand = {"gpuMemoryBytes": amount}
        case MigSlice(profile):
            demand = {"migProfile": str(profile)}
    conditions = {
        "count": request.count if request.count != 1 else None,
        "computePercent": request.compute,
        "timeLimitSeconds": request.time_limit,
        "preemptible": request.preemptible or None,
    }
    asked = {name: value for name, value in conditions.items() if value is not None}
    return {**demand, **asked, "isolation": str(request.isolation), "gpuModel": request.gpu_model}


def request_from_dict(data: Mapping[str, Any]) -> Request:
    """The request that request_to_dict wrote."""
    demand: Demand
    if "gpus" in data:
        demand = WholeGpus(data["gpus"])
    elif "gpu" in data:
        from fractions import Fraction  # a slow import, and few requests hold a fraction

        if _FRACTION.fullmatch(data["gpu"]) is None:
            raise LedgerCorrupt("the ledger has a GPU share that is not a fraction")
        demand = GpuShare(Fraction(data["gpu"]))
    elif "gpuMemoryBytes" in data:
        demand = GpuMemory(data["gpuMemoryBytes"])
    else:
        demand = MigSlice(parse_profile(data["migProfile"]))
    return Request(
        demand,
        Isolation(data["isolation"]),
        data["gpuModel"],
        data.get("count", 1),
        data.get("computePercent"),
        data.get("timeLimitSeconds"),
        data.get("preemptible", False),
    )


def grant_to_dict(grant: Grant) -> dict[str, Any]:
    """The grant as JSON data; profile and placement are null for a whole GPU and for a part of one."""
    slot = grant.slot
    data: dict[str, Any] = {
        "gpuUUID": grant.gpu_uuid,
        "mechanism": grant.mechanism,
        "isolation": str(grant.walls.isolation),
        "walls": walls_to_dict(grant.walls),
        "profile": None if slot is None else str(slot.profile),
        "placement": None if slot is None else {"start": slot.placement.start, "size": slot.placement.size},
    }
    match grant:
        case WholeGpu() | Slice():
            return data
        case ComputeSlice(_, name, start, size):
            return {**data, "computeInstance": {"name": str(name), "start": start, "size": size}}
        case FractionalShare():
            return {
                **data,
                "memoryBytes": grant.memory,
                "computePercent": grant.compute,
                **({"memoryLimitBytes": grant.limit} if grant.limit is not None else {}),
                **_set(unlimited=grant.unlimited),
            }


def walls_to_dict(walls: GrantIsolation) -> dict[str, str]:
    """The walls as JSON data, one word for each dimension."""
    return {
        "memory": str(walls.memory),
        "compute": str(walls.compute),
        "faults": str(walls.faults),
        "bandwidth": str(walls.bandwidth),
    }


def grant_from_dict(data: Mapping[str, Any]) -> Grant:
    """The grant that grant_to_dict wrote; raises LedgerCorrupt for an unknown shape."""
    known = {"whole", "mig", *Sharing}
    if data["mechanism"] not in known:
        raise LedgerCorrupt(f"the ledger has a grant with the unknown mechanism {data['mechanism']!r}")
    gpu_uuid, place = data["gpuUUID"], data["placement"]
    device: WholeGpu | Slice = WholeGpu(gpu_uuid)
    if place is not None:
        device = Slice(gpu_uuid, parse_profile(data["profile"]), Placement(place["start"], place["size"]))
    if "memoryBytes" in data:
        return FractionalShare(
            device,
            data["memoryBytes"],
            Sharing(data["mechanism"]),
            data["computePercent"],
            data.get("memoryLimitBytes"),
            data.get("unlimited", False),
        )
    if "computeInstance" in data:
        inside = data["computeInstance"]
        if not isinstance(device, Slice):
            raise LedgerCorrupt("the ledger has a compute instance that belongs to no GPU instance")
        return ComputeSlice(device, parse_profile(inside["name"]), inside["start"], inside["size"])
    return device


def keeper_to_dict(keeper: Keeper) -> dict[str, Any]:
    """The keeper as JSON data; `kind` says which."""
    match keeper:
        case ProcessKeeper():
            return {
                "kind": "process",
                "pid": keeper.pid,
                "started": keeper.started,
                "namespace": keeper.namespace,
                "keyDigest": keeper.key_digest,
                **_set(
                    others=[{"pid": pid, "started": started} for pid, started in keeper.others],
                    suspected=keeper.suspected,
                    begun=keeper.begun,
                ),
                **({"uid": keeper.uid} if keeper.uid >= 0 else {}),
            }
        case PodKeeper():
            return {
                "kind": "pod",
                "resource": keeper.resource,
                "namespace": keeper.namespace,
                "name": keeper.name,
                "container": keeper.container,
                "uid": keeper.uid,
                "kubelet": keeper.kubelet,
                "lingers": keeper.lingers,
                **_set(forgotten=keeper.forgotten, replicas=list(keeper.replicas)),
            }
        case ClaimKeeper(namespace, name, uid, pods, others, boot):
            named = {"kind": "claim", "namespace": namespace, "name": name, "uid": uid}
            return {**named, **_set(pods=list(pods), others=others, boot=boot)}
        case PlacedPodKeeper(namespace, name, uid):
            return {"kind": "placed-pod", "namespace": namespace, "name": name, "uid": uid}


def _set(**fields: Any) -> dict[str, Any]:
    """The fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


def keeper_from_dict(data: Mapping[str, Any]) -> Keeper:
    """The keeper that keeper_to_dict wrote; raises LedgerCorrupt for an unknown kind."""
    fields = {key: value for key, value in data.items() if key != "kind"}
    match data["kind"]:
        case "process":
            key_digest = fields.pop("keyDigest", "")
            others = tuple((each["pid"], each["started"]) for each in fields.pop("others", ()))
            return ProcessKeeper(**fields, key_digest=key_digest, others=others)
        case "pod":
            return PodKeeper(**{**fields, "replicas": tuple(fields.get("replicas", ()))})
        case "claim":
            return ClaimKeeper(**{**fields, "pods": tuple(fields.get("pods", ()))})
        case "placed-pod":
            return PlacedPodKeeper(**fields)
        case unknown:
            raise LedgerCorrupt(f"the ledger has a keeper with the unknown kind {unknown!r}")
