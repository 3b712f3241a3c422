"""The strongest fence that is free, as long as that keeps nobody out: when a machine is careful with its room, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.day_of_requests import WAYS, a100s, day_of, machine, served, t4
from hypothesis import assume, given

from tests.grid_model import carry_out
from tests.planning.test_parts import A100, ALL, MPS
from tests.planning.test_parts import machine as node
from tests.strategies import gpu_on, requests, sharing_views, uncuttable_gpu
from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase, Slice, WholeGpu
from tranche.core.errors import TrancheError
from tranche.core.request import GpuMemory, GpuShare, Isolation, Request, parse_request
from tranche.core.sharing import GpuPolicy, MachineSharing
from tranche.core.state import MigMode
from tranche.planning.decide.allocate import Decision, Granted, decide
from tranche.planning.explain.explanation import explain
from tranche.planning.explain.remedies import RemedyKind
from tranche.planning.occupancy.gpu_occupancy import tenancy


def decided(view: NodeView, request: Request) -> Decision | None:
    """The decision; None where no state of the machine could serve the request."""
    try:
        return decide(view, request)
    except TrancheError:
        return None


def serve(view: NodeView, **options: str) -> tuple[NodeView, Granted]:
    """The view once somebody has what these options get now, and what that is."""
    request = parse_request(**options)
    decision = decide(view, request)
    assert isinstance(decision, Granted), decision
    held = Allocation(f"a-{len(view.allocations)}", request, decision.grants, Phase.ACTIVE, 0.0)
    after = carry_out(view, decision.plan)
    return replace(after, allocations=(*after.allocations, held)), decision


def a100_machine(number: int, mode: MigMode = MigMode.DISABLED, by: MachineSharing = MPS) -> NodeView:
    return node(*(gpu_on(A100, index, mode=mode) for index in range(number)), by=by)


def has_room_to_spare(view: NodeView) -> bool:
    """Whether slices are all that is held, and half of the GPUs stay untouched when one more is taken; counted anew."""
    here = [tenancy(view, gpu) for gpu in view.node]
    usable = [
        each
        for each in here
        if each.untouched and not each.gpu.lost and not each.gpu.mode_pending and each.gpu.uuid not in view.changing
    ]
    return not any(each.whole for each in here) and (len(usable) - 1) * 2 >= len(here)


@given(sharing_views(), requests())
def test_whoever_could_have_something_alone_has_it_or_is_told_why_not(view: NodeView, request: Request) -> None:
    assume(request.compute is None and request.count == 1)
    soft = decided(view, replace(request, isolation=Isolation.SOFT))
    hard = decided(view, replace(request, isolation=Isolation.HARD))
    if not isinstance(hard, Granted):
        return
    assert isinstance(soft, Granted)
    if not isinstance(soft.grants[0], FractionalShare):
        return
    assert not has_room_to_spare(view)
    explanation = explain(view, replace(request, isolation=Isolation.SOFT))
    (stronger,) = explanation.remedies
    assert stronger.kind is RemedyKind.STRONGER_FENCE
    assert stronger.request is not None
    assert stronger.text in explanation.summary
    assert f"{hard.note}, is kept for requests with --isolation hard, because " in stronger.text
    assert decide(view, stronger.request) == hard


@given(sharing_views(), requests())
def test_an_untouched_gpu_is_opened_for_a_part_only_when_no_shared_device_has_room(
    view: NodeView, request: Request
) -> None:
    request = replace(request, isolation=Isolation.SOFT, count=1)
    assume(isinstance(request.demand, GpuMemory | GpuShare))
    decision = decided(view, request)
    if not isinstance(decision, Granted) or not isinstance(decision.grants[0], FractionalShare):
        return
    chosen = view.node.gpu(decision.grants[0].gpu_uuid)
    if not tenancy(view, chosen).untouched:
        return
    for gpu in view.node:
        if tenancy(view, gpu).shared and gpu.uuid not in view.changing:
            here = replace(view, node=replace(view.node, gpus=(gpu,)))
            alone = decided(here, request)
            joined = isinstance(alone, Granted) and isinstance(alone.grants[0], FractionalShare) and alone.plan.empty
            assert not joined


def test_an_idle_machine_gives_slices_until_half_of_its_gpus_are_in_use() -> None:
    view = a100_machine(4)
    given_away: list[Grant] = []
    for _ in range(15):
        view, decision = serve(view, gpu_memory="4Gi")
        given_away += decision.grants
    assert [type(grant) for grant in given_away] == [Slice] * 14 + [FractionalShare]
    assert len({grant.gpu_uuid for grant in given_away[:14]}) == 2
    assert given_away[14].gpu_uuid not in {grant.gpu_uuid for grant in given_away[:14]}


def test_soft_shares_lie_together_and_leave_gpus_whole() -> None:
    view, _ = serve(a100_machine(4), gpus="1")
    for _ in range(8):
        view, _ = serve(view, gpu_memory="4Gi")
    used = {grant.gpu_uuid for each in view.allocations for grant in each.grants}
    assert len(used) == 2
    serve(view, gpus="2")


def test_on_a_cut_gpu_small_tenants_share_one_slice_and_who_fills_a_slice_has_it_alone() -> None:
    view, _ = serve(a100_machine(1, MigMode.ENABLED), mig_profile="2g.10gb")
    small = []
    for _ in range(3):
        view, decision = serve(view, gpu_memory="1Gi")
        small.append(decision.grants[0])
    assert all(isinstance(grant, FractionalShare) for grant in small)
    (slot,) = {grant.slot for grant in small}
    assert slot is not None
    assert str(slot.profile) == "1g.5gb"
    view, decision = serve(view, gpu_memory="4Gi")
    assert isinstance(decision.grants[0], Slice)
    view, decision = serve(view, gpu_memory="1Gi", isolation="hard")
    assert isinstance(decision.grants[0], Slice)


def test_who_finds_no_slice_shares_an_idle_larger_one() -> None:
    view = a100_machine(1, MigMode.ENABLED)
    for profile in ("4g.20gb", "2g.10gb", "1g.5gb"):
        view, _ = serve(view, mig_profile=profile)
    view = replace(view, allocations=view.allocations[1:], owned=frozenset())
    _, decision = serve(view, gpu_memory="1Gi")
    (part,) = decision.grants
    assert isinstance(part, FractionalShare)
    assert part.slot is not None
    assert str(part.slot.profile) == "4g.20gb"


def test_a_lone_gpu_is_shared_as_it_is_and_cut_for_who_accepts_nothing_less() -> None:
    view = a100_machine(1)
    after, decision = serve(view, gpu_memory="4Gi")
    assert isinstance(decision.grants[0], FractionalShare)
    assert isinstance(decision.grants[0].device, WholeGpu)
    assert explain(view, parse_request(gpu_memory="4Gi")).summary.endswith(
        "; 1g.5gb at 6:1 of GPU 0, created after enabling MIG mode, is kept for requests with --isolation hard, "
        "because fewer than half of the GPUs would stay untouched"
    )
    assert explain(after, parse_request(gpu_memory="4Gi")).summary.endswith(
        "; get a slice when a-0 ends, with --isolation hard"
    )
    _, decision = serve(view, gpu_memory="4Gi", isolation="hard")
    assert isinstance(decision.grants[0], Slice)
    _, decision = serve(replace(view, uses={view.node.gpus[0].uuid: GpuPolicy.MIG}), gpu_memory="4Gi")
    assert isinstance(decision.grants[0], Slice)


@pytest.mark.parametrize("by", [MPS, ALL], ids=["mps", "limits"])
def test_more_than_half_of_a_gpu_is_a_whole_one_even_when_room_is_short(by: MachineSharing) -> None:
    for gpu in (uncuttable_gpu(), gpu_on(A100, mode=MigMode.DISABLED)):
        _, decision = serve(node(gpu, by=by), gpu="0.6")
        assert isinstance(decision.grants[0], WholeGpu)


@pytest.mark.long
def test_of_a_days_requests_all_ways_together_serve_about_as_many_as_the_better_one_alone() -> None:
    """Parts alone serve a few more on several GPUs, where the first to come have slices as long as there is room to spare."""
    for gpus in ((t4(),), a100s(1), a100s(4)):
        day = day_of(sum(gpu.memory for gpu in gpus), seed=0)
        slices, parts, both = (served(machine(gpus, use, means), day) for use, means in WAYS.values())
        assert both >= slices
        assert both >= parts - 0.005


def test_it_is_decided_alike_every_time() -> None:
    view = a100_machine(3)
    assert len({str(decide(view, parse_request(gpu_memory="4Gi"))) for _ in range(3)}) == 1
