"""Only what is known to be over frees what a claim has."""

from __future__ import annotations

import pytest

from tranche.core.evidence import FALLEN_SECONDS, ClaimEvidence, Life, judge_claim


@pytest.mark.parametrize(
    ("evidence", "life"),
    [
        (ClaimEvidence(True), Life.ALIVE),
        (ClaimEvidence(None, FALLEN_SECONDS), Life.UNKNOWN),
        (ClaimEvidence(None, FALLEN_SECONDS, processes=True), Life.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS, processes=True), Life.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS / 2), Life.UNKNOWN),
        (ClaimEvidence(False, FALLEN_SECONDS), Life.GONE),
        (ClaimEvidence(False, FALLEN_SECONDS, listed=True), Life.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS, listed=None), Life.UNKNOWN),
    ],
)
def test_a_claim_is_gone_when_the_api_server_says_so_and_nothing_runs(evidence: ClaimEvidence, life: Life) -> None:
    assert judge_claim(evidence) is life
