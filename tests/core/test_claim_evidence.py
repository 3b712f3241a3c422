"""Only what is known to be over frees what a claim has."""

from __future__ import annotations

import pytest

from tranche.core.evidence import FALLEN_SECONDS, ClaimEvidence, Liveness, judge_claim


@pytest.mark.parametrize(
    ("evidence", "life"),
    [
        (ClaimEvidence(True), Liveness.ALIVE),
        (ClaimEvidence(None, FALLEN_SECONDS), Liveness.UNKNOWN),
        (ClaimEvidence(None, FALLEN_SECONDS, processes=True), Liveness.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS, processes=True), Liveness.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS / 2), Liveness.UNKNOWN),
        (ClaimEvidence(False, FALLEN_SECONDS), Liveness.GONE),
        (ClaimEvidence(False, FALLEN_SECONDS, listed=True), Liveness.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS, listed=None), Liveness.UNKNOWN),
    ],
)
def test_a_claim_is_gone_when_the_api_server_says_so_and_nothing_runs(evidence: ClaimEvidence, life: Liveness) -> None:
    assert judge_claim(evidence) is life
