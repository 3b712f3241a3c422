"""Requests and grants as JSON data, as the ledger keeps them and `-o json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tranche.core.allocation import Grant
from tranche.core.profile import parse_profile
from tranche.core.request import Demand, GpuMemory, GpuShare, Isolation, MigSlice, Request, WholeGpus


def request_to_dict(request: Request) -> dict[str, Any]:
    """The request as JSON data: exactly one of gpus, gpu, gpuMemoryBytes and migProfile, beside isolation and gpuModel."""
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
    return {**demand, "isolation": str(request.isolation), "gpuModel": request.gpu_model}


def request_from_dict(data: Mapping[str, Any]) -> Request:
    """The request that request_to_dict wrote."""
    demand: Demand
    if "gpus" in data:
        demand = WholeGpus(data["gpus"])
    elif "gpu" in data:
        demand = GpuShare(Fraction(data["gpu"]))
    elif "gpuMemoryBytes" in data:
        demand = GpuMemory(data["gpuMemoryBytes"])
    else:
        demand = MigSlice(parse_profile(data["migProfile"]))
    return Request(demand, Isolation(data["isolation"]), data["gpuModel"])


def grant_to_dict(grant: Grant) -> dict[str, Any]:
    """The grant as JSON data; profile and placement are null for a whole GPU."""
    placement = grant.placement
    return {
        "gpuUUID": grant.gpu_uuid,
        "mechanism": grant.mechanism,
        "isolation": str(grant.isolation),
        "profile": None if grant.profile is None else str(grant.profile),
        "placement": None if placement is None else {"start": placement.start, "size": placement.size},
    }
