"""Replicas and virtual GPUs by MPS, over the plugin's socket: nobody is let in before the limit is in force, and all holds it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from tests.kubernetes.device_plugin.kubelet import until
from tests.kubernetes.device_plugin.test_plugin import GPU, Rig, run, whole_gpus
from tests.node.test_mps_daemons import short
from tests.simulator.control_groups import group, hierarchy
from tests.simulator.cuda_programs import PREAMBLE, CudaProgram
from tranche.core.allocation import FractionalShare
from tranche.core.events import LimitExceeded
from tranche.core.keeper import ADMISSION_SECONDS
from tranche.core.request import Isolation, parse_request
from tranche.core.sharing import MemoryIsolation, Sharing
from tranche.core.state import ComputeMode, DaemonState, GpuState
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.kubelet.proto import deviceplugin_pb2 as pb
from tranche.local.queue import Queue
from tranche.node.locks.deciding import WaitLimit

__all__ = ["short"]  # a fixture
GIB, MIB = 2**30, 2**20
VGPU = "k8s.amazonaws.com/vgpu"
BY_MPS = "version: v1\nsharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: nvidia.com/gpu, replicas: %d}]}}"
GREEDY = """
context()
taken = 0
while not int(cu.cuMemAlloc(256 << 20)[0]):
    taken += 256
tell(taken)
wait()
"""


def gpu_of(rig: Rig, index: int = 0) -> GpuState:
    return rig.host.view().node.gpus[index]


def daemon(gpu: GpuState) -> tuple[DaemonState, int]:
    (found,) = gpu.daemons
    return found.state, found.limit


def taken_by(rig: Rig, answer: pb.ContainerAllocateResponse) -> int:
    """How many MiB an unmodified CUDA program gets that runs with what the kubelet was answered for its container."""
    with greedy(rig, answer) as program:
        return int(program.told())


@contextmanager
def greedy(rig: Rig, answer: pb.ContainerAllocateResponse, inside: Path | None = None) -> Iterator[CudaProgram]:
    """A program that takes what it gets, `inside` a control group, and is killed at the end of the block."""
    folders = {mount.container_path: mount.host_path for mount in answer.mounts}
    environment = {**os.environ, **rig.node.machine.environment(), **answer.envs}
    environment["CUDA_MPS_PIPE_DIRECTORY"] = folders[answer.envs["CUDA_MPS_PIPE_DIRECTORY"]]
    environment["LD_LIBRARY_PATH"] = rig.node.machine.environment().get("LD_LIBRARY_PATH", "")
    command = [sys.executable, "-c", PREAMBLE + GREEDY]
    if inside is not None:
        command = ["sh", "-c", f'echo 0 > {inside}/cgroup.procs && exec "$@"', "sh", *command]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield CudaProgram(process)
        finally:
            process.kill()


def test_a_pod_is_answered_when_its_limit_is_in_force_and_gets_no_byte_more(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (8, 8)})
        assert not gpu_of(rig).daemons, "nobody shares yet"
        first, second = (gpu.uuid for gpu in rig.host.view().node.gpus)
        one = await rig.kubelet.allocate(GPU, f"{first}::0")
        memory = gpu_of(rig).usable_memory
        assert daemon(gpu_of(rig)) == (DaemonState.READY, memory // 4)
        assert gpu_of(rig).compute_mode is ComputeMode.EXCLUSIVE
        assert one.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
        assert one.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={memory // 4 // MIB}M"
        assert one.envs["TRANCHE_GPU_MEMORY_LIMIT"] == str(memory // 4)
        assert {mount.container_path for mount in one.mounts} >= {"/mps/nvidia.com/gpu/pipe", "/dev/shm"}
        two = await rig.kubelet.allocate(GPU, f"{first}::1", f"{first}::2")
        assert daemon(gpu_of(rig)) == (DaemonState.READY, 2 * (memory // 4))
        quarter = await asyncio.to_thread(taken_by, rig, one)
        half = await asyncio.to_thread(taken_by, rig, two)
        assert 0.8 * memory / 4 < quarter * MIB <= memory / 4
        assert 0.8 * memory / 2 < half * MIB <= memory / 2
        held = rig.host.view().allocations
        assert {(grant.mechanism, str(grant.walls.isolation)) for each in held for grant in each.grants} == {
            ("mps", "soft")
        }
        assert not gpu_of(rig, 1).daemons
        with pytest.raises(grpc.aio.AioRpcError, match="one MPS daemon, but these replicas belong to several devices"):
            await rig.kubelet.allocate(GPU, f"{first}::3", f"{second}::0")

    run(short, scenario, flags=whole_gpus(short), file=BY_MPS % 4)


def test_one_alone_gets_the_gpu_as_it_was_when_nobody_shares_it_any_more(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        await rig.kubelet.allocate(GPU, next(iter(rig.kubelet.devices[GPU])))
        assert daemon(gpu_of(rig))[0] is DaemonState.READY
        await rig.inventory.refresh()
        rig.skip(ADMISSION_SECONDS + 1)
        await rig.inventory.refresh()
        await until(lambda: not rig.host.view().allocations, "the admission failed")
        queue, request = Queue(rig.host), parse_request(gpus="1")
        await asyncio.to_thread(queue.acquire, request, command="train.py", pid=1, patience=WaitLimit(False, None))
        assert (gpu_of(rig).daemons, gpu_of(rig).compute_mode) == ((), ComputeMode.DEFAULT)

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


def test_the_daemon_goes_with_the_last_pod(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        first, second, *_ = rig.kubelet.devices[GPU]
        for replica, name in ((first, "a"), (second, "b")):
            await rig.kubelet.allocate(GPU, replica)
            rig.holdings.holders[replica], rig.holdings.resources[replica] = PodRef("ns", name), GPU
        await rig.inventory.refresh()
        rig.holdings.holders.pop(first)
        await rig.inventory.refresh()
        assert daemon(gpu_of(rig))[0] is DaemonState.READY
        rig.holdings.holders.clear()
        await rig.inventory.refresh()
        assert (gpu_of(rig).daemons, gpu_of(rig).compute_mode) == ((), ComputeMode.DEFAULT)

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


def test_nobody_is_let_in_where_the_daemon_cannot_be_started(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        # Where its folder should be there is a file.
        rig.host.daemons.records.pipes(gpu_of(rig).uuid).parent.mkdir(parents=True)
        rig.host.daemons.records.pipes(gpu_of(rig).uuid).touch()
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.kubelet.allocate(GPU, next(iter(rig.kubelet.devices[GPU])))
        assert not rig.host.view().allocations
        assert gpu_of(rig).compute_mode is ComputeMode.DEFAULT

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


def test_a_daemon_that_dies_marks_its_pods_and_lets_nobody_in(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        first, second, *_ = rig.kubelet.devices[GPU]
        await rig.kubelet.allocate(GPU, first)
        rig.holdings.holders[first], rig.holdings.resources[first] = PodRef("ns", "a"), GPU
        (record,) = rig.host.daemons.records.all()
        os.kill(record.pid, signal.SIGKILL)
        await rig.inventory.refresh()
        await rig.counts({GPU: (4, 0)})
        (allocation,) = rig.inventory.latest.value.view.allocations
        (grant,) = allocation.grants
        assert isinstance(grant, FractionalShare)
        assert grant.unlimited
        with pytest.raises(grpc.aio.AioRpcError, match="a new one starts when all shares of the device have ended"):
            await rig.kubelet.allocate(GPU, second)
        await until(lambda: "GpuUnhealthy" in rig.api.reasons, "said")
        rig.holdings.holders.clear()
        await rig.inventory.refresh()
        await rig.inventory.refresh()
        await rig.counts({GPU: (4, 4)})
        await rig.kubelet.allocate(GPU, second)
        assert daemon(gpu_of(rig))[0] is DaemonState.READY

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


@pytest.mark.parametrize("may_write", [True, False])
def test_a_pod_whose_processes_have_more_together_than_it_was_given_is_marked_and_nobody_more_is_let_in(
    short: Path, tmp_path: Path, *, may_write: bool
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.api.forbidden = not may_write
        await rig.counts({GPU: (8, 8)})
        own = gpu_of(rig).uuid
        first, second = (f"{own}::{number}" for number in (0, 1))
        answer = await rig.kubelet.allocate(GPU, first)
        rig.holdings.holders[first], rig.holdings.resources[first] = PodRef("ns", "a"), GPU

        async def pods() -> Sequence[KubePod]:
            return [KubePod(PodRef("ns", "a"), "u-1", resources=frozenset({GPU}))]

        rig.pods._pods = pods
        await rig.inventory.refresh()
        with hierarchy(tmp_path) as top, group(top) as above, group(above, "podu_1") as inside, ExitStack() as running:
            for _ in range(2):
                program = running.enter_context(greedy(rig, answer, inside))
                assert await asyncio.to_thread(program.told) > 0
            await rig.inventory.refresh()
            await rig.counts({GPU: (8, 4)})
            (allocation,) = rig.inventory.latest.value.view.allocations
            assert allocation.grants[0].walls.isolation is Isolation.NONE
            assert [each for each in rig.host.events() if isinstance(each.data, LimitExceeded)]
            with pytest.raises(grpc.aio.AioRpcError, match="nothing limits the memory"):
                await rig.kubelet.allocate(GPU, second)
            await until(lambda: "ShareUnlimited" in rig.api.reasons, "said")
            assert any("pod ns/a" in message for _, _, message in rig.api.events)
            await until(lambda: "GpuUnhealthy" in rig.api.reasons, "said, too")
            assert rig.api.of_pods == [("ns/a", "ShareUnlimited")] * may_write

    run(short, scenario, "A100-40GB", "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


def test_virtual_gpus_and_whole_ones_are_never_given_of_one_gpu(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2), VGPU: (20, 20)})
        first, second = (gpu.uuid for gpu in rig.host.view().node.gpus)
        available = [f"{second}::0", f"{first}::4", f"{second}::1", f"{first}::3", f"{second}::2"]
        ids = await rig.kubelet.prefer(VGPU, available, 3)
        assert ids == [f"{second}::0", f"{second}::1", f"{second}::2"], "all on one card"
        answer = await rig.kubelet.allocate(VGPU, *ids)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == second
        assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{VGPU}/pipe"
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.kubelet.allocate(GPU, second)
        await rig.counts({GPU: (1, 1), VGPU: (20, 20)})
        await rig.kubelet.allocate(GPU, first)
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.kubelet.allocate(VGPU, f"{first}::0")
        await rig.counts({GPU: (1, 1), VGPU: (10, 10)})
        (part,) = (
            grant for each in rig.host.view().allocations for grant in each.grants if isinstance(grant, FractionalShare)
        )
        assert part.sharing is Sharing.MPS
        taken = await asyncio.to_thread(taken_by, rig, answer)
        assert taken * MIB <= part.memory == 3 * (gpu_of(rig, 1).usable_memory // 10)

    run(short, scenario, flags={**whole_gpus(short), "--vgpu": "10"})


def test_virtual_gpus_without_limits_take_all_and_ceilings_add_up(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (1, 1), VGPU: (10, 10)})
        uuid = gpu_of(rig).uuid
        answer = await rig.kubelet.allocate(VGPU, f"{uuid}::0", f"{uuid}::1")
        assert answer.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
        assert not {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "TRANCHE_GPU_MEMORY_LIMIT"} & set(answer.envs)
        many = await rig.kubelet.allocate(VGPU, *(f"{uuid}::{number}" for number in range(2, 8)))
        assert many.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
        memory = gpu_of(rig).usable_memory
        taken = await asyncio.to_thread(taken_by, rig, answer)
        assert 0.9 * memory < taken * MIB <= memory
        first, _ = rig.host.view().allocations
        (part,) = first.grants
        assert isinstance(part, FractionalShare)
        assert part.walls.memory is MemoryIsolation.NONE
        assert part.memory == 2 * (memory // 10), "what is booked"

    options = {"--vgpu": "10", "--vgpu-thread-percentage": "20", "--vgpu-memory-limit": "false"}
    run(short, scenario, "A100-40GB", flags={**whole_gpus(short), **options})


def test_on_a_driver_without_limits_nothing_is_offered_in_parts_and_an_event_says_why(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (2, 2), VGPU: (0, 0)})
        await until(lambda: rig.api.reasons == ["DevicesNotShared"], "said")
        assert "driver 470.57.02 is older than 495" in rig.api.events[0][2]

    run(short, scenario, flags={**whole_gpus(short), "--vgpu": "10"}, driver="470.57.02")


def test_an_event_says_that_other_users_would_wait(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        await rig.kubelet.allocate(GPU, next(iter(rig.kubelet.devices[GPU])))
        (record,) = rig.host.daemons.records.all()
        assert rig.api.reasons == []
        rig.host.daemons.records.write(record._replace(every_user=False))
        rig.host.daemons.records.touch(record)
        await rig.inventory.refresh()
        await until(lambda: rig.api.reasons == ["MpsServesOneUser"], "said")
        assert "runAsUser" in rig.api.events[0][2]

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


def test_an_event_says_that_daemons_end_with_the_agent(short: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.counts({GPU: (4, 4)})
        assert rig.api.reasons == []
        rig.mps_tied = "the machine's control groups are not mounted here"
        await rig.kubelet.allocate(GPU, next(iter(rig.kubelet.devices[GPU])))
        await until(lambda: rig.api.reasons == ["MpsDaemonsEndWithAgent"], "said")
        assert rig.api.events[0][2].endswith(f"its MPS daemons end with it: {rig.mps_tied}")

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=BY_MPS % 4)


def test_a_slice_is_shared_by_a_daemon_of_its_own(short: Path) -> None:
    file = "version: v1\nflags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: nvidia.com/mig-3g.20gb, replicas: 4}]}}"
    resource = "nvidia.com/mig-3g.20gb"

    async def scenario(rig: Rig) -> None:
        await rig.cut(0, ("3g.20gb", 0), ("3g.20gb", 4))
        await rig.counts({GPU: (0, 0), resource: (8, 8)})
        replica, *_ = rig.kubelet.devices[resource]
        answer = await rig.kubelet.allocate(resource, replica)
        slice_uuid = replica.partition("::")[0]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == slice_uuid
        (found,) = gpu_of(rig).daemons
        assert (found.device_uuid, found.state) == (slice_uuid, DaemonState.READY)
        assert gpu_of(rig).compute_mode is ComputeMode.DEFAULT, "it cannot be set where MIG is on"
        (instance, _) = gpu_of(rig).instances
        assert instance.memory is not None
        taken = await asyncio.to_thread(taken_by, rig, answer)
        assert 0 < taken * MIB <= instance.memory // 4

    run(short, scenario, "A100-40GB", flags=whole_gpus(short), file=file)
