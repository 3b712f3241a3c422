"""Whoever looks after MPS daemons judges by what was seen, and of what came later says nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.node.machines import Node, change
from tests.node.processes import isolated
from tests.node.test_mps_daemons import GIB, only, share, short, start, t4
from tranche.core.allocation import NodeView, Part, Phase, WholeGpu
from tranche.core.events import EventKind
from tranche.core.sharing import Sharing
from tranche.node import register
from tranche.node.daemon_care import DaemonCare
from tranche.node.host import Host

__all__ = ["short", "t4"]  # fixtures


def look_after(host: Host, view: NodeView, working: frozenset[str] = frozenset()) -> None:
    """Look after the daemons, by a view that was taken before."""
    executor = cast(Any, None)
    care = DaemonCare(host.daemons, host.memory_groups, host.ledger, executor, clock=lambda: 1.0, new_id=lambda: "p")
    care.look_after(view, working, lambda: "session")


@isolated
@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.ACTIVE])
def test_a_share_that_became_active_since_the_view_keeps_its_limits(t4: Node, phase: Phase) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        now = host.view()
        (held,) = now.allocations
        gpu = replace(now.node.gpus[0], daemons=())
        other = WholeGpu("GPU-other")
        another = host.daemons.records.all()[0]._replace(gpu_uuid=other.gpu_uuid, device_uuid=other.gpu_uuid)
        host.daemons.records.write(another._replace(fault="it hangs", wedged=True))
        with host.ledger.write() as db:
            neighbour = replace(held, id="other", grants=(Part(other, 3 * GIB, Sharing.MPS),))
            register.add_allocation(db, neighbour, {other: 15 * GIB})
        allocations = (replace(held, phase=phase), neighbour)
        before = replace(now, node=replace(now.node, gpus=(gpu,)), allocations=allocations)
        look_after(host, before, frozenset({gpu.uuid}) if phase is Phase.ACTIVE else frozenset())
        with host.ledger.read() as db:
            stored = {each.id: each for each in register.allocations(db)}
        assert stored["held"].grants == held.grants
        assert not [event for event in host.events() if event.kind is EventKind.LIMITS_LOST]
