"""Only what is known to be over frees what a claim has."""

from __future__ import annotations

import pytest

from tranche.core.keeper import FALLEN_SECONDS, ClaimEvidence, KeeperStatus, judge_claim


@pytest.mark.parametrize(
    ("evidence", "life"),
    [
        (ClaimEvidence(True), KeeperStatus.ALIVE),
        (ClaimEvidence(None, FALLEN_SECONDS), KeeperStatus.UNKNOWN),
        (ClaimEvidence(None, FALLEN_SECONDS, processes=True), KeeperStatus.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS, processes=True), KeeperStatus.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS / 2), KeeperStatus.UNKNOWN),
        (ClaimEvidence(False, FALLEN_SECONDS), KeeperStatus.GONE),
        (ClaimEvidence(False, FALLEN_SECONDS, listed=True), KeeperStatus.ALIVE),
        (ClaimEvidence(False, FALLEN_SECONDS, listed=None), KeeperStatus.UNKNOWN),
    ],
)
def test_a_claim_is_gone_when_the_api_server_says_so_and_nothing_runs(
    evidence: ClaimEvidence, life: KeeperStatus
) -> None:
    assert judge_claim(evidence) is life
