"""What decisions give in parts, the ledger's tables accept; and what would be too much, they refuse."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.grid_model import carry_out
from tests.strategies import FAMILY_BOARDS, gpu_on, means, requests, uncuttable_gpu, view_of
from tranche.core.allocation import Allocation, FractionalShare, Phase, Slice, WholeGpu, memory_of
from tranche.core.board import Board
from tranche.core.errors import TrancheError
from tranche.core.sharing import MachineSharing
from tranche.core.state import MigMode
from tranche.node.store import register, schema
from tranche.planning.decide.allocate import Granted, decide


@given(st.data(), means(), st.sampled_from(FAMILY_BOARDS))
def test_the_ledger_accepts_every_part_that_is_decided(
    data: st.DataObject, offered: MachineSharing, board: Board
) -> None:
    mode = data.draw(st.sampled_from([MigMode.ENABLED, MigMode.DISABLED]))
    view = view_of(gpu_on(board, 0, mode=mode), uncuttable_gpu(1), uncuttable_gpu(2))
    view = replace(view, node=replace(view.node, sharing=offered))
    db = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(db)
    db.execute("PRAGMA foreign_keys = ON")
    for number in range(data.draw(st.integers(1, 20))):
        if view.allocations and data.draw(st.integers(0, 3)) == 0:
            gone = data.draw(st.sampled_from(view.allocations))
            view = replace(view, allocations=tuple(each for each in view.allocations if each is not gone))
            assert register.remove_allocation(db, gone.id)
        request = data.draw(requests())
        try:
            decision = decide(view, request)
        except TrancheError:
            continue
        if not isinstance(decision, Granted):
            continue
        allocation = Allocation(f"a-{number}", request, decision.grants, Phase.ACTIVE, float(number))
        view = carry_out(view, decision.plan)
        memory: dict[WholeGpu | Slice, int] = {
            grant.device: memory_of(grant.device, view.node.gpu(grant.gpu_uuid))
            for grant in decision.grants
            if isinstance(grant, FractionalShare)
        }
        register.add_allocation(db, allocation, memory)
        view = replace(view, allocations=(*view.allocations, allocation))
    assert register.allocations(db) == view.allocations
    db.close()
