"""/metrics of an agent on a simulated machine: pods on their slices, layouts, XIDs; and a driver that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kubernetes.agent.measured_node import give_to_pods, measured, scrape, scraped_until, series
from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tranche.core.errors import UsageError
from tranche.kubernetes.agent.metrics_server import MetricsServer, MetricsSettings
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.mig_manager.manager import MigSettings
from tranche.kubernetes.node.inventory import Inventory
from tranche.metrics.facts import NodeFacts
from tranche.metrics.samples import MetricNameSet


async def cut(node: ManagedNode, layout: str) -> None:
    """Have the MIG manager cut the machine."""
    node.label(mig_config=layout)
    async with node.managed(MigSettings()):
        await node.shows("success")


def test_pods_stand_on_their_slices_and_a_p4d_measures_no_activity(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        await cut(node, "all-3g.20gb")
        pods = await give_to_pods(node)
        async with measured(node) as server:
            status, text = await scrape(server.port)
            assert (status, text.endswith("# EOF\n")) == (200, True)
            found = series(text)
            holders = {each["mig_uuid"]: (each["namespace"], each["pod"]) for each, _ in found["tranche_slice_state"]}
            assert holders == {uuid: (pod.namespace, pod.name) for uuid, pod in pods.items()}
            used = found["tranche_slice_memory_used_bytes"]
            assert {each["pod"] for each, _ in used} == {pod.name for pod in pods.values()}
            assert "tranche_slice_sm_active_ratio" not in series((await scrape(server.port))[1])
            (older,) = {(await scrape(server.port, accept="text/plain"))[0]}
            assert older == 200
            assert (await scrape(server.port, path="/other"))[0] == 404

    on_node(tmp_path, check, "A100-40GB")


def test_whoever_asks_again_and_again_gets_what_was_said_within_that_second(tmp_path: Path) -> None:
    """Everybody in the cluster may ask, and each text takes the event loop that hands out devices for ten milliseconds."""
    now = 100.0
    made: list[float] = []

    async def check(node: ManagedNode) -> None:
        nonlocal now
        async with measured(node, clock=lambda: now) as server:
            look = server.facts

            async def counted() -> NodeFacts:
                made.append(now)
                return await look()

            server.facts = counted  # type: ignore[method-assign]
            answers = await asyncio.gather(*(scrape(server.port) for _ in range(20)))
            assert {status for status, _ in answers} == {200}
            await scrape(server.port, accept="text/plain")
            now += 1.0
            await scrape(server.port)
            assert made == [100.0, 100.0, 101.0]

    on_node(tmp_path, check, "T4")


def test_on_hopper_each_slice_shows_what_it_did_between_two_scrapes(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        await cut(node, "all-3g.40gb")
        (busy, _), machine = (node.slice_uuid(0, 0), 0), node.machine.machine
        async with measured(node) as server:
            with machine.attached(busy, utilization=50):
                assert "tranche_slice_sm_active_ratio" not in series((await scrape(server.port))[1])
                # Two samples closer than 0.1 s say nothing new.
                values = await scraped_until(server.port, lambda found: "tranche_slice_sm_active_ratio" in found)
                found = {each["mig_uuid"]: value for each, value in values["tranche_slice_sm_active_ratio"]}
            assert found.pop(busy) == 0.5
            assert list(found.values()) == [0.0]

    on_node(tmp_path, check, "H100-80GB-SXM")


def test_layout_components_xids_and_the_drivers_errors(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        readiness = {"inventory": Readiness(True), "mig-manager": Readiness(False, "busy")}
        await cut(node, "all-1g.5gb")
        async with node.managed(MigSettings()) as manager, measured(node, manager, readiness=readiness) as server:
            await until(lambda: manager.mismatched() == 0)
            found = series((await scrape(server.port))[1])
            assert found["tranche_layout_state"] == [({"layout": "all-1g.5gb", "state": "success", "reason": ""}, 1.0)]
            assert found["tranche_layout_mismatched_gpus"] == [({"layout": "all-1g.5gb"}, 0.0)]
            assert {each["component"]: value for each, value in found["tranche_component_ready"]} == {
                "inventory": 1.0,
                "mig-manager": 0.0,
            }
            uuid = found["tranche_xid_errors_total"][0][0]["gpu_uuid"]
            assert found["tranche_xid_errors_total"] == [({"gpu_uuid": uuid}, 0.0)]
            assert "tranche_xid_last_time_seconds" not in found
            for _ in range(2):
                node.machine.machine.inject_xid(0, 79)
            found = await scraped_until(server.port, lambda found: found["tranche_xid_errors_total"][0][1] == 2)
            ((labels, last),) = found["tranche_xid_last_time_seconds"]
            assert (labels, last > 1e9) == ({"gpu_uuid": uuid, "xid": "79"}, True)

    on_node(tmp_path, check, "A100-40GB")


def test_gpus_that_are_cut_otherwise_are_counted(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        await cut(node, "all-1g.5gb")
        async with node.managed(MigSettings()) as manager:
            await until(lambda: manager.mismatched() == 0)
        node.label(mig_config="all-7g.40gb")  # and no manager runs any more
        await until(lambda: manager.mismatched() == 2)
        node.label(mig_config="no-such-layout")
        await until(lambda: manager.mismatched() is None)

    on_node(tmp_path, check, "A100-40GB", "A100-40GB")


def test_without_a_wanted_layout_or_a_manager_nothing_is_said_of_it(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        async with measured(node) as server:
            await node.inventory.latest.first()
            assert "tranche_layout_state" not in series((await scrape(server.port))[1])
            node.label(mig_config="all-1g.5gb", mig_config_state="pending")
            found = await scraped_until(server.port, lambda found: "tranche_layout_state" in found)
            assert "tranche_layout_mismatched_gpus" not in found

    on_node(tmp_path, check, "A100-40GB")


def test_while_the_driver_hangs_scrapes_answer_with_what_is_known_and_one_thread_waits(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        await cut(node, "all-3g.20gb")
        await give_to_pods(node)
        machine, ahead = node.machine.machine, 0.0
        async with measured(node, patience=0.1, clock=lambda: time.monotonic() + ahead) as server:
            before = await scraped_until(server.port, lambda found: "tranche_gpu_power_watts" in found)
            machine.inject_latency("nvmlDeviceGetPowerUsage", 1.5)
            machine.inject_latency("nvmlDeviceGetMigMode", 1.5)
            ahead = 1.0  # or they get what was said before
            try:
                answers = await asyncio.gather(*(scrape(server.port) for _ in range(20)))
                await until(lambda: sum(thread.name == "gauges" for thread in threading.enumerate()) == 1)
            finally:
                machine.clear_injections()
            assert {status for status, _ in answers} == {200}
            during = series(answers[-1][1])
            assert during["tranche_slice_state"] == before["tranche_slice_state"]
            assert during["tranche_gpu_power_watts"] == before["tranche_gpu_power_watts"]
            ages = {each["what"]: value for each, value in during["tranche_observation_age_seconds"]}
            assert ages["readings"] > 0.05
            await until(lambda: not any(thread.name == "gauges" for thread in threading.enumerate()))

    on_node(tmp_path, check, "A100-40GB")


def test_readings_that_are_too_old_are_left_out_and_their_age_is_said(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        now = 100.0
        await node.inventory.latest.first()
        settings = MetricsSettings("", 0, patience=0.05)
        server = MetricsServer(node.services, settings, (), readiness=dict, clock=lambda: now)
        while not (await server.facts()).readings:
            pass
        node.machine.machine.inject_latency("nvmlDeviceGetPowerUsage", 1.0)
        try:
            now = 150.0
            known = await server.facts()
            assert known.readings
            assert known.readings_age == 50.0
            now = 230.0
            facts = await server.facts()
            assert (facts.readings, facts.readings_age) == ((), 130.0)
        finally:
            node.machine.machine.clear_injections()
        await until(lambda: not any(thread.name == "gauges" for thread in threading.enumerate()))

    on_node(tmp_path, check, "A100-40GB")


def test_dcgms_names_for_dashboards_that_exist(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        await cut(node, "all-3g.20gb")
        await give_to_pods(node)
        async with measured(node, names=MetricNameSet.DCGM) as server:
            found = series((await scrape(server.port))[1])
            assert all(name.startswith("DCGM_FI_") for name in found)
            assert {each["hostname"] for each, _ in found["DCGM_FI_DEV_FB_USED"]} == {"n1"}
            assert {each["pod"] for each, _ in found["DCGM_FI_DEV_FB_USED"]} == {"job-0", "job-1"}

    on_node(tmp_path, check, "A100-40GB")


def test_a_taken_port_is_the_components_failure(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        async with measured(node) as server:
            settings = MetricsSettings("127.0.0.1", server.port)
            second = MetricsServer(node.services, settings, (), readiness=dict)
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{server.port}") as caught:
                await second.run()
            assert "--metrics-port" in caught.value.hint
            assert not second.ready().ready

    on_node(tmp_path, check, "A100-40GB")


def test_before_the_gpus_were_read_a_scrape_says_what_it_knows(tmp_path: Path) -> None:
    async def check(node: ManagedNode) -> None:
        services = replace(node.services, inventory=_unread(node))
        server = MetricsServer(services, MetricsSettings("", 0), (), readiness=dict)
        facts = await server.facts()
        assert (facts.view, facts.readings) == (None, None)
        assert facts.waiting_since == ()

    on_node(tmp_path, check, "A100-40GB")


def _unread(node: ManagedNode) -> Inventory:
    return Inventory(node.services.pods.look, clock=lambda: 0.0)
