"""An agent's metrics on a simulated machine: the parts that it knows by, with the pods that a kubelet lists."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tests.kubernetes.mig_manager.mig_node import ManagedNode
from tests.kubernetes.waiting import PATIENCE_SECONDS, patiently, until
from tranche.core.allocation import devices
from tranche.core.errors import HardwareError
from tranche.kubernetes.agent.metrics_server import MetricsServer, MetricsSettings
from tranche.kubernetes.api.objects import PodRef
from tranche.kubernetes.component import Component, Readiness
from tranche.metrics.samples import MetricNameSet

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")

Labels = Mapping[str, str]
Series = dict[str, list[tuple[Labels, float]]]


@asynccontextmanager
async def measured(
    node: ManagedNode,
    *parts: Component,
    names: MetricNameSet = MetricNameSet.TRANCHE,
    readiness: Mapping[str, Readiness] | None = None,
    clock: Callable[[], float] = time.monotonic,
    patience: float = 1.0,
) -> AsyncIterator[MetricsServer]:
    """Serve the node's metrics for the length of the block; `readiness` is what its other components say."""
    components = {"inventory": Readiness(True)} if readiness is None else readiness
    settings = MetricsSettings("127.0.0.1", 0, names, patience)
    server = MetricsServer(node.services, settings, parts, readiness=lambda: components, clock=clock)
    tasks = [asyncio.create_task(node.services.gpu_events.run()), asyncio.create_task(server.run())]
    try:
        await until(lambda: server.ready().ready and node.services.gpu_events.ready().ready)
        yield server
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, HardwareError):  # of a GPU that a test has lost
                await patiently(task)


async def give_to_pods(node: ManagedNode, *, namespaces: int = 1) -> dict[str, PodRef]:
    """Have the kubelet list a pod for each slice of the machine, in turn in namespaces `team-0` and so on; the pods by slice."""
    uuids = [uuid for uuid, grant in devices(node.host.driver.observe()).items() if grant.slot is not None]
    pods = {uuid: PodRef(f"team-{number % namespaces}", f"job-{number}") for number, uuid in enumerate(uuids)}
    node.kubelet.holders = pods
    await node.inventory.refresh()
    return pods


async def scrape(port: int, *, accept: str = OPENMETRICS, path: str = "/metrics") -> tuple[int, str]:
    """Status and body of one GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: agent\r\nAccept: {accept}\r\n\r\n".encode())
    head, _, body = (await patiently(reader.read())).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def scraped_until(port: int, condition: Callable[[Series], bool]) -> Series:
    """The first scrape for which it holds; TimeoutError after a minute."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition(found := series((await scrape(port))[1])):
            await asyncio.sleep(0.02)
    return found


def series(text: str) -> Series:
    """Every sample of a text by its name, with its labels."""
    found: Series = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, line
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            found.setdefault(match[1], []).append((labels, float(match[3])))
    return found
