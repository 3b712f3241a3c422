"""A view that can be true passes, and one with a value that no machine has does not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, gpu_on, instance_of, node_views, placed, sharing_views, view_of
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu
from tranche.core.credible import credible
from tranche.core.errors import UsageError
from tranche.core.grid import Placement
from tranche.core.keeper import PodKeeper
from tranche.core.request import GpuMemory, GpuShare, Request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuProcess, GpuState, MigMode

BOARD = FAMILY_BOARDS[1]
SIZE = placed(BOARD)[0]
GPU = gpu_on(BOARD, instances=[instance_of(SIZE, Placement(0, SIZE.size))])
HELD = Allocation(
    "a1",
    Request(GpuMemory(2**30)),
    (Slice(GPU.uuid, SIZE.name, Placement(0, SIZE.size)),),
    Phase.ACTIVE,
    1.7e9,
    keeper=PodKeeper("nvidia.com/gpu", "blue", "train"),
)


@given(st.one_of(node_views(), sharing_views()))
def test_what_machines_have_is_credible(view: NodeView) -> None:
    assert credible(view) is view


def with_gpu(**fields: Any) -> NodeView:
    return view_of(replace(GPU, **fields), allocations=[HELD])


def with_allocation(**fields: Any) -> NodeView:
    return view_of(GPU, allocations=[HELD._replace(**fields)])


def part(**fields: Any) -> NodeView:
    given: Any = {"device": WholeGpu(GPU.uuid), "memory": 5, "sharing": Sharing.MPS, **fields}
    return with_allocation(grants=(FractionalShare(**given),))


def placed_at(start: Any, size: Any) -> NodeView:
    return with_allocation(grants=(Slice(GPU.uuid, SIZE.name, Placement(start, size)),))


def test_a_lost_gpu_and_one_that_cannot_be_cut_are_credible() -> None:
    lost: GpuState = replace(
        GPU, uuid="lost-0", name="lost GPU", memory=0, memory_free=0, mode=MigMode.UNSUPPORTED, memory_slices=0,
        profiles=(), instances=(), lost=True, numa_node=-1,
    )  # fmt: skip
    assert credible(view_of(lost))


@pytest.mark.parametrize(
    "view",
    [
        with_gpu(memory=-5),
        with_gpu(memory=2**200),
        with_gpu(memory=10**400),
        with_gpu(memory=True),
        with_gpu(memory=1.5),
        with_gpu(memory=None),
        with_gpu(index=10**30),
        with_gpu(index=-1),
        with_gpu(memory_slices=10**9),
        with_gpu(uuid=7),
        with_gpu(name="x" * 300),
        with_gpu(name={"a": 1}),
        with_gpu(mode="enabled "),
        with_gpu(lost=1),
        with_gpu(processes=(GpuProcess(-1, "x"),)),
        with_gpu(processes=(GpuProcess(1, "x" * 5000),)),
        with_gpu(processes=[GpuProcess(1, "x")]),
        with_gpu(compute_capability=(8,)),
        with_gpu(instances=GPU.instances * 65),
        with_allocation(created=1e300),
        with_allocation(created=-1e300),
        with_allocation(created=-1.0),
        with_allocation(created=float("nan")),
        with_allocation(created=float("inf")),
        with_allocation(created=None),
        with_allocation(created=True),
        with_allocation(id=None),
        with_allocation(phase="<b>"),
        with_allocation(command=5),
        with_allocation(keeper=None),
        with_allocation(keeper=PodKeeper("nvidia.com/gpu", ["blue"], "train")),  # type: ignore[arg-type]
        with_allocation(request=Request(GpuShare(Fraction(3)))),
        with_allocation(request=replace(HELD.request, gpu_model=["x"])),  # type: ignore[arg-type]
        placed_at(0, 10**9),
        placed_at(-1, 1),
        placed_at(30, 30),
        placed_at("0", 1),
        part(memory=-1),
        part(compute=101),
        part(device=GPU.uuid),
        view_of(GPU, GPU),
        view_of(GPU, allocations=[HELD, HELD]),
        view_of(GPU, replace(GPU, uuid="GPU-other")),
        replace(view_of(GPU), changing=frozenset({7})),  # type: ignore[arg-type]
    ],
)
def test_what_no_machine_has_is_not(view: NodeView) -> None:
    with pytest.raises(UsageError):
        credible(view)
