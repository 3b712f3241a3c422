"""Devices that several share, in the listings."""

from __future__ import annotations

import click

from tests.strategies import FAMILY_BOARDS, gpu_on, instance_of, placed, uncuttable_gpu, view_of
from tranche.cli.top import MachinePicture, overview
from tranche.core.allocation import Allocation, FractionalShare, Grant, NodeView, Phase, Slice, WholeGpu
from tranche.core.grid import Placement
from tranche.core.quantity import GIB, MIB
from tranche.core.request import parse_request
from tranche.core.sharing import Sharing
from tranche.core.state import MigMode
from tranche.documents import describe
from tranche.documents.machine import gpu_document
from tranche.documents.slices import slices_on, whole_holders

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")
PROFILE = next(each for each in placed(A100) if str(each.name) == "3g.20gb")
T4 = uncuttable_gpu()
CUT = gpu_on(A100, instances=[instance_of(PROFILE, Placement(0, 4))])
INSIDE = Slice(CUT.uuid, PROFILE.name, Placement(0, 4))


def allocations(*grants: Grant) -> list[Allocation]:
    request = parse_request(gpu="0.2")
    return [Allocation(f"a-{n}", request, (grant,), Phase.ACTIVE, 0.0) for n, grant in enumerate(grants)]


def state_of_t4(view: NodeView) -> str:
    return describe.gpu_state(view, T4, slices_on(view, T4), whole_holders(view, T4))


def test_a_shared_gpu_says_by_what_and_how_much_is_left() -> None:
    part = FractionalShare(WholeGpu(T4.uuid), 5 * GIB, Sharing.MPS)
    view = view_of(T4, allocations=allocations(part, part._replace(compute=30)))
    assert state_of_t4(view) == "shared by MPS: a-0, a-1; 4.49 GiB left"
    document = gpu_document(view, T4)
    assert document["sharing"] == {
        "mechanism": "mps",
        "walls": {"memory": "process", "compute": "turns", "faults": "shared", "bandwidth": "shared"},
        "memoryGivenBytes": 10 * GIB,
        "memoryLeftBytes": 5 * GIB - 446 * MIB - 80 * MIB,
        "unavailable": None,
    }


def test_nothing_is_left_of_a_gpu_whose_limits_are_lost() -> None:
    part = FractionalShare(WholeGpu(T4.uuid), 5 * GIB, Sharing.MPS, unlimited=True)
    view = view_of(T4, allocations=allocations(part))
    assert state_of_t4(view) == "shared by MPS: a-0; 0 MiB left"
    assert gpu_document(view, T4)["sharing"]["walls"]["memory"] == "none"


def test_a_shared_slice_says_so_in_its_row() -> None:
    view = view_of(CUT, allocations=allocations(FractionalShare(INSIDE, 4 * GIB, Sharing.TIME_SLICING)))
    (row,) = slices_on(view, CUT)
    assert describe.slice_state(row) == "shared by time-slicing: a-0; 15.62 GiB left"
    (document,) = gpu_document(view, CUT)["slices"]
    assert document["sharing"]["mechanism"] == "time-slicing"


def test_a_slice_of_a_gpu_whose_mode_still_changes_is_being_prepared_and_is_tranche_s() -> None:
    uncut = gpu_on(A100, mode=MigMode.DISABLED)
    (promised,) = allocations(INSIDE._replace(gpu_uuid=uncut.uuid))
    view = view_of(uncut, allocations=[promised._replace(phase=Phase.PREPARING)])
    rows = slices_on(view, uncut)
    assert [(row.state, row.owned) for row in rows] == [("preparing", True)]
    assert describe.slice_state(rows[0]) == "preparing for a-0"
    assert describe.gpu_state(view, uncut, rows, ()) == "1 slice: 1 preparing; room for 1x3g.20gb"
    (line,) = [each for each in overview(MachinePicture(view, (), (), (), {}, 0.0)) if each.startswith("GPU 0")]
    assert click.unstyle(line).split()[2] == "│▒▒▒▒▒▒▒│·······│"


def test_what_one_alone_has_is_not_shared() -> None:
    view = view_of(T4, allocations=allocations(WholeGpu(T4.uuid)))
    assert state_of_t4(view) == "held whole by a-0"
    assert gpu_document(view, T4)["sharing"] is None
    (row,) = slices_on(view_of(CUT, allocations=allocations(INSIDE)), CUT)
    assert describe.slice_state(row) == "held by a-0"
    assert row.shared is None


def test_a_ceiling_of_compute_is_of_the_device_that_the_share_is_of() -> None:
    inside, uncut = allocations(
        FractionalShare(INSIDE, 4 * GIB, Sharing.MPS, compute=20),
        FractionalShare(WholeGpu(T4.uuid), GIB, Sharing.MPS, compute=30),
    )
    node = view_of(CUT).node
    assert describe.grants(inside, node).endswith("4 GiB of 3g.20gb at 0:4, at most 20% of its compute")
    assert describe.grants(uncut, view_of(T4).node) == "GPU 0: 1 GiB, at most 30% of its compute"
