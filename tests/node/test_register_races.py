"""Many processes take and give back at the same time, alone and together, and are killed: the register never gives too much."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.strategies import FAMILY_BOARDS, placed
from tests.support.length import some_of
from tranche.core.allocation import (
    Allocation,
    ComputeSlice,
    FractionalShare,
    Grant,
    Phase,
    Slice,
    WholeGpu,
    nearest_request,
)
from tranche.core.board import Board
from tranche.core.errors import GpuBusy
from tranche.core.grid import placements
from tranche.core.profile import parse_profile
from tranche.core.sharing import Sharing
from tranche.node.store import register, schema
from tranche.node.store.holders import add_or_refuse
from tranche.node.store.ledger import Ledger

_PROCESSES = 4
_SECONDS = 1.5
_GPUS = ("GPU-0", "GPU-1")
_FULL = 100


def take(ledger: Ledger, name: str, grant: Grant, memory: int) -> bool:
    device = grant.device if isinstance(grant, FractionalShare) else None
    allocation = Allocation(name, nearest_request((grant,)), (grant,), Phase.ACTIVE, 0.0)
    try:
        with ledger.write() as db:
            add_or_refuse(db, allocation, None if device is None else {device: memory})
    except GpuBusy:
        return False
    return True


def any_grant(rng: random.Random, board: Board) -> tuple[Grant, int]:
    """A grant on one of two GPUs, and the bytes of its device."""
    gpu = rng.choice(_GPUS)
    profiles = placed(board)
    device: WholeGpu | Slice = WholeGpu(gpu)
    memory = _FULL
    if profiles and rng.random() < 0.8:
        profile = rng.choice(profiles)
        device = Slice(gpu, profile.name, rng.choice(placements(profile)))
        memory = _FULL * profile.size // 16 + 1
    kind = rng.random()
    if kind < 0.4:
        return device, memory
    if kind < 0.8 or isinstance(device, WholeGpu):
        return FractionalShare(device, rng.randint(1, memory), Sharing.MPS, rng.choice([None, 10, 60])), memory
    return ComputeSlice(device, parse_profile("1c.3g.20gb"), rng.randint(0, 2), 1), memory


def compete(path: Path, board: Board, seed: int) -> None:
    """Take and give back until killed."""
    rng = random.Random(seed)
    ledger = Ledger(path)
    held: list[str] = []
    number = 0
    while True:
        number += 1
        if held and rng.random() < 0.45:
            with ledger.write() as db:
                assert register.remove_allocation(db, held.pop(rng.randrange(len(held))))
            continue
        grant, memory = any_grant(rng, board)
        if take(ledger, f"{seed}-{number}", grant, memory):
            held.append(f"{seed}-{number}")


def faults(db: sqlite3.Connection) -> list[str]:
    """What must not be, asked of the tables themselves and of the grants beside them."""
    found = [f"device {row}" for row in db.execute("SELECT id FROM devices WHERE holders = 0")]
    accounts = (
        "SELECT d.id FROM devices d WHERE d.use = 'shared' AND (d.memory_taken > d.memory OR d.memory_taken <> "
        "(SELECT sum(memory) FROM parts WHERE device_id = d.id) OR d.holders <> "
        "(SELECT count(*) FROM parts WHERE device_id = d.id))"
    )
    found += [f"account {row}" for row in db.execute(accounts)]
    alone: dict[tuple[str, int], str] = {}
    for allocation in register.allocations(db):
        for grant in allocation.grants:
            match grant:
                case WholeGpu() | Slice():
                    owner, device = allocation.id, grant
                case FractionalShare():
                    owner, device = f"parts of {register.device_name(grant.device)}", grant.device
                case ComputeSlice():
                    owner, device = f"pieces of {register.device_name(grant.inside)}", grant.inside
            slot = device.slot
            units = schema.WHOLE_GPU_UNITS
            if slot is not None:
                units = range(slot.placement.start, slot.placement.start + slot.placement.size)
            for unit in units:
                other = alone.setdefault((device.gpu_uuid, unit), owner)
                if other != owner:
                    found.append(f"unit {unit} of {device.gpu_uuid}: {owner} beside {other}")
    if len(alone) != db.execute("SELECT count(*) FROM units").fetchone()[0]:
        found.append("units without a grant, or grants without units")
    return found


@pytest.mark.parametrize("board", some_of(FAMILY_BOARDS, 3), ids=lambda board: board.key)
def test_processes_that_compete_and_are_killed_never_have_too_much(board: Board, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()
    rng = random.Random(board.key)
    living: dict[int, None] = {}
    seed = 0
    ledger = Ledger(path)
    taken = 0
    try:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end or seed < 2 * _PROCESSES:
            while len(living) < _PROCESSES:
                seed += 1
                pid = os.fork()
                if pid == 0:
                    with suppress(BaseException):
                        compete(path, board, seed)
                    os._exit(1)
                living[pid] = None
            time.sleep(rng.uniform(0.02, 0.1))
            victim = rng.choice(list(living))
            os.kill(victim, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL, "it failed by itself"
            del living[victim]
            with ledger.read() as db:
                assert faults(db) == []
                taken = max(taken, *(int(each.id.split("-")[1]) for each in register.allocations(db)), 0)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with ledger.read() as db:
        assert faults(db) == []
    ledger.check()
    ledger.close()
    assert taken > 0, "nobody got anything"
