"""How a cluster can give shares by demand, from its version and from what it keeps of a resource slice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.kubernetes.claims.tier import (
    NEEDED,
    ClaimFeature,
    Probe,
    Tier,
    claim_support,
    kept_features,
    probe_slice,
)

ALL = frozenset(ClaimFeature)
COUNTERS, SHARES, TAINTS = ClaimFeature.COUNTERS, ClaimFeature.SHARES, ClaimFeature.TAINTS


@pytest.mark.parametrize(
    ("version", "probe", "tier", "said"),
    [
        ("v1.36.3", Probe(kept=ALL), Tier.CLAIMS, "keeps what the driver publishes"),
        ("v1.37.0-eks-0abc12", Probe(kept=ALL), Tier.CLAIMS, ""),
        ("v1.36.1", Probe(kept=ALL), Tier.GUARDED, "a slice of a GPU that is shared"),
        ("v1.35.4+k3s1", Probe(kept=ALL), Tier.GUARDED, "1.36.2"),
        ("nonsense", Probe(kept=ALL), Tier.GUARDED, ""),
        ("v1.36.3", Probe(kept=NEEDED), Tier.GUARDED, "DRADeviceTaints"),
        ("v1.36.3", Probe(kept=frozenset({COUNTERS, TAINTS})), Tier.GATES, "DRAConsumableCapacity is off"),
        ("v1.35.0", Probe(kept=frozenset()), Tier.GATES, "DRAConsumableCapacity, DRAPartitionableDevices are off"),
        ("v1.36.3", Probe(why="may not"), Tier.CLAIMS, "cannot be tried: may not"),
        ("v1.35.3", Probe(why="may not"), Tier.GATES, "an account that may create ResourceSlices"),
        ("v1.33.2", Probe(served=False), Tier.GATES, "serves no resource.k8s.io/v1"),
        ("v1.27.0", Probe(served=False), Tier.GATES, ""),
        ("v1.26.9", Probe(served=False), Tier.NONE, ""),
    ],
)
def test_the_tier_and_why(version: str, probe: Probe, tier: Tier, said: str) -> None:
    found = claim_support(version, probe)
    assert found.tier is tier
    assert said in f"{found.why}; {found.remedy}"
    assert (found.tier is Tier.CLAIMS) == (found.remedy == "")


@given(
    st.text(max_size=20) | st.from_regex(r"v1\.\d\d\.\d", fullmatch=True), st.frozensets(st.sampled_from(ClaimFeature))
)
def test_no_cluster_that_drops_what_is_needed_gets_claims(version: str, kept: frozenset[ClaimFeature]) -> None:
    tier = claim_support(version, Probe(kept=kept)).tier
    assert (tier in (Tier.CLAIMS, Tier.GUARDED)) == (kept >= NEEDED)
    assert claim_support(version, Probe(served=False)).tier in (Tier.GATES, Tier.NONE)


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
