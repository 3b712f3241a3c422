"""What `tranche top` shows first on a terminal of a given size, of a machine that is full and in trouble."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from tests.conftest import Golden
from tests.strategies import gpu_on, instance_of, placed, view_of
from tranche.cli.top import MachinePicture, TopView, overview
from tranche.core.allocation import Allocation, Phase, Slice, WholeGpu, WithheldDevice
from tranche.core.board import board_by_key
from tranche.core.grid import Placement
from tranche.core.keeper import OwnerKind, ProcessKeeper, ShareOwner
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuProcess
from tranche.documents.overview import why_they_wait
from tranche.node.store.records import Waiter

NOW = 100_000.0
A100 = board_by_key("A100-40GB")
assert A100 is not None
PROFILES = {str(profile.name): profile for profile in placed(A100)}
SMALL, HALF = PROFILES["1g.5gb"], PROFILES["3g.20gb"]


def full_and_in_trouble() -> MachinePicture:
    """Eight GPUs with 56 slices, one of them lost and one cordoned; a queue of ten."""
    assert A100 is not None
    gpus, shares = [], []
    for index in range(8):
        made = [
            instance_of(SMALL, Placement(start, 1), processes=[GpuProcess(4000 + 7 * index + start, "python")])
            for start in range(7)
        ]
        gpu = gpu_on(A100, index, instances=made)
        for start in range(0 if index != 6 else 3, 7):
            number = 7 * index + start
            user_command = "python train.py" if number % 3 else "jupyter lab"
            grant = Slice(gpu.uuid, SMALL.name, Placement(start, 1))
            keeper = ProcessKeeper(4000 + number, 7)
            request = Request(MigSlice(SMALL.name))
            shares.append(
                Allocation(f"{number:08x}", request, (grant,), Phase.ACTIVE, NOW - 60 * number, user_command, keeper)
            )
        if index == 3:
            gpu = replace(gpu, lost=True, instances=(), memory_free=0)
        if index == 6:
            gpu = replace(gpu, instances=tuple(made[3:]))
        gpus.append(gpu)
    view = view_of(*gpus, allocations=shares, owned=[gpu.key(each) for gpu in gpus for each in gpu.instances])
    view = replace(
        view, withheld=(WithheldDevice(WholeGpu(gpus[6].uuid), "cordoned by root: its fan is replaced tonight"),)
    )
    queue = [
        Waiter(
            n, f"aaaaaa{n:02}", Request(MigSlice(HALF.name)), NOW - 400 + 10 * n, f"python eval{n}.py", 9000 + n, 1000
        )
        for n in range(10)
    ]
    names = {each.id: "ada" if number % 3 else "bob" for number, each in enumerate(shares)}
    names |= {each.id: "bob" for each in queue}
    owners = {id: ShareOwner(OwnerKind.USER, name) for id, name in names.items()}
    reasons = [why for why, _ in why_they_wait(view, queue, frozenset(), owners)]
    return MachinePicture(view, queue, reasons, (), owners, NOW)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (60, 24), (200, 60)])
def test_what_matters_is_seen_first(columns: int, lines: int, golden: Golden) -> None:
    shown = [click.unstyle(each) for each in TopView().shown(overview(full_and_in_trouble(), columns), lines)]
    cut = [each if len(each) <= columns else f"{each[: columns - 1]}…" for each in shown]
    golden(f"top-{columns}x{lines}.txt", "".join(f"{each}\n" for each in cut))
    assert len(shown) == lines
    screen = "\n".join(cut)
    for wanted in (
        "1 lost",
        "1 cordoned",
        "10 waiting",
        "GPU 3 lost: ",
        "GPU 6 cordoned by root",
        "longest wait: 6m40s",
        "1. ",
    ):
        assert wanted in screen, wanted
    assert all(f"\nGPU {index} " in screen for index in range(8)), "every GPU is there"
