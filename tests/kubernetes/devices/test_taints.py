"""Why devices cannot be had now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.strategies import gpu_on, instance_of, sharing_views, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, FractionalShare, NodeView, Phase, Slice, WholeGpu, WithheldDevice
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import ClaimKeeper, Keeper, PodKeeper, ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import GpuPolicy, MachineSharing, Sharing
from tranche.core.state import GpuProcess, GpuState, InstanceKey, NodeState
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.devices.devices import devices_of
from tranche.kubernetes.devices.taints import TaintFacts, reasons_against
from tranche.planning.decide.obstacle import Obstacle, Reason
from tranche.planning.decide.options import gpu_blocked
from tranche.planning.decide.realise import realise
from tranche.planning.occupancy.gpu_occupancy import tenancy

MEANS = MachineSharing(frozenset({Sharing.MPS, Sharing.TIME_SLICING}), mps_clients=48)
CLAIM = ClaimKeeper("ns", "claim", "uid")
POD = PodKeeper("nvidia.com/gpu", "ns", "pod", "main", "uid", "run")
MIXED = TaintFacts(NodeMode.MIXED)


def a100(**more: object) -> GpuState:
    board = board_by_key("A100-40GB")
    assert board is not None
    return replace(gpu_on(board), **more)  # type: ignore[arg-type]


def seen(gpu: GpuState, *held: tuple[Keeper, Slice | WholeGpu | FractionalShare]) -> NodeView:
    made = [
        Allocation(f"a-{number}", Request(WholeGpus(1)), (grant,), Phase.ACTIVE, 0.0, keeper=keeper)
        for number, (keeper, grant) in enumerate(held)
    ]
    return replace(view_of(gpu, allocations=made), node=NodeState((gpu,), sharing=MEANS))


def tainted(view: NodeView, known: TaintFacts = MIXED) -> dict[str, tuple[TaintKey, ...]]:
    return {name: why for name, why in reasons_against(devices_of(view.node), view, known).items() if why}


def slice_at(profile: str, start: int, size: int, gpu: GpuState) -> Slice:
    return Slice(gpu.uuid, parse_profile(profile), Placement(start, size))


def test_what_claims_have_is_not_tainted() -> None:
    gpu = a100()
    assert tainted(seen(gpu, (CLAIM, slice_at("1g.5gb", 3, 1, gpu)))) == {}
    assert tainted(seen(uncuttable_gpu(), (CLAIM, WholeGpu(uncuttable_gpu().uuid)))) == {}


def test_what_a_claim_has_that_is_over_is_not_offered_to_others() -> None:
    gpu = a100()
    view = seen(
        gpu, (CLAIM, slice_at("1g.5gb", 3, 1, gpu)), (replace(CLAIM, uid="other"), slice_at("1g.5gb", 6, 1, gpu))
    )
    found = tainted(view, replace(MIXED, fallen=frozenset({CLAIM.uid, "unknown"})))
    assert set(found.values()) == {(TaintKey.HELD,)}
    assert {"gpu-0", "gpu-0-1g-5gb-3", "gpu-0-3g-20gb-0"} <= found.keys()
    assert not {"gpu-0-1g-5gb-6", "gpu-0-1g-5gb-2"} & found.keys()


def test_nothing_of_a_cordoned_gpu_is_given_to_claims_more() -> None:
    gpu = a100()
    view = seen(gpu, (CLAIM, slice_at("1g.5gb", 3, 1, gpu)))
    cordoned = replace(view, withheld=(WithheldDevice(WholeGpu(gpu.uuid), "cordoned by ada"),))
    assert set(tainted(cordoned).values()) == {(TaintKey.MODE,)}
    assert tainted(cordoned).keys() == {each.name for each in devices_of(view.node)}
    faulty = replace(MIXED, faulty=frozenset({WholeGpu(gpu.uuid)}))
    assert set(tainted(cordoned, faulty).values()) == {(TaintKey.FAULTY,)}


@pytest.mark.parametrize("keeper", [POD, ProcessKeeper(1, 1)], ids=["pod", "process"])
def test_what_others_have_takes_its_room_from_claims(keeper: Keeper) -> None:
    gpu = a100()
    found = tainted(seen(gpu, (keeper, slice_at("1g.5gb", 3, 1, gpu))))
    assert set(found.values()) == {(TaintKey.HELD,)}
    assert {"gpu-0", "gpu-0-shared", "gpu-0-1g-5gb-3", "gpu-0-1g-5gb-3-shared", "gpu-0-3g-20gb-0"} <= found.keys()
    assert not {"gpu-0-1g-5gb-2", "gpu-0-1g-5gb-me-4", "gpu-0-3g-20gb-4"} & found.keys()


def test_media_extensions_that_others_have_are_heeded() -> None:
    gpu = a100()
    found = tainted(seen(gpu, (POD, slice_at("1g.5gb+me", 3, 1, gpu))))
    assert "gpu-0-1g-5gb-me-6" in found
    assert "gpu-0-1g-5gb-6" not in found


def test_a_part_that_others_have_keeps_claims_off_the_device() -> None:
    """How much is left of it is not what the scheduler counts."""
    gpu = uncuttable_gpu()
    found = tainted(seen(gpu, (POD, FractionalShare(WholeGpu(gpu.uuid), 1 << 30, Sharing.MPS))))
    assert found == {"gpu-0-shared": (TaintKey.HELD,), "gpu-0": (TaintKey.HELD,)}


def test_a_process_that_nobody_accounts_for_keeps_claims_off() -> None:
    gpu = replace(uncuttable_gpu(), processes=(GpuProcess(1, "python"),))
    assert set(tainted(seen(gpu)).values()) == {(TaintKey.HELD,)}
    assert tainted(seen(gpu, (CLAIM, WholeGpu(gpu.uuid)))) == {}


def with_2g(*, filled: bool = True, inside: bool = False) -> GpuState:
    gpu = a100()
    profile = gpu.profile(parse_profile("2g.10gb"))
    assert profile is not None
    made = instance_of(profile, Placement(0, 2), filled=filled)
    if inside:
        made = made._replace(compute_instances=(made.compute_instances[0]._replace(name=parse_profile("1c.2g.10gb")),))
    return replace(gpu, instances=(made,))


@pytest.mark.parametrize("filled", [True, False])
def test_an_idle_instance_that_tranche_did_not_make_is_given_as_it_is_and_takes_its_room(filled: bool) -> None:
    gpu = with_2g(filled=filled)
    found = tainted(seen(gpu))
    assert found["gpu-0-1g-5gb-0"] == found["gpu-0"] == found["gpu-0-3g-20gb-0"] == (TaintKey.FOREIGN,)
    assert not {"gpu-0-2g-10gb-0", "gpu-0-2g-10gb-0-shared", "gpu-0-1g-5gb-2"} & found.keys()
    ours = replace(seen(gpu), owned=frozenset({InstanceKey(gpu.uuid, parse_profile("2g.10gb"), Placement(0, 2))}))
    assert tainted(ours) == {}


def test_an_instance_that_somebody_cut_inside_is_not_given() -> None:
    assert tainted(seen(with_2g(inside=True)))["gpu-0-2g-10gb-0"] == (TaintKey.FOREIGN,)


def test_room_that_nobody_gets_later_is_not_offered_while_a_claim_has_it() -> None:
    gpu = with_2g()
    held = seen(gpu, (CLAIM, slice_at("2g.10gb", 0, 2, gpu)))
    assert tainted(held) == tainted(seen(gpu))


def without_processes(gpu: GpuState) -> GpuState:
    instances = [
        each._replace(
            stray_processes=(),
            compute_instances=tuple(inner._replace(processes=()) for inner in each.compute_instances),
        )
        for each in gpu.instances
    ]
    return replace(gpu, processes=(), instances=tuple(instances))


@given(sharing_views())
@settings(max_examples=100)
def test_what_is_said_of_instances_that_tranche_did_not_make_is_what_is_decided_once_all_holders_end(
    view: NodeView,
) -> None:
    ended = replace(view, node=replace(view.node, gpus=tuple(map(without_processes, view.node))), allocations=())
    devices = devices_of(view.node)
    found = reasons_against(devices, view, MIXED)
    for each in devices:
        gpu = ended.node.gpu(each.gpu_uuid)
        if gpu.uuid in view.changing or gpu_blocked(tenancy(ended, gpu)) is not None:
            continue
        decided = realise(ended, [each.grant({})], "test")
        refused = isinstance(decided, Obstacle) and decided.reason is Reason.FOREIGN_INSTANCES
        assert (TaintKey.FOREIGN in found[each.name]) == refused, each.name


@pytest.mark.parametrize(
    ("mode", "free"),
    [
        (NodeMode.STATIC, set()),
        (NodeMode.OFF, set()),
        (NodeMode.DYNAMIC, {"gpu-0", "gpu-0-1g-5gb-0"}),
        (NodeMode.SHARED, {"gpu-0", "gpu-0-shared", "gpu-0-1g-5gb-0-shared"}),
        (NodeMode.MIXED, {"gpu-0", "gpu-0-shared", "gpu-0-1g-5gb-0-shared", "gpu-0-1g-5gb-0"}),
    ],
)
def test_the_nodes_mode_says_which_kinds_are_offered(mode: NodeMode, free: set[str]) -> None:
    found = tainted(seen(a100()), TaintFacts(mode))
    some = {"gpu-0", "gpu-0-shared", "gpu-0-1g-5gb-0-shared", "gpu-0-1g-5gb-0"}
    assert some - found.keys() == free
    assert set(found.values()) <= {(TaintKey.MODE,)}


@pytest.mark.parametrize(
    ("use", "free"),
    [
        (GpuPolicy.OFF, {"gpu-0"}),
        (GpuPolicy.MIG, {"gpu-0", "gpu-0-1g-5gb-0"}),
        (GpuPolicy.SHARED, {"gpu-0", "gpu-0-shared"}),
    ],
)
def test_the_administrators_word_on_the_gpu_says_so_as_well(use: GpuPolicy, free: set[str]) -> None:
    view = seen(a100())
    found = tainted(replace(view, uses={view.node.gpus[0].uuid: use}))
    some = {"gpu-0", "gpu-0-shared", "gpu-0-1g-5gb-0-shared", "gpu-0-1g-5gb-0"}
    assert some - found.keys() == free


def test_a_faulty_gpu_is_not_offered() -> None:
    gpu = uncuttable_gpu()
    known = TaintFacts(NodeMode.MIXED, faulty={WholeGpu(gpu.uuid)})
    assert set(tainted(seen(gpu), known).values()) == {(TaintKey.FAULTY,)}
    assert tainted(seen(gpu), TaintFacts(NodeMode.MIXED, faulty={WholeGpu("GPU-other")})) == {}


def test_a_faulty_instance_takes_what_overlaps_it() -> None:
    gpu = a100()
    known = TaintFacts(NodeMode.MIXED, faulty={slice_at("2g.10gb", 0, 2, gpu)})
    found = tainted(seen(gpu), known)
    assert {"gpu-0", "gpu-0-shared", "gpu-0-1g-5gb-1", "gpu-0-3g-20gb-0"} <= found.keys()
    assert "gpu-0-1g-5gb-2" not in found
