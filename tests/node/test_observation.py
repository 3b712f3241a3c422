"""What is seen of a GPU while another process cuts it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.node.machines import Node, change, create, destroy, enable, node_of
from tests.node.processes import Child, in_child, isolated
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import GpuState
from tranche.hardware.nvml_instances import InstanceReader
from tranche.node.host import Host


def only(host: Host) -> GpuState:
    return host.view().node.gpus[0]


@isolated
@pytest.mark.parametrize("error", [None, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_what_the_driver_keeps_of_the_memory_is_known_where_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    node = node_of(tmp_path, machine_type="g4dn.xlarge")
    if error is not None:
        answer = pynvml.nvmlDeviceGetMemoryInfo

        def old(handle: Any, version: int | None = None) -> Any:
            if version is None:
                return answer(handle)
            raise pynvml.NVMLError(error)

        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", old)
    with node.host() as host:
        gpu = only(host)
        assert gpu.memory == 15360 << 20
        assert gpu.memory_free == 14914 << 20
        assert gpu.memory - gpu.usable_memory == (446 << 20 if error is None else 0)


def prepare(node: Node) -> str:
    """An A100 with an instance that stays at the end of the grid; its device's UUID."""
    with node.host() as host:
        change(host, *enable(only(host)))
        change(host, create(only(host), "1g.5gb", 6))
        return only(host).instances[0].compute_instances[0].uuid


def test_an_instance_is_seen_whole_while_its_neighbours_come_and_go(tmp_path: Path) -> None:
    """MIG devices are listed by index, and the indexes move when one goes."""
    node = node_of(tmp_path, "A100-40GB")
    uuid = in_child(lambda: prepare(node))

    def recut_without_end() -> None:
        with node.host() as host:
            gpu = only(host)
            while True:
                for start in range(4):
                    change(host, create(gpu, "1g.5gb", start))
                for start in range(4):
                    change(host, destroy(gpu, "1g.5gb", start))

    def watch() -> list[list[str]]:
        seen = []
        with node.driver() as driver:
            for _ in range(400):
                (gpu,) = driver.observe().gpus
                last = gpu.instance_at(Placement(6, 1))  # a neighbour that was just made has nothing inside yet
                seen.append([] if last is None else [ci.uuid for ci in last.compute_instances])
        return seen

    cutter = Child(recut_without_end)
    try:
        seen = in_child(watch)
        os.kill(cutter.pid, 0)
    finally:
        cutter.end()
    assert cutter.wait() == -signal.SIGKILL
    assert seen == [[uuid]] * 400


def test_what_was_asked_of_an_instance_that_is_gone_is_not_remembered(tmp_path: Path) -> None:
    """Else every instance of its profile would look empty for as long as the process lives."""
    node = node_of(tmp_path, "A100-40GB")

    def ask() -> tuple[bool, int]:
        with node.host() as host:
            change(host, *enable(only(host)), create(only(host), "1g.5gb", 6))
            gpu, reader = only(host), InstanceReader()
            profile = gpu.profile(parse_profile("1g.5gb"))
            assert profile is not None
            assert profile.id is not None
            device = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            gone = pynvml.nvmlDeviceGetGpuInstanceById(device, gpu.instances[0].id)
            change(host, destroy(gpu, "1g.5gb", 6))
            refused = False
            try:
                reader.compute_profiles(gone, gpu.uuid, profile.id)
            except pynvml.NVMLError:
                refused = True
            change(host, create(gpu, "1g.5gb", 6))
            there = pynvml.nvmlDeviceGetGpuInstanceById(device, only(host).instances[0].id)
            return refused, len(reader.compute_profiles(there, gpu.uuid, profile.id))

    assert in_child(ask) == (True, 1)
