"""What pods are given by MPS, through a kill between any two writes: who is in the register is within a limit, or nobody is."""

from __future__ import annotations

import pytest

from tests.node.machines import Node, change, destroy
from tests.node.processes import isolated, kill_at_every_boundary
from tests.node.test_mps_daemons import cut, daemon_of, nothing_left, only, short, t4
from tranche.core.allocation import Allocation, FractionalShare, Phase, Slice, WholeGpu
from tranche.core.errors import GpuBusy
from tranche.core.keeper import PodKeeper
from tranche.core.request import GpuMemory, Request
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState
from tranche.node.host import Host

__all__ = ["cut", "short", "t4"]  # fixtures
GIB = 2**30


def of_pod(host: Host, number: int = 0, memory: int = 3 * GIB) -> Allocation:
    uuid = only(host).uuid
    keeper = PodKeeper("nvidia.com/gpu", kubelet="run-1", replicas=(f"{uuid}::{number}",))
    part = FractionalShare(WholeGpu(uuid), memory, Sharing.MPS)
    return Allocation(f"pod{number}", Request(GpuMemory(memory)), (part,), Phase.ACTIVE, 1.0, keeper=keeper)


@isolated
def test_a_hand_over_is_active_when_it_returns_and_its_limit_in_force(t4: Node) -> None:
    with t4.host() as host:
        host.hand_over(of_pod(host))
        host.hand_over(of_pod(host, 1, 5 * GIB))
        first, second = host.view().allocations
        assert (first.phase, second.phase) == (Phase.ACTIVE, Phase.ACTIVE)
        assert (daemon_of(host).state, daemon_of(host).limit) == (DaemonState.READY, 5 * GIB)
        with pytest.raises(GpuBusy, match="another share now holds"):
            host.hand_over(of_pod(host, 1))
        with pytest.raises(GpuBusy):
            host.hand_over(of_pod(host, 2, 8 * GIB))
        host.hand_over(of_pod(host, 1), superseded=[second.id])
        assert len(host.view().allocations) == 2


@isolated
def test_a_gpu_that_came_into_mig_mode_meanwhile_is_not_handed_over(cut: Node) -> None:
    with cut.host() as host:
        with pytest.raises(GpuBusy, match="not shared by MPS: its MIG mode is now enabled"):
            host.hand_over(of_pod(host))
        nothing_left(cut, host)
        assert not host.view().allocations


@isolated
def test_a_slice_that_is_gone_meanwhile_is_not_handed_over(cut: Node) -> None:
    with cut.host() as host:
        (instance,) = only(host).instances
        device = Slice(only(host).uuid, instance.profile, instance.placement)
        gone = of_pod(host)._replace(grants=(FractionalShare(device, 3 * GIB, Sharing.MPS),))
        change(host, destroy(only(host), "3g.20gb", 0))
        with pytest.raises(GpuBusy, match=r"3g\.20gb at 0:4 no longer exists"):
            host.hand_over(gone)
        nothing_left(cut, host)
        assert not host.view().allocations


def test_whoever_is_killed_in_a_hand_over_leaves_a_pod_with_a_limit_or_nothing(t4: Node) -> None:
    def look(host: Host, killed: bool) -> None:
        held = host.view().allocations
        assert held or killed
        if held:
            assert (daemon_of(host).state, daemon_of(host).limit) == (DaemonState.READY, 3 * GIB)
            host.given_back([grant for each in held for grant in each.grants])
            host.settle([each.id for each in held], {}, [])
            host.view()
        nothing_left(t4, host)

    kill_at_every_boundary(t4, lambda host: host.hand_over(of_pod(host)), look, boundaries=4)
