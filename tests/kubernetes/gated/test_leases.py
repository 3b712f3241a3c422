"""What agent and controller tell each other in leases: nothing is lost, nothing moves by itself, and what is odd is unknown."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.gated.reports import gpus_to_lease
from tests.strategies import node_views
from tranche.core.allocation import NodeView, WholeGpu, WithheldDevice
from tranche.core.errors import TrancheError, UsageError
from tranche.core.keeper import PlacedPodKeeper, ProcessKeeper
from tranche.core.request import parse_request
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.core.state import GpuProcess, GpuState
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.gated.leases import (
    ChoiceLease,
    ChosenShare,
    NodeGpus,
    choices_from_lease,
    choices_to_lease,
    gpus_from_lease,
    node_of,
    offered_view,
)
from tranche.kubernetes.telling.told_view import (
    MOST_BYTES,
    ShareOffer,
    ViewReport,
    bare,
    generation_of,
    lease_name,
    told_to_lease,
)
from tranche.planning.decide.allocate import Granted, decide
from tranche.planning.decide.foresee import with_granted

OWNER = ("n1", "uid-n1")


@given(node_views(), st.integers(0, 10**6), st.dictionaries(st.text(min_size=1), st.text(max_size=50), max_size=3))
def test_what_an_agent_says_arrives(view: NodeView, generation: int, refused: dict[str, str]) -> None:
    said = NodeGpus("n1", view, generation, refused)
    lease = gpus_to_lease(said, OWNER)
    assert gpus_from_lease(lease) == replace(
        said, view=replace(offered_view(bare(view), NodeMode.MIXED), withheld=view.withheld)
    )
    assert (node_of(lease), generation_of(lease)) == ("n1", generation)
    assert bare(bare(view)) == bare(view)
    keepers = [each.keeper for each in gpus_from_lease(lease).view.allocations]
    assert not any(each.key_digest for each in keepers if isinstance(each, ProcessKeeper))


def test_56_slices_take_a_few_kilobytes() -> None:
    view, request = a100s(8), parse_request(gpu_memory="4Gi")
    for _ in range(56):
        found = decide(view, request)
        assert isinstance(found, Granted)
        view = with_granted(view, request, found)
    lease = gpus_to_lease(NodeGpus("n1", view), OWNER)
    assert sum(map(len, lease.annotations.values())) < 10_000


def test_sixteen_gpus_in_slices_with_all_there_is_to_say_of_them_fit_into_a_lease() -> None:
    view, request = a100s(16), parse_request(gpu_memory="4Gi")
    for number in range(112):
        found = decide(view, request)
        assert isinstance(found, Granted)
        view = with_granted(view, request, found)
        keeper = PlacedPodKeeper(f"team-{number}", f"train-{number * 7919}", f"{number * 15485863:08x}-0000-4000-8000")
        given = view.allocations[-1]._replace(id=f"pod-{number}", keeper=keeper)
        view = replace(view, allocations=(*view.allocations[:-1], given))
    view = replace(view, node=replace(view.node, gpus=tuple(map(_numbered, view.node))))
    words = (hashlib.sha256(str(number).encode()).hexdigest() * 5 for number in itertools.count())
    refused = {f"{number * 32452843:08x}-0000-4000-8000": next(words) for number in range(250)}
    faulty = tuple(
        WithheldDevice(WholeGpu(gpu.uuid), "it reported an error (XID 79)", faulty=True) for gpu in view.node
    )
    said = ViewReport("n1", view, offer=ShareOffer(NodeMode.DYNAMIC, faulty, refused))
    lease = told_to_lease(said, OWNER)
    assert sum(map(len, lease.annotations.values())) < MOST_BYTES
    read = gpus_from_lease(lease)
    assert (len(read.view.allocations), read.view.withheld, len(read.refused)) == (112, faulty, 250)


def test_free_memory_and_names_of_more_processes_are_no_news() -> None:
    (gpu,) = a100s(1).node
    view = a100s(1)

    def used(free: int, *pids: int) -> NodeView:
        processes = tuple(GpuProcess(pid, f"p{pid}", free) for pid in pids)
        return replace(view, node=replace(view.node, gpus=(replace(gpu, memory_free=free, processes=processes),)))

    assert bare(used(1, 7, 8)) == bare(used(2, 7, 9))
    assert bare(used(1, 7)) != bare(used(1))


@pytest.mark.parametrize(
    "change",
    [
        {"tranche.dev/view": "AAAA"},
        {"tranche.dev/view": "%"},
        {"tranche.dev/offer": "AAAA"},
        {"tranche.dev/node": "n2"},
    ],
)
def test_what_cannot_be_read_is_not_known(change: dict[str, str]) -> None:
    lease = gpus_to_lease(NodeGpus("n1", a100s(1), 3), OWNER)
    with pytest.raises(UsageError):
        gpus_from_lease(replace(lease, annotations={**lease.annotations, **change}))
    with pytest.raises(UsageError):
        gpus_from_lease(replace(lease, annotations={}))


def test_choices_arrive_in_the_place_of_what_was_read() -> None:
    choice = ChosenShare("team", "p", "u1", (WholeGpu("GPU-1"),), 7)
    first = choices_to_lease(ChoiceLease("n1", owner=OWNER).with_choices([choice]))
    assert (first.version, first.owner_node) == ("", OWNER)
    read = choices_from_lease(replace(first, version="5"))
    assert read.choices == {"u1": choice}
    after = choices_to_lease(read.without(["u1"]))
    assert (after.version, choices_from_lease(after).choices) == ("5", {})
    with pytest.raises(TrancheError):
        choices_from_lease(replace(first, annotations={"tranche.dev/choices": "[]"}))


def test_a_long_name_of_a_node_makes_a_lease_of_its_own() -> None:
    names = {lease_name("report", "a" * 250), lease_name("report", "a" * 249 + "b"), lease_name("choices", "a" * 250)}
    assert len(names) == 3
    assert all(len(name) <= 253 for name in names)


@pytest.mark.parametrize(
    ("mode", "use"),
    [
        (NodeMode.DYNAMIC, GpuPolicy.MIG),
        (NodeMode.SHARED, GpuPolicy.SHARED),
        (NodeMode.MIXED, GpuPolicy.AUTO),
        (NodeMode.STATIC, GpuPolicy.OFF),
        (NodeMode.OFF, GpuPolicy.OFF),
    ],
)
def test_only_what_the_mode_offers_can_be_chosen(mode: NodeMode, use: GpuPolicy) -> None:
    view = a100s(1)
    (gpu,) = view.node
    offered = offered_view(view, mode)
    assert offered.use_of(gpu.uuid) is use
    assert Sharing.MEMORY_LIMITS not in offered.node.sharing.offered
    off = offered_view(replace(view, uses={gpu.uuid: GpuPolicy.OFF}), mode)
    assert off.use_of(gpu.uuid) is GpuPolicy.OFF


def _numbered(gpu: GpuState) -> GpuState:
    """With ids as a driver gives them: what is foreseen has none yet."""
    instances = (
        each._replace(
            id=number,
            profile_id=19,
            compute_instances=tuple(piece._replace(id=0, profile_id=0) for piece in each.compute_instances),
        )
        for number, each in enumerate(gpu.instances, 7)
    )
    return replace(gpu, instances=tuple(instances))
