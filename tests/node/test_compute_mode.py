"""The compute mode of a GPU that is shared by MPS, when somebody else sets it."""

from __future__ import annotations

import time

import pytest

from tests.node.machines import Node, change
from tests.node.processes import isolated
from tests.node.test_mps_daemons import GIB, nothing_left, only, share, short, start, t4
from tranche.core.allocation import Allocation, FractionalShare, Phase, WholeGpu
from tranche.core.errors import GpuBusy
from tranche.core.keeper import PodKeeper
from tranche.core.request import Isolation, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeMode
from tranche.documents.describe import gpu_state
from tranche.node.health.checkup import check_daemons
from tranche.node.mps.mps_records import IDLE_SECONDS
from tranche.planning.steps import StopMps

__all__ = ["short", "t4"]  # fixtures


@isolated
@pytest.mark.parametrize("memory", [None, 5 * GIB])
def test_a_shared_gpu_is_closed_again_to_those_who_leave_the_daemon_and_an_event_says_so(
    t4: Node, memory: int | None
) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        gpu = only(host)
        host.driver.set_compute_mode(gpu.uuid, ComputeMode.DEFAULT)
        seen = host.view()
        assert seen.node.gpus[0].mps_passable
        assert "programs outside MPS have no limit" in gpu_state(seen, seen.node.gpus[0], (), seen.allocations)
        (said,) = check_daemons(seen.node, seen.allocations, host.daemons.records)
        assert "compute mode is DEFAULT" in said.text
        assert said.hint.endswith("nvidia-smi -i 0 -c EXCLUSIVE_PROCESS")
        (before,) = host.daemons.records.all()
        view = host.view(thorough=True)
        assert view.node.gpus[0].compute_mode is ComputeMode.EXCLUSIVE
        assert [each.grants[0].walls.isolation for each in view.allocations] == [Isolation.SOFT]
        assert host.daemons.records.all() == (before,), "the daemon goes on, with its limits"
        begun, done = host.events()[-2:]
        assert "the compute mode of GPU 0 was set to DEFAULT" in begun.message
        assert done.cause == begun.position
        if memory:
            change(host, start(only(host), memory))
            assert only(host).compute_mode is ComputeMode.EXCLUSIVE


@isolated
def test_a_compute_mode_of_a_gpu_that_nobody_shares_any_more_is_left_alone(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        host.driver.set_compute_mode(only(host).uuid, ComputeMode.DEFAULT)
        assert host.view(thorough=True).node.gpus[0].compute_mode is ComputeMode.DEFAULT


@isolated
def test_a_shared_gpu_that_somebody_prohibits_stays_so_and_nobody_more_is_let_in(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        host.driver.set_compute_mode(only(host).uuid, ComputeMode.PROHIBITED)
        view = host.view(thorough=True)
        (gpu,) = view.node.gpus
        assert gpu.compute_mode is ComputeMode.PROHIBITED
        assert "PROHIBITED" in gpu_state(view, gpu, (), view.allocations)
        (said,) = check_daemons(view.node, view.allocations, host.daemons.records)
        assert said.hint.endswith("nvidia-smi -i 0 -c EXCLUSIVE_PROCESS"), (
            "DEFAULT would let programs pass the daemon by"
        )
        with pytest.raises(GpuBusy, match="PROHIBITED"):
            change(host, start(gpu, 5 * GIB))
        pod = Allocation(
            "pod", Request(WholeGpus(1)), (FractionalShare(WholeGpu(gpu.uuid), GIB, Sharing.MPS),), Phase.ACTIVE, 1.0
        )
        with pytest.raises(GpuBusy, match="PROHIBITED"):
            host.hand_over(pod._replace(keeper=PodKeeper("nvidia.com/gpu.shared", kubelet="1", replicas=("r1",))))
        assert only(host).compute_mode is ComputeMode.PROHIBITED
        assert [each.id for each in host.view().allocations] == ["held"]


@isolated
def test_the_way_back_of_a_prohibited_gpu_that_is_not_shared_is_default(t4: Node) -> None:
    with t4.host() as host:
        host.driver.set_compute_mode(only(host).uuid, ComputeMode.PROHIBITED)
        (said,) = check_daemons(host.observe(), (), host.daemons.records)
        assert said.hint.endswith("nvidia-smi -i 0 -c DEFAULT")


@isolated
def test_a_gpu_that_was_lost_while_its_daemon_ended_gets_its_compute_mode_back(t4: Node) -> None:
    now = time.time()
    with t4.host(clock=lambda: now) as host:
        change(host, start(only(host)))
        t4.machine.inject_lost(0)
        for _ in range(2):
            now += 10 * IDLE_SECONDS
            host.view()
        t4.machine.inject_lost(0, lost=False)
        now += 10 * IDLE_SECONDS
        host.view()
        nothing_left(t4, host)


@isolated
def test_a_compute_mode_from_before_the_driver_was_reloaded_is_not_put_back(t4: Node) -> None:
    with t4.host() as host:
        host.driver.set_compute_mode(only(host).uuid, ComputeMode.EXCLUSIVE)
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        t4.machine.reboot()
        assert host.driver.observe().gpus[0].compute_mode is ComputeMode.DEFAULT
        assert host.view(thorough=True).node.gpus[0].compute_mode is ComputeMode.EXCLUSIVE
        host.release("held", why="ended")
        change(host, StopMps(only(host).uuid, None))
        nothing_left(t4, host)
