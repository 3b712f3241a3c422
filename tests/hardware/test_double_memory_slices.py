"""A 1g with double memory has two compute profiles of one size on Hopper and later: Tranche reads both and makes one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pynvml
import pytest

from tests.simulator.machines import create, enable_mig, gpu, make_machine, talking_to
from tranche.core.profile import parse_profile
from tranche.hardware.nvml import NvmlDriver

BOARDS = pytest.mark.parametrize(("board", "name"), [("H100-80GB-SXM", "1g.20gb"), ("B200", "1g.45gb")])


@BOARDS
@pytest.mark.parametrize("profile", [0, 7])
def test_either_is_read_as_the_slice_that_it_is(tmp_path: Path, board: str, name: str, profile: int) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        enable_mig(machine)
        pynvml.nvmlGpuInstanceCreateComputeInstance(create(gpu(), 15), profile)
        with closing(NvmlDriver()) as driver:
            (piece,) = driver.observe().by_index(0).instances[0].compute_instances
    assert (str(piece.name), piece.profile_id) == (name, profile)


@BOARDS
def test_the_one_that_nvidia_smi_lists_is_made(tmp_path: Path, board: str, name: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        enable_mig(machine)
        instance = pynvml.nvmlGpuInstanceGetInfo(create(gpu(), 15))
        with closing(NvmlDriver()) as driver:
            uuid = driver.observe().by_index(0).uuid
            driver.create_compute_instance(uuid, instance.id, parse_profile(name))
            (piece,) = driver.observe_gpu(uuid).instances[0].compute_instances
    assert piece.profile_id == 7
