"""A program of a share's command that has lost the share's variables and uses another device: `tranche run` says so."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machines import TRANCHE, TestMachine, machine_in
from tests.strategies import uncuttable_gpu
from tranche.core.allocation import Allocation, Phase, WholeGpu
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import Request, WholeGpus
from tranche.core.state import GpuProcess, NodeState
from tranche.local.watches import stray_use
from tranche.node.state.session import sees_every_process

pytestmark = pytest.mark.skipif(not sees_every_process(), reason="in a PID namespace nothing is looked for")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A100-40GB", "A100-40GB") as machine:
        yield machine


def device_of(machine: TestMachine, gpu: int) -> str:
    return str(machine.json("gpus")["gpus"][gpu]["uuid"])


def test_a_program_without_the_variables_on_another_gpu_is_named(machine: TestMachine) -> None:
    using = [*TRANCHE, "sim", "attach", device_of(machine, 1)]
    runs = machine.start("run", "-q", "--gpus", "1", "--", "env", "-u", "CUDA_VISIBLE_DEVICES", *using)
    assert runs.stderr is not None
    while "warning" not in (line := runs.stderr.readline()):
        assert line, "tranche run ended"
    share = machine.one_running()
    assert f"(pid {share['pid']})" in line or f"pid {share['pid']} " in line
    assert f"uses a device of GPU 1 ({device_of(machine, 1)})" in line
    runs.send_signal(signal.SIGTERM)
    assert runs.wait(60) == 0


def test_what_another_process_uses_and_the_share_s_own_device_are_no_matter() -> None:
    whole = WholeGpus(1)
    share = Allocation("a", Request(whole), (WholeGpu("GPU-0"),), Phase.ACTIVE, 0.0, "", ProcessKeeper())
    here, there = (
        replace(uncuttable_gpu(index), uuid=f"GPU-{index}", processes=(GpuProcess(7, "train"),)) for index in (0, 1)
    )
    assert stray_use(share, {7}, NodeState((here,))) is None
    assert stray_use(share, {8}, NodeState((here, there))) is None
    assert stray_use(share, {7}, NodeState((here, there))) == (GpuProcess(7, "train"), there)
