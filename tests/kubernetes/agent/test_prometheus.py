"""A real Prometheus scrapes a node with 56 pods: joins, sums, every expression of the dashboards, every alert for its cause."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from release.dashboards import DASHBOARDS
from release.grafana import dashboard_json
from release.monitoring import MONITORING, dashboard_expressions, recorded

from tests.kubernetes.agent.measured_node import give_to_pods, measured
from tests.kubernetes.agent.prometheus import Prometheus, prometheus
from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tests.machines import machine_in
from tranche.core.allocation import Allocation, Phase, Slice
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuInstance
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.mig_manager.manager import MigSettings
from tranche.kubernetes.serving.http_server import HttpResponse, HttpServer
from tranche.node.locks.locks import FileLock
from tranche.node.state.session import pid_namespace, process_start_time
from tranche.node.store import records, register

pytestmark = pytest.mark.prometheus

MIB = 1 << 20
NOBODY = 9  # the port of `discard`, on which nothing listens


@pytest.fixture
def p5_textfile(tmp_path: Path) -> Path:
    """What `tranche metrics --textfile` writes on two H100 of which one is cut and both are used."""
    (tmp_path / "p5").mkdir()
    path = tmp_path / "p5.prom"
    with machine_in(tmp_path / "p5", "H100-80GB-SXM", "H100-80GB-SXM") as machine:
        machine.cut_by_hand(0, "9", "9")
        busy = machine.json("gpus")["gpus"][0]["slices"][0]["devices"][0]["uuid"]
        with machine.machine.attached(busy, memory=MIB, utilization=80):
            machine.tranche("metrics", "--textfile", str(path))
    return path


@pytest.fixture
def pending_pod(tmp_path: Path) -> Path:
    """What kube-state-metrics says of a pod that no node takes, in its own words."""
    path = tmp_path / "kube-state-metrics.prom"
    path.write_text(
        'kube_pod_status_unschedulable{namespace="team-0",pod="large",uid="1"} 1\n'
        'kube_pod_container_resource_requests{namespace="team-0",pod="large",uid="1",container="main",node="",'
        'resource="nvidia_com_mig_3g_20gb",unit="integer"} 1\n'
    )
    return path


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[int]:
    """The textfile under /metrics, as node exporter would; the port."""

    async def answer(_: str, __: object) -> HttpResponse:
        return HttpResponse(HTTPStatus.OK, path.read_bytes(), "text/plain; version=0.0.4")

    server = HttpServer(answer)
    await server.start("127.0.0.1", 0, option="")
    try:
        yield server.port
    finally:
        server.stop()


def test_a_node_with_56_pods_by_its_sums_its_joins_its_dashboards_and_its_alerts(
    tmp_path: Path, p5_textfile: Path, pending_pod: Path
) -> None:
    async def check(node: ManagedNode) -> None:
        readiness = {"inventory": Readiness(True)}
        clock = Clock()
        node.label(mig_config="all-1g.5gb")
        managing = AsyncExitStack()
        manager = await managing.enter_async_context(node.managed(MigSettings()))
        await node.shows("success")
        pods = await give_to_pods(node, namespaces=4)
        async with (
            managing,
            measured(node, manager, readiness=readiness, clock=clock, patience=0.1) as server,
            served(p5_textfile) as p5,
            served(pending_pod) as pods_state,
            prometheus(
                tmp_path / "prometheus", {"p4d": server.port, "p5": p5, "ksm": pods_state, "gone": NOBODY}
            ) as scraper,
        ):
            await each_slice_joins_its_pod(scraper, {uuid: str(pod) for uuid, pod in pods.items()})
            await sums_are_the_nodes(scraper, node)
            await layouts_that_wait_and_fail(scraper, node)
            await managing.aclose()  # who runs would mend what is broken from here on
            with waiting_since(node, time.time() - 5 * 3600):
                await the_rest_fires(scraper, node, readiness, clock)
                await every_expression_returns_data(scraper)

    on_node(tmp_path, check, machine_type="p4d.24xlarge")


class Clock:
    """The machine's monotonic clock, with `ahead` seconds that a test adds."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


async def each_slice_joins_its_pod(scraper: Prometheus, pods: dict[str, str]) -> None:
    held = await scraper.until('tranche_slice_state{instance="p4d", state="held"}', lambda found: len(found) == 56)
    assert {each["mig_uuid"]: f"{each['namespace']}/{each['pod']}" for each, _ in held} == pods
    await scraper.until(
        'tranche_slice_state{instance="p5", state="idle", namespace="", pod=""}', lambda found: len(found) == 1
    )
    # A join by pod, as with the metrics of kube-state-metrics.
    pods_of_slices = 'tranche_slice_state{instance="p4d", state="held"}'
    joined = f"tranche_slice_memory_used_bytes * on (namespace, pod) group_left (state) {pods_of_slices}"
    assert len(await scraper.until(joined, lambda found: len(found) == 56)) == 56


async def sums_are_the_nodes(scraper: Prometheus, node: ManagedNode) -> None:
    async def total(name: str) -> float:
        ((_, value),) = await scraper.until(f'sum({name}{{instance="p4d"}})')
        return value

    assert await total("tranche_gpu_power_watts") == 8 * 50.0, "an eighth of 400 W each, idle"
    assert await total("tranche_gpu_memory_total_bytes") == 8 * 40960 * MIB
    assert await total("tranche_slice_memory_total_bytes") == 56 * 4864 * MIB
    assert await total("tranche_slice_compute_ratio") == pytest.approx(8.0)
    busy = node.slice_uuid(0, 0)
    with node.machine.machine.attached(busy, memory=1000 * MIB):
        used = 'tranche_slice_memory_used_bytes{instance="p4d"} > 0'
        ((labels, value),) = await scraper.until(used)
        assert (labels["mig_uuid"], value) == (busy, 1000 * MIB)
    assert await scraper.query('tranche_slice_sm_active_ratio{instance="p4d"}') == []
    activity = await scraper.until('tranche_slice_sm_active_ratio{instance="p5"}', lambda found: len(found) == 2)
    assert sorted(value for _, value in activity) == [0.0, 0.8]


async def layouts_that_wait_and_fail(scraper: Prometheus, node: ManagedNode) -> None:
    node.label(mig_config="all-7g.40gb")
    await scraper.fires("TrancheLayoutPending", instance="p4d", reason="GpuBusy")
    node.label(mig_config="no-such-layout")
    await scraper.fires("TrancheLayoutFailed", instance="p4d", reason="LayoutUnknown")
    node.label(mig_config="all-1g.5gb")
    await node.shows("success")


async def the_rest_fires(scraper: Prometheus, node: ManagedNode, readiness: dict[str, Readiness], clock: Clock) -> None:
    await scraper.fires("TrancheAgentDown", instance="gone")
    await scraper.fires("TranchePodWaiting", namespace="team-0", pod="large")
    await scraper.fires("TrancheSliceUnused", instance="p4d", namespace="team-0")
    await scraper.fires("TrancheSlicesIdle", instance="p5", profile="3g.40gb")
    readiness["mig-manager"] = Readiness(False, "spoilt")
    await scraper.fires("TrancheAgentNotReady", component="mig-manager")
    machine = node.machine.machine
    await until(lambda: node.services.gpu_events.ready().ready)
    machine.inject_xid(1, 31)  # of an application
    machine.inject_xid(1, 79)
    await scraper.fires("TrancheXid", instance="p4d", xid="79")
    assert await scraper.query('ALERTS{alertname="TrancheXid", xid="31"}') == []
    await scraper.fires("TrancheRequestWaiting", instance="p4d")
    # Somebody destroys, with another tool, what a command holds.
    instance = node.host.driver.observe().by_index(2).instances[0]
    hold_by_this_process(node, 2, instance)
    await scraper.fires("TrancheSliceMissing", instance="p4d", profile="1g.5gb")
    await scraper.fires("TrancheLayoutDrift", instance="p4d")
    machine.inject_lost(7)
    await scraper.fires("TrancheGpuLost", instance="p4d", gpu="7")
    machine.inject_latency("nvmlDeviceGetPowerUsage", 2.0)
    try:
        clock.ahead = 400.0
        await scraper.fires("TrancheReadingsStale", instance="p4d", what="readings")
    finally:
        machine.clear_injections()


def hold_by_this_process(node: ManagedNode, index: int, instance: GpuInstance) -> None:
    """Give a slice to this process in the register, in the place of its pod, and destroy it behind Tranche's back."""
    gpu = node.host.driver.observe().by_index(index)
    uuid = instance.compute_instances[0].uuid
    node.kubelet.holders.pop(uuid)
    grant = Slice(gpu.uuid, instance.profile, instance.placement)
    pid = os.getpid()
    keeper = ProcessKeeper(pid, process_start_time(pid), pid_namespace())
    request = Request(MigSlice(instance.profile))
    with node.host.ledger.write() as db:
        for each in register.allocations(db):
            if grant in each.grants:
                register.remove_allocation(db, each.id)
        register.add_allocation(db, Allocation("held", request, (grant,), Phase.ACTIVE, 1.0, "test", keeper))
    node.host.driver.destroy_compute_instance(gpu.uuid, instance.id, instance.compute_instances[0].id)
    node.host.driver.destroy_gpu_instance(gpu.uuid, instance.id)


@contextmanager
def waiting_since(node: ManagedNode, created: float) -> Iterator[None]:
    """A request in the queue that came then."""
    request = Request(MigSlice(node.host.driver.observe().by_index(0).instances[0].profile))
    lock = FileLock(node.host.places.waiter("w"))
    with node.host.ledger.write() as db:
        records.add_waiter(db, "w", request, created=created, command="train", pid=os.getpid(), uid=0)
    try:
        yield
    finally:
        with node.host.ledger.write() as db:
            records.remove_waiter(db, "w")
        lock.release(remove=True)


async def every_expression_returns_data(scraper: Prometheus) -> None:
    for name in recorded(yaml.safe_load((MONITORING / "rules.yaml").read_text())):
        await scraper.until(name)
    for dashboard in DASHBOARDS:
        for expression in dashboard_expressions(dashboard.uid, dashboard_json(dashboard)):
            await scraper.until(expression.text)
