"""The length of turns, where a process is killed at each boundary of its journal: it is put back with what was promised."""

from __future__ import annotations

import os
from pathlib import Path

from tests.node.machines import node_of, start_share
from tests.node.processes import in_child, kill_at_every_boundary
from tranche.core.allocation import FractionalShare, WholeGpu
from tranche.core.quantity import GIB
from tranche.core.request import GpuMemory, Request
from tranche.core.sharing import Sharing, Timeslice
from tranche.node.host import Host
from tranche.node.policy_change import change_policy
from tranche.planning.decide.allocate import Granted
from tranche.planning.steps.plan import Plan


def test_a_length_of_a_share_that_never_began_is_put_back(tmp_path: Path) -> None:
    node = node_of(tmp_path, "T4")

    def want() -> None:
        with node.host() as host:
            (gpu,) = host.observe()
            change_policy(host, lambda policy: policy.with_timeslice([gpu.uuid], Timeslice.SHORT))
            host.driver.set_timeslice(gpu.uuid, Timeslice.MEDIUM)

    in_child(want)

    def share(host: Host) -> None:
        (gpu,) = host.observe()
        part = FractionalShare(WholeGpu(gpu.uuid), 3 * GIB, Sharing.TIME_SLICING)
        ticket = host.enqueue(Request(GpuMemory(part.memory)), command="train.py", pid=os.getpid())
        start_share(host, ticket, lambda view: Granted((part,), Plan("a part"), part.mechanism, "a part"))
        assert host.driver.timeslice(gpu.uuid) is Timeslice.SHORT

    def look(host: Host, killed: bool) -> None:
        (gpu,) = host.view(thorough=True).node
        # Who was not killed has ended all the same, and with it the share.
        assert host.view().allocations == ()
        assert host.driver.timeslice(gpu.uuid) is Timeslice.MEDIUM
        assert host.observe_gpu(gpu.uuid).timeslice is None
        assert not host.recovery_needed()

    kill_at_every_boundary(node, share, look, boundaries=5)
