"""A node's reporter for tests: it does not pause, and its events are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tranche.kubernetes.agent.node_reporter import NodeReporter, ReportSource
from tranche.kubernetes.api.leases import LeaseClient
from tranche.kubernetes.api.objects import KubeEventType, KubeNode
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.health import FaultyDevices
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.telling.told_layouts import LayoutReport


def reporter(
    leases: LeaseClient, news: ReportSource, events: list[str], clock: Callable[[], float], **how: Any
) -> NodeReporter:
    """One that tells people, unless `how` says otherwise."""

    async def say(node: KubeNode, reason: str, message: str) -> None:
        events.append(reason)

    how = {"to_people": True, "pause": 0.0, "sleep": lambda _: asyncio.sleep(0.001), **how}
    return NodeReporter(leases, news, clock=clock, say=say, **how)


def gates_reporter(services: NodeContext, clock: Callable[[], float]) -> NodeReporter:
    """That of a node of whose GPUs a controller chooses, and of which people are not told."""

    async def say(node: KubeNode, reason: str, message: str) -> None:
        await services.api.create_node_event(node, KubeEventType.WARNING, reason, message)

    services.backend.publish(AllocationBackend.GATES)
    refused: LatestValue[Mapping[str, str]] = LatestValue()
    layouts: LatestValue[LayoutReport] = LatestValue()
    news = ReportSource(
        services.inventory.latest,
        services.node,
        services.backend,
        lambda: services.inventory.ready().ready,
        services.device_health.faults,
        refused,
        layouts,
    )
    return NodeReporter(
        services.leases,
        news,
        to_people=False,
        clock=clock,
        say=say,
        pause=0.0,
        sleep=lambda _: asyncio.sleep(0.001),
    )


def no_faults() -> LatestValue[FaultyDevices]:
    """Those of GPUs that are well."""
    found: LatestValue[FaultyDevices] = LatestValue()
    found.publish(FaultyDevices())
    return found
