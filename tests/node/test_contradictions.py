"""A ledger that lost some of its rows: the next look writes the register anew, and who still runs keeps what it has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.node.machines import Node
from tests.node.test_adoption import a100_in_slices, loiterer, own_id
from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase, Slice
from tranche.core.quantity import GIB
from tranche.core.request import Request, parse_request
from tranche.core.sharing import Sharing
from tranche.core.state import GpuState
from tranche.local.queue import Queue
from tranche.node.health.checkup import Status, check_ledger
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.recovery.adoption import part_word
from tranche.node.state.session import StateFolder
from tranche.node.store import register
from tranche.node.store.register import contradictory_tables

SLICE = parse_request(mig_profile="1g.5gb")
TABLES = ["allocations", "grants", "units", "devices", "parts"]


def edit(node: Node, statement: str) -> None:
    """Edit the ledger as somebody with the sqlite3 program does: nothing that depends on a row goes with it."""
    with closing(sqlite3.connect(StateFolder(node.state_dir).ledger, isolation_level=None)) as db:
        db.execute(statement)


def take(host: Host, request: Request = SLICE) -> HeldAllocation:
    return Queue(host).acquire(request, command="x", pid=1, patience=WaitLimit(False, None))


def share(host: Host, gpu: GpuState) -> tuple[Allocation, Allocation]:
    """One slice for one holder, and half of the other one for another; both have ended."""
    first, second = (Slice(gpu.uuid, each.profile, each.placement) for each in gpu.instances)
    part = FractionalShare(second, GIB, Sharing.MPS, 50)
    grants: tuple[Grant, ...] = first, part
    found = [Allocation(own_id(n), SLICE, (grant,), Phase.ACTIVE, n) for n, grant in enumerate(grants)]
    with host.ledger.write() as db:
        for each in found:
            register.add_allocation(db, each, {second: 4 * GIB})
    return found[0], found[1]


def contradictions(host: Host) -> tuple[str, ...]:
    with host.ledger.read() as db:
        return contradictory_tables(db, host.places)


@pytest.mark.parametrize("table", TABLES)
def test_what_ended_with_half_of_its_rows_is_free_again(tmp_path: Path, table: str) -> None:
    node, gpu = a100_in_slices(tmp_path)
    with node.host() as host:
        share(host, gpu)
        assert contradictions(host) == ()
        edit(node, f"DELETE FROM {table}")
        assert contradictions(host)
        assert check_ledger(host.places).status is Status.WARN
        assert host.view().allocations == ()
        assert contradictions(host) == ()
        assert check_ledger(host.places).status is Status.PASS
        assert {take(host).allocation.grants[0].gpu_uuid for _ in range(2)} == {gpu.uuid}


@pytest.mark.parametrize("table", TABLES)
def test_who_runs_keeps_his_share_when_rows_are_lost(tmp_path: Path, table: str) -> None:
    node, gpu = a100_in_slices(tmp_path)
    one, other = (each.compute_instances[0].uuid for each in gpu.instances)
    with node.host() as host:
        first, second = share(host, gpu)
        (part,) = second.grants
        assert isinstance(part, FractionalShare)
        with (
            loiterer(node, TRANCHE_ALLOCATION=first.id, CUDA_VISIBLE_DEVICES=one),
            loiterer(
                node,
                TRANCHE_ALLOCATION=second.id,
                CUDA_VISIBLE_DEVICES=other,
                TRANCHE_PARTS=part_word(other, part),
            ),
        ):
            edit(node, f"DELETE FROM {table}")
            kept = {each.id: [grant.slot for grant in each.grants] for each in host.view().allocations}
            assert kept == {each.id: [grant.slot for grant in each.grants] for each in (first, second)}
            assert contradictions(host) == ()
            assert take(host).allocation.grants[0].slot not in [each.slot for each in (*first.grants, part)]


def test_who_holds_the_lock_of_a_share_keeps_it_though_nobody_knows_his_processes(tmp_path: Path) -> None:
    node, _ = a100_in_slices(tmp_path)
    with node.host() as host:
        held = take(host)
        edit(node, "DELETE FROM allocations")
        (kept,) = host.view().allocations
        assert (kept.id, kept.grants) == (held.allocation.id, held.allocation.grants)
        held.lock.release()
        assert host.view().allocations == ()


def test_a_share_that_lost_one_of_its_devices_has_all_of_them_again(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    places = [Slice(gpu.uuid, each.profile, each.placement) for each in gpu.instances]
    uuids = ",".join(each.compute_instances[0].uuid for each in gpu.instances)
    with node.host() as host, loiterer(node, TRANCHE_ALLOCATION=own_id(7), CUDA_VISIBLE_DEVICES=uuids):
        with host.ledger.write() as db:
            register.add_allocation(db, Allocation(own_id(7), SLICE, tuple(places), Phase.ACTIVE, 0.0))
        edit(node, "DELETE FROM grants WHERE ordinal = 1")
        (kept,) = host.view().allocations
        assert kept.grants == tuple(places)


def test_a_gpu_whose_change_lost_its_plan_is_given_away_again(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    edit(node, f"INSERT INTO changing_gpus VALUES ('{gpu.uuid}', 'gone')")
    with node.host() as host:
        assert contradictions(host) == ("changing_gpus",)
        assert host.view().changing == frozenset()
        take(host).lock.release()


def test_an_account_that_does_not_balance_is_written_anew(tmp_path: Path) -> None:
    node, gpu = a100_in_slices(tmp_path)
    with node.host() as host:
        _, (part,) = (each.grants for each in share(host, gpu))
        assert isinstance(part, FractionalShare)
        other = gpu.instances[1].compute_instances[0].uuid
        with loiterer(
            node, TRANCHE_ALLOCATION=own_id(1), CUDA_VISIBLE_DEVICES=other, TRANCHE_PARTS=part_word(other, part)
        ):
            edit(node, "UPDATE devices SET memory_taken = memory")
            assert [each.id for each in host.view().allocations] == [own_id(1)]
            with host.ledger.read() as db:
                assert db.execute("SELECT memory_taken, holders FROM devices").fetchall() == [(part.memory, 1)]
