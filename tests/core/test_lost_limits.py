"""Limits hold as long as their daemon lives, and not a moment longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.strategies import uncuttable_gpu
from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase, WholeGpu, with_lost_limits
from tranche.core.request import Isolation, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, MpsDaemon, NodeState

GIB = 2**30
T4 = uncuttable_gpu()
PART = FractionalShare(WholeGpu(T4.uuid), 3 * GIB, Sharing.MPS)


def allocation(grant: Grant, phase: Phase = Phase.ACTIVE) -> Allocation:
    return Allocation("a", Request(WholeGpus(1)), (grant,), phase, 1.0)


def node(state: DaemonState | None) -> NodeState:
    daemons = () if state is None else (MpsDaemon(None, T4.uuid, state, 3 * GIB),)
    return NodeState((replace(T4, daemons=daemons),))


@pytest.mark.parametrize(
    ("state", "isolation"),
    [
        (DaemonState.READY, Isolation.SOFT),
        (DaemonState.FAULT, Isolation.SOFT),
        (DaemonState.STARTING, Isolation.NONE),
        (DaemonState.LOST, Isolation.NONE),
        (None, Isolation.NONE),
    ],
)
def test_a_part_is_limited_for_as_long_as_its_daemon_lives(state: DaemonState | None, isolation: Isolation) -> None:
    (found,) = with_lost_limits((allocation(PART),), node(state))
    assert found.grants[0].walls.isolation is isolation


def test_a_part_is_unlimited_when_its_daemon_was_told_other_limits() -> None:
    daemon = MpsDaemon(None, T4.uuid, DaemonState.FAULT, 3 * GIB, limits_changed=True)
    (found,) = with_lost_limits((allocation(PART),), NodeState((replace(T4, daemons=(daemon,)),)))
    assert found.grants[0].walls.isolation is Isolation.NONE


@pytest.mark.parametrize(
    "kept",
    [
        allocation(WholeGpu(T4.uuid)),
        allocation(PART._replace(sharing=Sharing.TIME_SLICING)),
        allocation(PART, Phase.PREPARING),
        allocation(PART._replace(device=WholeGpu("GPU-that-is-not-shown"))),
    ],
)
def test_nothing_else_is_touched(kept: Allocation) -> None:
    assert with_lost_limits((kept,), node(None)) == (kept,)


def test_limits_do_not_come_back_with_another_daemon() -> None:
    lost = allocation(PART._replace(unlimited=True))
    assert with_lost_limits((lost,), node(DaemonState.READY)) == (lost,)
