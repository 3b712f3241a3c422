"""What is said of the fence around a grant: each wall, and the one word for all of them."""

from __future__ import annotations

from itertools import product

import pytest

from tranche.core.allocation import ComputeSlice, FractionalShare, Grant, Slice, WholeGpu
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.quantity import GIB
from tranche.core.request import Isolation
from tranche.core.sharing import (
    NO_SHARING,
    BandwidthIsolation,
    ComputeIsolation,
    FaultIsolation,
    GrantIsolation,
    MachineSharing,
    MemoryIsolation,
    Sharing,
)

GPU = WholeGpu("GPU-1")
SLICE = Slice("GPU-1", parse_profile("3g.20gb"), Placement(0, 4))
ALL_WALLS = [
    GrantIsolation(*each) for each in product(MemoryIsolation, ComputeIsolation, FaultIsolation, BandwidthIsolation)
]


@pytest.mark.parametrize(
    ("grant", "sentence"),
    [
        (GPU, "hard isolation"),
        (SLICE, "hard isolation"),
        (
            ComputeSlice(SLICE, parse_profile("1c.3g.20gb"), 0, 1),
            "none isolation: memory not limited, own compute, faults shared, bandwidth shared",
        ),
        (
            FractionalShare(GPU, GIB, Sharing.MEMORY_LIMITS),
            "soft isolation: memory limited by the driver, even turns, own faults, bandwidth shared",
        ),
        (
            FractionalShare(SLICE, GIB, Sharing.MPS),
            "soft isolation: memory of each process limited by the driver, even turns, faults shared, bandwidth shared",
        ),
        (
            FractionalShare(GPU, GIB, Sharing.MPS, compute=30),
            "soft isolation: memory of each process limited by the driver, compute ceiling, faults shared, bandwidth shared",
        ),
        (
            FractionalShare(GPU, GIB, Sharing.TIME_SLICING),
            "none isolation: memory not limited, even turns, own faults, bandwidth shared",
        ),
        (
            FractionalShare(GPU, GIB, Sharing.MPS, compute=30, unlimited=True),
            "none isolation: memory not limited, even turns, faults shared, bandwidth shared",
        ),
    ],
    ids=str,
)
def test_each_grant_says_what_is_true_of_it(grant: Grant, sentence: str) -> None:
    assert grant.walls.sentence == sentence


def test_the_word_for_all_walls_is_hard_only_where_each_is_its_own() -> None:
    hard = [walls for walls in ALL_WALLS if walls.isolation is Isolation.HARD]
    assert hard == [
        GrantIsolation(MemoryIsolation.OWN, ComputeIsolation.OWN, FaultIsolation.OWN, BandwidthIsolation.OWN)
    ]


@pytest.mark.parametrize("walls", ALL_WALLS, ids=str)
def test_the_word_is_none_exactly_where_nobody_enforces_a_limit_of_memory(walls: GrantIsolation) -> None:
    enforced = walls.memory in (MemoryIsolation.OWN, MemoryIsolation.DRIVER, MemoryIsolation.PROCESS)
    assert (walls.isolation is Isolation.NONE) is not enforced


def test_a_mechanism_that_was_not_looked_for_is_not_offered() -> None:
    means = MachineSharing(frozenset({Sharing.MPS}), {Sharing.MEMORY_LIMITS: "driver 580.65 is older than 615"}, 48)
    assert means.why_not(Sharing.MPS) == ""
    assert means.why_not(Sharing.MEMORY_LIMITS) == "driver 580.65 is older than 615"
    assert means.why_not(Sharing.TIME_SLICING) == "not offered here"
    assert all(NO_SHARING.why_not(each) for each in Sharing)
