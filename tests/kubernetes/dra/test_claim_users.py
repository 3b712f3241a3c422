"""Who uses a claim: nothing that a workload says of itself counts, and what is not known of a claim's pods is not absent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.keeper import ClaimKeeper
from tranche.kubernetes.api.decoding import decode_pod
from tranche.kubernetes.api.objects import MIRROR_POD_ANNOTATION, KubePod, PodRef
from tranche.kubernetes.dra.claim_reconciler import used_by
from tranche.kubernetes.node.share_edits import cdi_id, claim_of

KNOWN = ClaimKeeper("team", "a", "u-a", ("p-1", "p-2"))
UNKNOWN = ClaimKeeper("team", "a", "u-a")


def pod(uid: str, *claims: str, namespace: str = "team", phase: str = "Running") -> KubePod:
    return KubePod(PodRef(namespace, uid), uid, phase, claims=frozenset(claims))


@pytest.mark.parametrize(
    ("keeper", "pods", "running", "used"),
    [
        (KNOWN, (), (), False),
        (KNOWN, (), ("p-2",), True),
        (KNOWN, (), ("p-3",), False),
        (KNOWN, (pod("p-3", "a"),), (), True),
        (KNOWN, (pod("p-3", "a", phase="Succeeded"),), (), False),
        (KNOWN, (pod("p-3", "a", namespace="other"),), ("p-3",), False),
        (KNOWN, (pod("p-1", phase="Pending"),), (), True),
        (UNKNOWN, (), (), False),
        (UNKNOWN, (), ("p-1",), True),
        (UNKNOWN, (pod("p-1", "b"),), ("p-1",), False),
        (UNKNOWN, (pod("p-1", "a", namespace="other"),), ("p-1",), False),
        (UNKNOWN, (pod("p-1", "b"),), ("p-1", "p-2"), True),
        (
            UNKNOWN,
            (KubePod(PodRef("kube-system", "m"), "m", annotations={MIRROR_POD_ANNOTATION: "f-1"}),),
            ("f-1",),
            False,
        ),
    ],
)
def test_a_claim_is_used_while_one_of_its_pods_may_be_there(
    keeper: ClaimKeeper, pods: tuple[KubePod, ...], running: tuple[str, ...], used: bool
) -> None:
    assert used_by(keeper, pods, running) is used


@given(st.lists(st.sampled_from("abcdef"), max_size=9), st.lists(st.sampled_from("abcdef"), max_size=9))
def test_a_keeper_knows_every_pod_that_it_heard_of_once(earlier: list[str], later: list[str]) -> None:
    pods = UNKNOWN.with_pods(earlier).with_pods(later).pods
    assert set(pods) == {*earlier, *later}
    assert len(pods) == len(set(pods))


def test_of_very_many_pods_the_latest_are_known() -> None:
    keeper = UNKNOWN
    for number in range(1000):
        keeper = keeper.with_pods(("always", f"p-{number}"))
    assert len(keeper.pods) == 512
    assert {"always", "p-999"} <= set(keeper.pods)


def test_a_pod_names_its_claims_in_three_ways() -> None:
    spec = {
        "resourceClaims": [{"name": "x", "resourceClaimName": "mine"}, {"name": "y", "resourceClaimTemplateName": "t"}]
    }
    status = {
        "resourceClaimStatuses": [{"name": "y", "resourceClaimName": "made"}, {"name": "z"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "by-resource"},
    }
    found = decode_pod({"metadata": {"name": "p"}, "spec": spec, "status": status})
    assert found.claims == {"mine", "made", "by-resource"}


def test_the_name_for_the_runtime_tells_whose_a_device_is() -> None:
    assert claim_of(cdi_id("0a-b-c", 11)) == "0a-b-c"
    assert claim_of("nvidia.com/gpu=0a-b-c-1") == ""
