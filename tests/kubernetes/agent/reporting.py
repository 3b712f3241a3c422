"""A node's reporter for tests: it does not pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tranche.kubernetes.agent.node_reporter import NodeReporter
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.telling.told_view import NOT_MANAGED


def gates_reporter(services: NodeContext, clock: Callable[[], float]) -> NodeReporter:
    """That of a node of whose GPUs a controller chooses, and of which people are not told."""
    services.backend.publish(AllocationBackend.GATES)
    return NodeReporter(
        services,
        NOT_MANAGED,
        LatestValue(),
        LatestValue(),
        to_people=False,
        clock=clock,
        pause=0.0,
        sleep=lambda _: asyncio.sleep(0.001),
    )
