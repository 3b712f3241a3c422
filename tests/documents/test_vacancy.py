"""What nobody has of a GPU: it is shown as free exactly where a request could be given it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from tests.strategies import gpu_on, instance_of, node_views, placed, sharing_views, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu, WithheldDevice
from tranche.core.board import board_by_key
from tranche.core.grid import Placement, placements
from tranche.core.keeper import ProcessKeeper
from tranche.core.quantity import GIB, MIB
from tranche.core.request import GpuMemory, Request
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.core.state import ComputeMode, GpuState, MigMode
from tranche.documents import describe
from tranche.documents.slices import FreePlace, FreePlaceStatus, slices_on, vacancies, whole_holders
from tranche.planning.decide.realise import realise
from tranche.planning.steps.plan import Plan

_A100 = board_by_key("A100-40GB")
assert _A100 is not None
A100 = _A100
PROFILES = {str(profile.name): profile for profile in placed(A100)}
NO_PROFILE = "no profile fits there next to the other slices"


def cut(*slots: tuple[str, int], index: int = 0) -> GpuState:
    made = [instance_of(PROFILES[name], Placement(start, PROFILES[name].size)) for name, start in slots]
    return gpu_on(A100, index, instances=made)


def slot(gpu: GpuState, name: str, start: int) -> Slice:
    return Slice(gpu.uuid, PROFILES[name].name, Placement(start, PROFILES[name].size))


def holding(*grants: Slice | FractionalShare) -> tuple[Allocation, ...]:
    return tuple(
        Allocation(f"{n:08x}", Request(GpuMemory(GIB)), (grant,), Phase.ACTIVE, 1.0, keeper=ProcessKeeper(7, 7))
        for n, grant in enumerate(grants)
    )


def told(view: NodeView) -> list[tuple[str, str, str]]:
    found = vacancies(view, next(iter(view.node)))
    return [(str(each.placement or "whole"), str(each.availability), each.why) for each in found]


def test_the_eighth_memory_slice_beside_seven_slices_is_no_room() -> None:
    gpu = cut(*(("1g.5gb", start) for start in range(7)))
    held = holding(*(slot(gpu, "1g.5gb", start) for start in range(7)))
    view = view_of(gpu, allocations=held, owned=[gpu.key(each) for each in gpu.instances])
    assert told(view) == [("7:1", "unusable", NO_PROFILE)]
    assert describe.gpu_state(view, gpu, slices_on(view, gpu), ()) == "7 slices: 7 held; full"


def test_it_is_room_where_the_neighbour_is_idle_and_may_go() -> None:
    gpu = cut(*(("1g.5gb", start) for start in range(7)))
    held = holding(*(slot(gpu, "1g.5gb", start) for start in range(6)))
    ours = view_of(gpu, allocations=held, owned=[gpu.key(each) for each in gpu.instances])
    assert told(ours) == [("6:1", "free", ""), ("7:1", "free", "")]
    foreign = view_of(gpu, allocations=held)
    assert told(foreign) == [("6:1", "free", ""), ("7:1", "unusable", NO_PROFILE)]


def test_nothing_of_a_cordoned_gpu_is_free() -> None:
    gpu = cut(("3g.20gb", 0))
    why = "cordoned by root: its fan"
    cordoned = replace(view_of(gpu), withheld=(WithheldDevice(WholeGpu(gpu.uuid), why),))
    assert told(cordoned) == [("0:4", "cordoned", why), ("4:4", "cordoned", why)]
    state = describe.gpu_state(cordoned, gpu, slices_on(cordoned, gpu), ())
    assert state == "cordoned by root: its fan; 1 slice: 1 idle"
    whole = uncuttable_gpu(0)
    uncut = replace(view_of(whole), withheld=(WithheldDevice(WholeGpu(whole.uuid), why),))
    assert told(uncut) == [("whole", "cordoned", why)]
    assert describe.gpu_state(uncut, whole, (), ()) == why


def test_the_rest_of_a_shared_gpu_that_is_cordoned_is_not_free() -> None:
    gpu = uncuttable_gpu(0)
    held = holding(FractionalShare(WholeGpu(gpu.uuid), 4 * GIB, Sharing.TIME_SLICING))
    view = view_of(gpu, allocations=held)
    assert told(view) == [("whole", "free", "")]
    why = "cordoned by root"
    assert told(replace(view, withheld=(WithheldDevice(WholeGpu(gpu.uuid), why),))) == [("whole", "cordoned", why)]


def test_what_a_program_takes_for_itself_is_no_room() -> None:
    gpu = uncuttable_gpu(0)
    held = holding(FractionalShare(WholeGpu(gpu.uuid), gpu.usable_memory - 200 * MIB, Sharing.TIME_SLICING))
    ((where, availability, why),) = told(view_of(gpu, allocations=held))
    assert (where, availability) == ("whole", "unusable")
    assert why == "only 200 MiB left, no more than a program's CUDA context needs"
    all_of_it = holding(FractionalShare(WholeGpu(gpu.uuid), gpu.usable_memory, Sharing.TIME_SLICING))
    assert not told(view_of(gpu, allocations=all_of_it))


def test_a_place_that_is_faulty_or_kept_for_larger_requests_withholds_what_needs_it() -> None:
    gpu = cut(("3g.20gb", 0))
    held = holding(slot(gpu, "3g.20gb", 0))
    faulty = WithheldDevice(slot(gpu, "1g.5gb", 4), "1g.5gb at 4:1 has reported an error (XID 94)", faulty=True)
    kept = WithheldDevice(slot(gpu, "2g.10gb", 4), "2g.10gb at 4:2 is kept for larger requests", for_large=True)
    view = view_of(gpu, allocations=held)
    assert told(view) == [("4:4", "free", "")]
    assert told(replace(view, withheld=(faulty,))) == [("4:1", "faulty", faulty.why), ("5:3", "free", "")]
    assert told(replace(view, withheld=(kept,))) == [("4:2", "kept", kept.why), ("6:2", "free", "")]


def test_a_gpu_that_serves_nobody_says_why() -> None:
    prohibited = replace(uncuttable_gpu(0), compute_mode=ComputeMode.PROHIBITED)
    pending = replace(gpu_on(A100), pending_mode=MigMode.DISABLED)
    changing = replace(view_of(uncuttable_gpu(0)), changing=frozenset({uncuttable_gpu(0).uuid}))
    for view in (view_of(prohibited), view_of(pending), changing):
        assert {availability for _, availability, _ in told(view)} == {"unusable"}
        assert all(why for _, _, why in told(view))
    assert not told(view_of(replace(gpu_on(A100), lost=True)))


def test_a_policy_against_slices_leaves_no_room_beside_those_in_use() -> None:
    gpu = cut(("1g.5gb", 0), ("1g.5gb", 1))
    held = holding(slot(gpu, "1g.5gb", 0))
    view = replace(view_of(gpu, allocations=held), uses={gpu.uuid: GpuPolicy.OFF})
    assert {(where, availability) for where, availability, _ in told(view)} == {
        ("1:1", "unusable"),
        ("2:6", "unusable"),
    }
    untouched = replace(view_of(gpu, owned=[gpu.key(each) for each in gpu.instances]), uses={gpu.uuid: GpuPolicy.OFF})
    assert {availability for _, availability, _ in told(untouched)} == {"free"}, "a whole GPU is given in any case"


def by_unit(found: tuple[FreePlace, ...]) -> dict[int, FreePlaceStatus]:
    return {
        unit: each.availability
        for each in found
        if each.placement is not None
        for unit in range(each.placement.start, each.placement.start + each.placement.size)
    }


@given(node_views())
def test_a_memory_slice_is_free_exactly_where_a_slice_or_the_whole_gpu_could_be_made(view: NodeView) -> None:
    """As `realise` has it, which searches another way; it knows no policy, and so there is none."""
    view = replace(view, uses={}, changing=frozenset())
    for gpu in view.node:
        being_cut = not gpu.mig_enabled and view.promised_on(gpu.uuid)
        if not gpu.mig_enabled or gpu.lost or being_cut or whole_holders(view, gpu):
            continue
        wanted: list[Slice | WholeGpu] = [WholeGpu(gpu.uuid)]
        wanted += [Slice(gpu.uuid, profile.name, spot) for profile in gpu.profiles for spot in placements(profile)]
        possible = 0
        for each in wanted:
            if isinstance(realise(view, [each], "see"), Plan):
                mask = (1 << gpu.memory_slices) - 1 if isinstance(each, WholeGpu) else each.placement.mask
                possible |= mask
        taken = [each for each in slices_on(view, gpu) if each.state != "idle"]
        rests = {each.placement for each in taken}
        states = by_unit(tuple(each for each in vacancies(view, gpu) if each.placement not in rests))
        assert set(states) == {
            unit for unit in range(gpu.memory_slices) if not any(each.placement.mask >> unit & 1 for each in taken)
        }
        free = {unit for unit, state in states.items() if state is FreePlaceStatus.FREE}
        idle = [each.placement.mask for each in slices_on(view, gpu) if each.state == "idle"]
        for unit in states:
            # An idle slice is given as one piece.
            mask = next((each for each in idle if each >> unit & 1), 1 << unit)
            assert (unit in free) == bool(possible & mask), (gpu, unit)


@given(sharing_views())
def test_every_piece_is_held_or_vacant_and_none_is_both(view: NodeView) -> None:
    for gpu in view.node:
        found = vacancies(view, gpu)
        assert len({each.placement for each in found}) == len(found)
        assert all(bool(each.why) == (each.availability is not FreePlaceStatus.FREE) for each in found)
        if gpu.lost or whole_holders(view, gpu):
            continue
        if each_slice := slices_on(view, gpu):
            covered = set(by_unit(found)) | {
                unit
                for each in each_slice
                for unit in range(each.placement.start, each.placement.start + each.placement.size)
            }
            assert covered >= set(range(gpu.memory_slices))
