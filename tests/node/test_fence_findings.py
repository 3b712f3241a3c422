"""What `doctor` says of a fence whose filters lag behind the ledger."""

from __future__ import annotations

import pytest

from tranche.node.fence import FenceReport, SessionGroup, check_fence
from tranche.node.health.checkup import Status

LAGGING = (SessionGroup("user.slice", "earlier"),)
OPEN = (SessionGroup("user.slice", ""),)


@pytest.mark.parametrize("served", [True, False])
def test_nobody_is_told_to_take_down_a_fence_that_the_service_restores(served: bool) -> None:
    found = list(check_fence(FenceReport(None, "wanted", LAGGING, ()), served=served))
    assert found[0].status is Status.WARN
    assert "service" in found[0].hint
    assert "--off" not in found[0].hint


def test_sessions_with_an_earlier_filter_count_as_closed_and_those_without_one_do_not() -> None:
    (closed,) = check_fence(FenceReport(frozenset({0}), "wanted", LAGGING, ()), served=True)
    assert closed.status is Status.PASS
    assert closed.text.endswith("exemptions take effect within seconds")
    (open_,) = check_fence(FenceReport(frozenset({0}), "wanted", OPEN, ()), served=True)
    assert (open_.status, "user.slice" in open_.text) == (Status.WARN, True)
