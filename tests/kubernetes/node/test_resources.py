"""Strategies: which devices a node advertises under which name, and when strategy single has no answer."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.kubernetes.device_plugin.nodes import ALL_1G, BALANCED, cut, lost, node, shared, t4, whole
from tests.strategies import node_views
from tranche.core.allocation import NodeView
from tranche.core.state import GpuState, NodeState
from tranche.kubernetes.node.resources import Advertisement, MigStrategy, advertise, single_problem


def counts(advertised: Advertisement) -> dict[str, int]:
    return {resource.name: len(resource.devices) for resource in advertised.resources}


EIGHT_CUT = node(*(cut(index, *ALL_1G) for index in range(8)))
EIGHT_BALANCED = node(*(cut(index, *BALANCED) for index in range(8)))
EIGHT_WHOLE = node(*(whole(index) for index in range(8)))

TABLE = [
    (EIGHT_WHOLE, MigStrategy.NONE, {"nvidia.com/gpu": 8}),
    (EIGHT_WHOLE, MigStrategy.SINGLE, {"nvidia.com/gpu": 8}),
    (EIGHT_WHOLE, MigStrategy.MIXED, {"nvidia.com/gpu": 8}),
    (EIGHT_CUT, MigStrategy.NONE, {"nvidia.com/gpu": 8}),
    (EIGHT_CUT, MigStrategy.SINGLE, {"nvidia.com/gpu": 56}),
    (EIGHT_CUT, MigStrategy.MIXED, {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 56}),
    (EIGHT_BALANCED, MigStrategy.SINGLE, {"nvidia.com/gpu": 0}),
    (
        EIGHT_BALANCED,
        MigStrategy.MIXED,
        {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 16, "nvidia.com/mig-2g.10gb": 8, "nvidia.com/mig-3g.20gb": 8},
    ),
    (
        node(whole(0), cut(1, "3g.20gb@0"), t4(2), cut(3)),
        MigStrategy.MIXED,
        {"nvidia.com/gpu": 2, "nvidia.com/mig-3g.20gb": 1},
    ),
    (node(t4(0), lost(t4(1))), MigStrategy.SINGLE, {"nvidia.com/gpu": 1}),
    (node(), MigStrategy.MIXED, {}),
    (node(lost(t4(0))), MigStrategy.NONE, {}),
]


@pytest.mark.parametrize(("state", "strategy", "expected"), TABLE)
def test_counts_by_strategy(state: NodeState, strategy: MigStrategy, expected: dict[str, int]) -> None:
    assert counts(advertise(state, strategy)) == expected


def test_attributes_are_part_of_the_name() -> None:
    state = node(cut(0, "1g.5gb+me@0", "1g.5gb@1"), cut(1, "1g.10gb+me@0", key="H100-80GB-SXM"))
    assert counts(advertise(state, MigStrategy.MIXED)) == {
        "nvidia.com/gpu": 0,
        "nvidia.com/mig-1g.5gb": 1,
        "nvidia.com/mig-1g.5gb.me": 1,
        "nvidia.com/mig-1g.10gb.me": 1,
    }
    without = node(cut(0, "1g.24gb-me@0", "1g.24gb+me.all@1", "1g.24gb+gfx@2", key="RTX-PRO-6000-96GB"))
    names = {resource.name for resource in advertise(without, MigStrategy.MIXED).resources}
    assert names == {
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.24gb-me",
        "nvidia.com/mig-1g.24gb.me.all",
        "nvidia.com/mig-1g.24gb.gfx",
    }


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (
            (cut(0, *ALL_1G), whole(1)),
            "all devices on the node must be configured with the same migEnabled value: GPU 1 is",
        ),
        ((cut(0, *ALL_1G), t4(1), whole(2)), "GPU 1, GPU 2 are not in MIG mode"),
        ((cut(0, *ALL_1G), cut(1)), "GPU 1 has none"),
        (
            (cut(0, *ALL_1G), cut(1, "1g.5gb@0", "2g.10gb@2")),
            "more than one MIG device type present on node: 1g.5gb, 2g.10gb",
        ),
        ((shared(0),), "1c.3g.20gb slices share a GPU instance"),
    ],
)
def test_why_single_has_no_answer(gpus: tuple[GpuState, ...], words: str) -> None:
    advertised = advertise(node(*gpus), MigStrategy.SINGLE)
    assert words in advertised.problem
    assert counts(advertised) == {"nvidia.com/gpu": 0}


def test_a_lost_gpu_does_not_spoil_single() -> None:
    advertised = advertise(node(cut(0, *ALL_1G), lost(cut(1, *ALL_1G))), MigStrategy.SINGLE)
    assert not advertised.problem
    assert counts(advertised) == {"nvidia.com/gpu": 7}


def test_slices_that_share_an_instance_are_left_out_and_said() -> None:
    advertised = advertise(node(shared(0), cut(1, "1g.5gb@0")), MigStrategy.MIXED)
    assert counts(advertised) == {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 1}
    assert advertised.warnings == (
        "3 slices 1c.3g.20gb are not advertised: slices that share a GPU instance have no resource name",
    )


@given(node_views())
def test_mixed_advertises_each_whole_gpu_and_each_whole_slice_once(view: NodeView) -> None:
    advertised = advertise(view.node, MigStrategy.MIXED)
    expected = [gpu.uuid for gpu in view.node if not gpu.lost and not gpu.mig_enabled]
    expected += [
        piece.uuid
        for gpu in view.node
        if not gpu.lost and gpu.mig_enabled
        for instance in gpu.instances
        for piece in instance.compute_instances
        if piece.name.spans_gpu_instance
    ]
    assert sorted(device.uuid for device in advertised.devices) == sorted(expected)
    assert len({resource.name for resource in advertised.resources}) == len(advertised.resources)


@given(node_views())
def test_single_offers_alike_slices_or_says_why_not(view: NodeView) -> None:
    advertised = advertise(view.node, MigStrategy.SINGLE)
    assert (advertised.problem != "") == (single_problem(view.node) != "")
    if advertised.problem:
        assert not advertised.devices
    assert len({device.piece.name if device.piece else None for device in advertised.devices}) <= 1
