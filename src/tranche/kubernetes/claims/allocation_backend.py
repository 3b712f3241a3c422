"""How a cluster can give shares on demand: by claims, where its API server and scheduler have what the driver needs. Pure.

An API server silently drops what it does not support. So a dry run asks it to take a ResourceSlice, and the answer shows what it
supports. Versions alone do not show that: feature gates can be switched off, or on early.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tranche.kubernetes.claims.vocabulary import DRIVER, TaintKey

PROBE_PATH = "/apis/resource.k8s.io/v1/resourceslices"
PROBE_QUERY: Mapping[str, str] = {"dryRun": "All", "fieldValidation": "Ignore"}

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_WITHOUT_DEFECT = (1, 36, 2)
"""From this version on, the scheduler also subtracts shares from a GPU's counters in later cycles (kubernetes issue 139034)."""
_ON_BY_DEFAULT = (1, 36, 0)
_OLDEST_WITH_GATES = (1, 27, 0)


class AllocationBackend(StrEnum):
    """CLAIMS: the scheduler gives shares by itself. GUARDED: it may give a share that does not exist, and the agent then refuses
    it. GATES: pods can wait at scheduling gates until a share was chosen for them. NONE: neither.
    """

    CLAIMS = "claims"
    GUARDED = "guarded-claims"
    GATES = "scheduling-gates"
    NONE = "none"


class ClaimFeatureGate(StrEnum):
    """What the driver's resource slices need, by the feature gate that provides it."""

    COUNTERS = "DRAPartitionableDevices"
    SHARES = "DRAConsumableCapacity"
    TAINTS = "DRADeviceTaints"


NEEDED = frozenset((ClaimFeatureGate.COUNTERS, ClaimFeatureGate.SHARES))
"""Without taints, devices that are not available now are offered all the same, and the agent refuses them."""


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """The result of the dry run. `kept` is what the API server did not drop; None when the dry run failed, for the reason in
    `why`.

    `served` is False where the API server does not serve v1 resource slices.
    """

    served: bool = True
    kept: frozenset[ClaimFeatureGate] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _ClaimSupport:
    """A cluster's backend, the reason for it, and what would improve it."""

    backend: AllocationBackend
    why: str
    remedy: str = ""


def probe_slice() -> dict[str, Any]:
    """A resource slice that uses every feature in question, of a pool that no node has."""
    policy = {"default": "1Mi", "validRange": {"min": "1Mi", "max": "1Gi", "step": "1Mi"}}
    device = {
        "name": "probe",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "1Gi", "requestPolicy": policy}},
        "consumesCounters": [{"counterSet": "probe", "counters": {"memory-slice-0": {"value": "1"}}}],
        "taints": [{"key": TaintKey.HELD.value, "effect": "NoSchedule"}],
    }
    pool = {"name": "tranche-probe", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "tranche-probe"},
        "spec": {"driver": DRIVER, "allNodes": True, "pool": pool, "devices": [device]},
    }


def kept_features(answered: Mapping[str, Any]) -> frozenset[ClaimFeatureGate]:
    """The features that the API server's answer has kept."""
    devices: Sequence[Mapping[str, Any]] = (answered.get("spec") or {}).get("devices") or [{}]
    device = devices[0]
    memory = (device.get("capacity") or {}).get("memory") or {}
    kept = {
        ClaimFeatureGate.COUNTERS: bool(device.get("consumesCounters")),
        ClaimFeatureGate.SHARES: bool(device.get("allowMultipleAllocations") and memory.get("requestPolicy")),
        ClaimFeatureGate.TAINTS: bool(device.get("taints")),
    }
    return frozenset(feature for feature, there in kept.items() if there)


def claim_support(version: str, probe: DryRunResult) -> _ClaimSupport:
    """The backend of a cluster whose API server reports that version (`v1.36.3`)."""
    number = _number(version)
    if not probe.served:
        return _without_claims(
            number, f"Kubernetes {version} does not serve resource.k8s.io/v1", "use Kubernetes 1.36 or newer"
        )
    kept, said = probe.kept, "the API server keeps all fields that the driver publishes"
    if kept is None:
        if number is None or number < _ON_BY_DEFAULT:
            why = f"cannot test which fields Kubernetes {version} keeps: {probe.why}"
            return _without_claims(number, why, "use an account that may create ResourceSlices")
        kept, said = frozenset(ClaimFeatureGate), f"judged by its version, because the test failed: {probe.why}"
    missing = sorted(NEEDED - kept)
    if missing:
        gates = ", ".join(missing)
        why = (
            f"the API server drops fields that the driver publishes: {gates} {'is' if len(missing) == 1 else 'are'} off"
        )
        return _without_claims(number, why, f"enable the feature gates {gates}, or use Kubernetes 1.36")
    if number is None or number < _WITHOUT_DEFECT:
        return _ClaimSupport(
            AllocationBackend.GUARDED,
            f"Kubernetes {version}: {said}, but its scheduler may assign a slice of a GPU that is shared; the agent "
            "then refuses to start the pod",
            "upgrade to Kubernetes 1.36.2 or newer, which has the fix",
        )
    if ClaimFeatureGate.TAINTS not in kept:
        return _ClaimSupport(
            AllocationBackend.GUARDED,
            f"Kubernetes {version}: {said} except taints, so the scheduler may assign devices that are withheld; the "
            "agent then refuses to start the pod",
            f"enable the feature gate {ClaimFeatureGate.TAINTS}",
        )
    return _ClaimSupport(AllocationBackend.CLAIMS, f"Kubernetes {version}: {said}")


BY_CLAIMS = frozenset((AllocationBackend.CLAIMS, AllocationBackend.GUARDED))
"""The backends in which the scheduler gives shares."""


def backend_by_word(word: str) -> AllocationBackend | None:
    """The backend that an administrator names, `claims` or `gates`; None for `auto`, which has it found out."""
    return {"claims": AllocationBackend.CLAIMS, "gates": AllocationBackend.GATES}.get(word)


def backend_by_version(version: str, *, served: bool) -> AllocationBackend:
    """The backend of a cluster without a dry run: agents, controller and commands must agree on it.

    `served` is whether the API server knows `resource.k8s.io/v1`. Feature gates set against their defaults are invisible here:
    the administrator names the backend then.
    """
    number = _number(version)
    if served and (number is None or number >= _ON_BY_DEFAULT):
        return AllocationBackend.GUARDED if number is None or number < _WITHOUT_DEFECT else AllocationBackend.CLAIMS
    return AllocationBackend.NONE if number is not None and number < _OLDEST_WITH_GATES else AllocationBackend.GATES


def support_as_told(found: _ClaimSupport, said: AllocationBackend | None) -> _ClaimSupport:
    """The support with the administrator's word, as the agents have it; None where they find it out by themselves."""
    if said is AllocationBackend.GATES and found.backend is not AllocationBackend.NONE:
        return _ClaimSupport(AllocationBackend.GATES, "set by dra.tier=gates")
    if said is AllocationBackend.CLAIMS and found.backend not in BY_CLAIMS:
        return replace(found, why=f"despite dra.tier=claims: {found.why}")
    return found


def _without_claims(number: tuple[int, int, int] | None, why: str, remedy: str) -> _ClaimSupport:
    old = number is not None and number < _OLDEST_WITH_GATES
    return _ClaimSupport(AllocationBackend.NONE if old else AllocationBackend.GATES, why, remedy)


def _number(version: str) -> tuple[int, int, int] | None:
    match = _VERSION.match(version)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))
