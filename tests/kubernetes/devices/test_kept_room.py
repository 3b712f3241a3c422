"""Room that is kept for large requests stays free, whatever smaller ones take, and is theirs who name its size."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import gpu_on, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, Grant, NodeView, Phase
from tranche.core.board import board_by_key
from tranche.core.errors import UsageError
from tranche.core.keeper import ClaimKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.core.state import GpuState
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import AttributeName, TaintKey
from tranche.kubernetes.devices.devices import NodeDevice, devices_of
from tranche.kubernetes.devices.taints import KeptRoom, TaintFacts, kept_places, parse_kept, reasons_against, set_apart
from tranche.kubernetes.dra.pool import is_taken

MIXED = TaintFacts(NodeMode.MIXED)
SIZES = (
    "whole",
    "7g.40gb",
    "4g.20gb",
    "3g.20gb",
    "2g.10gb",
    "whole=2",
    "3g.20gb=3",
    "7g.40gb, 3g.20gb=2",
    "whole, 2g.10gb=4",
)


def a100s(count: int = 1) -> list[GpuState]:
    board = board_by_key("A100-40GB")
    assert board is not None
    return [gpu_on(board, index) for index in range(count)]


def held(gpus: Sequence[GpuState], grants: Sequence[Grant]) -> NodeView:
    made = [
        Allocation(
            f"a-{n}", Request(WholeGpus(1)), (each,), Phase.ACTIVE, 0.0, keeper=ClaimKeeper("ns", f"c{n}", f"u{n}")
        )
        for n, each in enumerate(grants)
    ]
    return view_of(*gpus, allocations=made)


class Offered:
    """What a node shows that keeps those sizes; `free` is who can be had without naming one."""

    def __init__(self, view: NodeView, sizes: str, before: Sequence[str] = ()) -> None:
        devices = devices_of(view.node)
        reasons = reasons_against(devices, view, MIXED)
        places = kept_places(devices, view, parse_kept(sizes), reasons, before)
        self.view = view
        self.places = {each.name for each in places}
        self.devices, self.against = set_apart(devices, places, reasons)
        self.kept = {each.name for each in self.devices if AttributeName.KEPT in each.attributes}
        self.tainted = {name for name, why in self.against.items() if TaintKey.RESERVED in why}

    @property
    def free(self) -> list[NodeDevice]:
        return [
            each
            for each in self.devices
            if each.name not in self.kept and not self.against.get(each.name) and not is_taken(each, self.view)
        ]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("", ()),
        ("whole", (KeptRoom(None),)),
        (" 3g.20gb=2 ,whole = 1", (KeptRoom(parse_profile("3g.20gb"), 2), KeptRoom(None))),
        ("1g.10gb=0", (KeptRoom(parse_profile("1g.10gb"), 0),)),
    ],
)
def test_sizes_are_read(text: str, sizes: tuple[KeptRoom, ...]) -> None:
    assert parse_kept(text) == sizes


@pytest.mark.parametrize("text", ["big", "3g.20gb=two", "3g.20gb=-1", "whole=65", "whole, whole=2", "3g.20gb=\u0662"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_kept(text)


@given(st.integers(1, 4), st.sampled_from(SIZES), st.integers(0, 6), st.integers())
def test_whatever_smaller_requests_take_a_place_that_is_kept_stays_free(
    gpus: int, sizes: str, crowd: int, seed: int
) -> None:
    rng, machine, grants = random.Random(seed), a100s(gpus), list[Grant]()

    def take_one(free: Sequence[NodeDevice]) -> bool:
        alone = [each for each in free if each.sharing is None]
        if alone:
            grants.append(rng.choice(alone).offered)
        return bool(alone)

    for _ in range(crowd):
        take_one(Offered(held(machine, grants), "").free)
    shown = Offered(held(machine, grants), sizes)
    empty = {each.name for each in shown.devices if each.name in shown.places and not is_taken(each, shown.view)}
    kept = shown.places
    while take_one(shown.free):
        shown = Offered(held(machine, grants), sizes, sorted(kept))
    by_name = {each.name: each for each in shown.devices}
    assert not any(is_taken(by_name[name], shown.view) for name in empty)
    assert empty <= shown.places
    for name in shown.places:
        assert name in shown.kept, "whoever names the size is given it"
        assert TaintKey.RESERVED not in shown.against.get(name, ())


def test_nothing_is_said_of_what_is_not_kept() -> None:
    shown = Offered(held(a100s(2), ()), "3g.20gb")
    assert len(shown.places) == 1
    (place,) = shown.places
    gpu = place.partition("-3g")[0]
    other = "gpu-1" if gpu == "gpu-0" else "gpu-0"
    assert not any(name.startswith(f"{other}-") or name == other for name in (*shown.kept, *shown.tainted))
    assert {f"{gpu}-7g-40gb-0", gpu, place} <= shown.kept
    start = int(place.rpartition("-")[2])
    assert {f"{gpu}-1g-5gb-{start}", f"{gpu}-2g-10gb-{start}"} <= shown.tainted
    assert f"{gpu}-1g-5gb-{(start + 4) % 7}" not in shown.tainted


def test_where_none_is_free_the_place_on_which_least_is_held_is_drained() -> None:
    machine = a100s(2)
    small = {each.name: each.offered for each in devices_of(view_of(*machine).node) if each.profile is not None}
    busy = [small[f"gpu-0-1g-5gb-{n}"] for n in range(3)] + [small["gpu-1-1g-5gb-6"]]
    shown = Offered(held(machine, busy), "7g.40gb")
    assert shown.places == {"gpu-1-7g-40gb-0"}
    assert {f"gpu-1-1g-5gb-{n}" for n in range(7)} <= shown.tainted
    assert not any(each.name.startswith("gpu-1") for each in shown.free)
    assert Offered(held(machine, busy[:3]), "7g.40gb").places == {"gpu-1-7g-40gb-0"}


def test_a_size_that_somebody_has_already_is_kept_once_more_and_a_place_stays_where_it_is() -> None:
    machine = a100s(2)
    offered = {each.name: each.offered for each in devices_of(view_of(*machine).node)}
    shown = Offered(held(machine, [offered["gpu-0-3g-20gb-0"]]), "3g.20gb")
    assert shown.places <= {"gpu-0-3g-20gb-4", "gpu-1-3g-20gb-0", "gpu-1-3g-20gb-4"}
    for name in ("gpu-0-3g-20gb-0", "gpu-1-3g-20gb-4"):
        assert Offered(held(machine, ()), "3g.20gb", [name]).places == {name}
    assert Offered(held(machine, [offered["gpu-0"], offered["gpu-1"]]), "3g.20gb=2").places == set()


def test_parts_of_a_gpu_that_is_kept_whole_are_not_given() -> None:
    shown = Offered(held([uncuttable_gpu()], ()), "whole")
    assert (shown.places, shown.kept) == ({"gpu-0"}, {"gpu-0"})
    assert not shown.free
