"""How a cluster can give shares by demand, from its version and from what it keeps of a resource slice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.kubernetes.claims.allocation_backend import (
    NEEDED,
    AllocationBackend,
    ClaimFeatureGate,
    DryRunResult,
    claim_support,
    kept_features,
    probe_slice,
)

ALL = frozenset(ClaimFeatureGate)
COUNTERS, SHARES, TAINTS = ClaimFeatureGate.COUNTERS, ClaimFeatureGate.SHARES, ClaimFeatureGate.TAINTS


@pytest.mark.parametrize(
    ("version", "probe", "backend", "said"),
    [
        ("v1.36.3", DryRunResult(kept=ALL), AllocationBackend.CLAIMS, "keeps all fields that the driver publishes"),
        ("v1.37.0-eks-0abc12", DryRunResult(kept=ALL), AllocationBackend.CLAIMS, ""),
        ("v1.36.1", DryRunResult(kept=ALL), AllocationBackend.GUARDED, "a slice of a GPU that is shared"),
        ("v1.35.4+k3s1", DryRunResult(kept=ALL), AllocationBackend.GUARDED, "1.36.2"),
        ("nonsense", DryRunResult(kept=ALL), AllocationBackend.GUARDED, ""),
        ("v1.36.3", DryRunResult(kept=NEEDED), AllocationBackend.GUARDED, "DRADeviceTaints"),
        (
            "v1.36.3",
            DryRunResult(kept=frozenset({COUNTERS, TAINTS})),
            AllocationBackend.GATES,
            "DRAConsumableCapacity is off",
        ),
        (
            "v1.35.0",
            DryRunResult(kept=frozenset()),
            AllocationBackend.GATES,
            "DRAConsumableCapacity, DRAPartitionableDevices are off",
        ),
        ("v1.36.3", DryRunResult(why="may not"), AllocationBackend.CLAIMS, "the test failed: may not"),
        ("v1.35.3", DryRunResult(why="may not"), AllocationBackend.GATES, "an account that may create ResourceSlices"),
        ("v1.33.2", DryRunResult(served=False), AllocationBackend.GATES, "does not serve resource.k8s.io/v1"),
        ("v1.27.0", DryRunResult(served=False), AllocationBackend.GATES, ""),
        ("v1.26.9", DryRunResult(served=False), AllocationBackend.NONE, ""),
    ],
)
def test_the_backend_and_why(version: str, probe: DryRunResult, backend: AllocationBackend, said: str) -> None:
    found = claim_support(version, probe)
    assert found.backend is backend
    assert said in f"{found.why}; {found.remedy}"
    assert (found.backend is AllocationBackend.CLAIMS) == (found.remedy == "")


@given(
    st.text(max_size=20) | st.from_regex(r"v1\.\d\d\.\d", fullmatch=True),
    st.frozensets(st.sampled_from(ClaimFeatureGate)),
)
def test_no_cluster_that_drops_what_is_needed_gets_claims(version: str, kept: frozenset[ClaimFeatureGate]) -> None:
    backend = claim_support(version, DryRunResult(kept=kept)).backend
    assert (backend in (AllocationBackend.CLAIMS, AllocationBackend.GUARDED)) == (kept >= NEEDED)
    assert claim_support(version, DryRunResult(served=False)).backend in (
        AllocationBackend.GATES,
        AllocationBackend.NONE,
    )


def test_an_api_server_that_keeps_everything_has_everything_and_each_that_is_dropped_is_missed() -> None:
    assert kept_features(probe_slice()) == ALL
    for name, feature in (("consumesCounters", COUNTERS), ("allowMultipleAllocations", SHARES), ("taints", TAINTS)):
        answered = probe_slice()
        del answered["spec"]["devices"][0][name]
        assert kept_features(answered) == ALL - {feature}
    answered = probe_slice()
    del answered["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"]
    assert kept_features(answered) == ALL - {SHARES}
    assert kept_features({}) == kept_features({"spec": {"devices": None}}) == frozenset()
