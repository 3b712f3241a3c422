"""What the ledger's tables refuse by themselves, and what they give back."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranche.core.allocation import Allocation, ComputeSlice, Cordon, FractionalShare, Grant, Phase, Slice, WholeGpu
from tranche.core.grid import Placement
from tranche.core.keeper import NOT_KNOWN_YET, ClaimKeeper, Keeper, PodKeeper, ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import GpuPolicy, Sharing
from tranche.core.sharing_policy import SharingPolicy
from tranche.core.state import InstanceKey
from tranche.core.wire import keeper_to_dict
from tranche.node.store import records, register, schema

GPU = WholeGpu("GPU-0")
LEFT = Slice("GPU-0", parse_profile("3g.20gb"), Placement(0, 4))
RIGHT = Slice("GPU-0", parse_profile("3g.20gb"), Placement(4, 4))
CORDON = Cordon("GPU-0", "ada", "its fan", 10.0)
ACROSS = Slice("GPU-0", parse_profile("2g.10gb"), Placement(2, 2))
MEMORY: dict[WholeGpu | Slice, int] = {GPU: 40, LEFT: 20, RIGHT: 20}


def allocation(name: str, *grants: Grant, keeper: Keeper = NOT_KNOWN_YET) -> Allocation:
    return Allocation(name, Request(WholeGpus(1)), grants, Phase.ACTIVE, 1.0, "run", keeper)


def compute(start: int, size: int = 1, inside: Slice = LEFT) -> ComputeSlice:
    return ComputeSlice(inside, parse_profile(f"{size}c.3g.20gb"), start, size)


def part(device: WholeGpu | Slice, memory: int, compute: int | None = None) -> FractionalShare:
    return FractionalShare(device, memory, Sharing.MPS, compute)


def database() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(db)
    db.execute("PRAGMA foreign_keys = ON")
    return db


def take(db: sqlite3.Connection, name: str, *grants: Grant) -> bool:
    """Whether the tables let an allocation have that."""
    db.execute("BEGIN")
    try:
        register.add_allocation(db, allocation(name, *grants), MEMORY)
    except sqlite3.IntegrityError:
        db.execute("ROLLBACK")
        return False
    db.execute("COMMIT")
    return True


@pytest.mark.parametrize(
    ("first", "second", "beside"),
    [
        (LEFT, LEFT, False),
        (LEFT, ACROSS, False),
        (LEFT, RIGHT, True),
        (GPU, LEFT, False),
        (LEFT, GPU, False),
        (GPU, GPU, False),
        (part(GPU, 10), GPU, False),
        (GPU, part(GPU, 10), False),
        (part(GPU, 10), LEFT, False),
        (LEFT, part(GPU, 10), False),
        (part(GPU, 10), part(LEFT, 10), False),
        (part(GPU, 20), part(GPU, 20), True),
        (part(GPU, 20), part(GPU, 21), False),
        (part(GPU, 1, 60), part(GPU, 1, 40), True),
        (part(GPU, 1, 60), part(GPU, 1, 41), False),
        (part(LEFT, 20), part(RIGHT, 20), True),
        (part(LEFT, 20), LEFT, False),
        (LEFT, part(LEFT, 20), False),
        (compute(0), compute(1), True),
        (compute(0, 2), compute(1), False),
        (compute(0), LEFT, False),
        (LEFT, compute(0), False),
        (compute(0), part(LEFT, 1), False),
        (part(LEFT, 1), compute(0), False),
        (compute(0), compute(0, inside=RIGHT), True),
    ],
    ids=str,
)
def test_one_alone_and_several_together_exclude_each_other(first: Grant, second: Grant, beside: bool) -> None:
    db = database()
    assert take(db, "a", first)
    assert take(db, "b", second) is beside
    assert [each.id for each in register.allocations(db)] == (["a", "b"] if beside else ["a"])
    for each in register.allocations(db):
        assert register.remove_allocation(db, each.id)
    for table in ("units", "devices", "parts", "compute_units", "grants"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), f"{table} has leftovers"


grants = st.one_of(
    st.sampled_from([GPU, LEFT, RIGHT, ACROSS]),
    st.builds(part, st.sampled_from([GPU, LEFT, RIGHT]), st.integers(1, 20), st.none() | st.integers(1, 60)),
    st.builds(compute, st.integers(0, 2), inside=st.sampled_from([LEFT, RIGHT])),
)


@given(st.lists(st.tuples(st.booleans(), grants), max_size=40))
def test_no_account_is_overdrawn_and_no_unit_has_two_owners(moves: list[tuple[bool, Grant]]) -> None:
    db = database()
    held: dict[str, Grant] = {}
    for number, (gives_back, grant) in enumerate(moves):
        if gives_back and held:
            name = next(iter(held))
            assert register.remove_allocation(db, name)
            del held[name]
        elif take(db, str(number), grant):
            held[str(number)] = grant
        alone: set[int] = set()
        shared: dict[str, list[FractionalShare]] = {}
        divided: dict[str, list[ComputeSlice]] = {}
        for each in held.values():
            match each:
                case WholeGpu() | Slice():
                    units = set(schema.WHOLE_GPU_UNITS) if each.slot is None else set(_units(each.slot))
                    assert not alone & units
                    alone |= units
                case FractionalShare():
                    shared.setdefault(register.device_name(each.device), []).append(each)
                case ComputeSlice():
                    divided.setdefault(register.device_name(each.inside), []).append(each)
        for parts in shared.values():
            assert sum(each.memory for each in parts) <= MEMORY[parts[0].device]
            assert sum(each.compute or 0 for each in parts) <= 100
        for slices in divided.values():
            assert len({each.start for each in slices}) == len(slices)
        for device in [*(parts[0].device for parts in shared.values()), *(each[0].inside for each in divided.values())]:
            units = set(schema.WHOLE_GPU_UNITS) if device.slot is None else set(_units(device.slot))
            assert not alone & units, "one alone and several together"
            alone |= units
        assert {row[0] for row in db.execute("SELECT unit FROM units")} == alone


def _units(slot: InstanceKey) -> range:
    return range(slot.placement.start, slot.placement.start + slot.placement.size)


@pytest.mark.parametrize(
    "grant",
    [
        GPU,
        LEFT,
        compute(1, 2),
        part(GPU, 10, 30),
        part(LEFT, 5),
        FractionalShare(GPU, 10, Sharing.MEMORY_LIMITS, limit=20),
        FractionalShare(LEFT, 10, Sharing.TIME_SLICING),
        FractionalShare(GPU, 10, Sharing.MPS, unlimited=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "keeper",
    [
        ProcessKeeper(1, 2),
        PodKeeper("nvidia.com/gpu", "ns", "pod", "main", "uid", "run", True),
        PodKeeper("nvidia.com/gpu.shared", "ns", "pod", "main", "uid", "run", replicas=("GPU-1::0", "GPU-1::3")),
        ClaimKeeper("ns", "c", "u", ("p-1", "p-2")),
        ClaimKeeper("ns", "c", "u", ("p-1",), others=True, boot="b-1"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_register_gives_back_what_was_written(grant: Grant, keeper: Keeper) -> None:
    db = database()
    written = allocation("a", grant, keeper=keeper)
    register.add_allocation(db, written, MEMORY)
    (read,) = register.allocations(db)
    assert read == written
    assert keeper_to_dict(read.keeper) == keeper_to_dict(keeper)


def test_who_holds_room_is_known_for_every_kind_of_grant() -> None:
    for grant in (GPU, LEFT, compute(0), part(LEFT, 1), part(GPU, 1)):
        db = database()
        register.add_allocation(db, allocation("a", grant), MEMORY)
        assert register.holder_of_room(db, ACROSS.slot, but="") == "a"
        assert register.holder_of_room(db, ACROSS.slot, but="a") == ""
        assert register.holder_on_gpu(db, "GPU-0", but="") == "a"
        assert register.holder_on_gpu(db, "GPU-1", but="") == ""


def test_one_of_several_holders_is_not_hidden_by_the_one_that_asks() -> None:
    db = database()
    register.add_allocation(db, allocation("a", part(LEFT, 1)), MEMORY)
    register.add_allocation(db, allocation("b", part(LEFT, 1)), MEMORY)
    assert register.holder_of_room(db, LEFT.slot, but="a") == "b"
    assert register.holder_of_room(db, LEFT.slot, but="b") == "a"


def test_a_device_has_one_mechanism() -> None:
    db = database()
    assert take(db, "a", part(GPU, 10))
    assert not take(db, "b", FractionalShare(GPU, 10, Sharing.TIME_SLICING))
    assert register.remove_allocation(db, "a")
    assert take(db, "b", FractionalShare(GPU, 10, Sharing.TIME_SLICING))
    assert not take(db, "a", part(GPU, 10))


def test_the_administrators_words_are_kept() -> None:
    db = database()
    assert records.sharing_policy(db) == SharingPolicy()
    for policy in (
        SharingPolicy(GpuPolicy.MIG, {"GPU-0": GpuPolicy.OFF, "GPU-1": GpuPolicy.AUTO}),
        SharingPolicy(None, {"GPU-1": GpuPolicy.SHARED}),
        SharingPolicy(),
    ):
        records.set_sharing_policy(db, policy)
        assert records.sharing_policy(db) == policy


def test_a_cordon_stands_until_it_is_removed() -> None:
    db = database()
    assert records.cordons(db) == ()
    records.set_cordon(db, CORDON)
    records.set_cordon(db, CORDON._replace(reason="its fan, tonight"))
    assert records.cordons(db) == (CORDON._replace(reason="its fan, tonight"),)
    assert records.remove_cordon(db, "GPU-0")
    assert not records.remove_cordon(db, "GPU-0")


def test_an_instance_made_for_a_request_is_a_layouts_once_that_wants_it() -> None:
    db = database()
    made, wanted = (InstanceKey("GPU-0", parse_profile("1g.5gb"), Placement(start, 1)) for start in (5, 6))
    records.own_instance(db, made, requested=True)
    records.own_instance(db, wanted, requested=False)
    assert records.requested_instances(db) == {made}
    records.want_instances(db, ["GPU-0"])
    assert not records.requested_instances(db)
    assert records.owned_instances(db) == {made, wanted}
