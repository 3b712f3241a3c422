"""A ResourceClaim as far as Tranche reads it: what the scheduler gave it, and for whom. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tranche.kubernetes.api.node_rules import Toleration
from tranche.kubernetes.claims.quantity import parse_whole


@dataclass(frozen=True, slots=True, order=True)
class ClaimRef:
    """Identifies a claim; a later claim of the same name has another `uid`."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of an allocation. `request` is the claim's, or `request/subrequest` where the scheduler had a choice.

    `consumed` has whole numbers, in bytes for memory, where several claims share the device. `share_id` tells the shares of one
    device apart. With `admin_access` the claim only watches and takes nothing. The scheduler chose the device with these
    `tolerations`.
    """

    request: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    consumed: Mapping[str, int] = field(default_factory=dict, hash=False)
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()

    def tolerates(self, key: str) -> bool:
        """Whether it was chosen with any taint of that key tolerated."""
        return any(each.covers(key, "", "NoSchedule") for each in self.tolerations)


@dataclass(frozen=True, slots=True)
class KubeClaim:
    """A claim. `allocated` is None while it is not allocated.

    `pods` are the uids of the pods that it is reserved for. `others` says whether it is reserved for anything else, which may
    stand for pods that are not listed here.
    """

    ref: ClaimRef
    allocated: tuple[AllocatedDevice, ...] | None = None
    pods: tuple[str, ...] = ()
    others: bool = False


def is_pod(user: Mapping[str, Any]) -> bool:
    """Whether an entry of a claim's `reservedFor` is a pod, instead of a group of pods or something unknown."""
    return user.get("resource") == "pods" and not user.get("apiGroup")


def decode_claim(raw: Mapping[str, Any]) -> KubeClaim:
    """A `resource.k8s.io` ResourceClaim; UsageError when one of its amounts is no whole number."""
    meta, status = raw.get("metadata") or {}, raw.get("status") or {}
    users = status.get("reservedFor") or ()
    allocation = status.get("allocation")
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    return KubeClaim(
        ref=ClaimRef(meta.get("namespace", ""), meta.get("name", ""), meta.get("uid", "")),
        allocated=None if allocation is None else tuple(map(_decode_device, results)),
        pods=tuple(each.get("uid", "") for each in users if is_pod(each)),
        others=not all(map(is_pod, users)),
    )


def _decode_device(raw: Mapping[str, Any]) -> AllocatedDevice:
    consumed = raw.get("consumedCapacity") or {}
    return AllocatedDevice(
        request=raw.get("request", ""),
        driver=raw.get("driver", ""),
        pool=raw.get("pool", ""),
        device=raw.get("device", ""),
        share_id=raw.get("shareID") or "",
        consumed={name: parse_whole(str(amount)) for name, amount in consumed.items()},
        admin_access=bool(raw.get("adminAccess")),
        tolerations=tuple(map(Toleration.decode, raw.get("tolerations") or ())),
    )
