"""The MIG manager at work: a real driver interface, ledger and HTTP, and an API server on loopback."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tests.kubernetes.mig_manager.mig_node import ManagedNode, on_node
from tests.kubernetes.waiting import until
from tests.support.length import some_of
from tranche.core.allocation import Slice
from tranche.core.errors import GpuBusy
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.claims.vocabulary import MODE_LABEL
from tranche.kubernetes.device_plugin.offers import held_otherwise
from tranche.kubernetes.kubelet.pod_resources import KubeletResponse
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.mig_manager.drain import InUsePolicy
from tranche.kubernetes.mig_manager.exclusion import ANSWER_SECONDS, CLAIM_PREFIX
from tranche.kubernetes.mig_manager.manager import MigSettings
from tranche.kubernetes.mig_manager.operands import PAUSED
from tranche.kubernetes.mig_manager.state import ATTEMPT_ANNOTATION
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.pod_settlement import HeldGrants
from tranche.node.host import Host

ONE = "nvidia.com/mig-1g.5gb"

A100, H100 = "A100-40GB", "H100-80GB-SXM"
ONE_HALF = "version: v1\nmig-configs: {custom: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1}}]}"
MIXED = "version: v1\nmig-configs: {custom: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 1g.5gb: 2}}]}"


def test_a_label_cuts_the_gpus_and_the_node_says_so(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed() as manager:
            await until(lambda: manager.ready().ready)
            assert node.shown == (None, None)
            node.label(mig_config="all-balanced")
            await node.shows("success")
            assert node.slices(0) == node.slices(1) == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]
            await until(lambda: node.condition is not None and node.condition[:2] == ("True", "LayoutApplied"))
            assert node.events == {("Normal", "Applying"), ("Normal", "LayoutApplied")}

    on_node(tmp_path, test, A100, A100)


def test_slices_that_requests_left_are_the_layouts_once_it_has_them(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.label(mig_config="all-balanced")
        async with node.managed():
            await node.shows("success")
        with node.host.ledger.write() as db:
            db.execute("UPDATE owned_instances SET requested = 1")
        assert len(node.host.view().requested) == 4
        async with node.managed():
            await until(lambda: not node.host.view().requested)
        assert len(node.host.view().owned) == 4

    on_node(tmp_path, test, A100)


def test_a_change_of_the_layout_lists_no_pods(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-balanced")
            await node.shows("success")
            before = [seen for seen in node.server.lists() if seen.path.endswith("/pods")]
            node.label(mig_config="all-3g.20gb")
            await node.shows("success")
            assert [seen for seen in node.server.lists() if seen.path.endswith("/pods")] == before

    on_node(tmp_path, test, A100)


def test_the_config_map_is_followed_as_it_is_edited(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="custom")
            await node.shows("failed", "LayoutUnknown")
            node.config_map(MIXED)
            await node.shows("success")
            assert node.slices() == ["1g.5gb", "1g.5gb", "3g.20gb"]
            node.config_map("version: v2")
            await node.shows("failed", "LayoutInvalid")
            assert node.slices() == ["1g.5gb", "1g.5gb", "3g.20gb"]
            node.config_map(ONE_HALF)
            await node.shows("success")
            assert node.slices() == ["3g.20gb"]

    on_node(tmp_path, test, A100)


def test_a_node_whose_label_names_no_layout_gets_the_default_one(tmp_path: Path) -> None:
    settings = MigSettings(default_layout="all-3g.20gb")

    async def test(node: ManagedNode) -> None:
        async with node.managed(settings) as manager:
            await until(lambda: node.shown == ("success", None))
            assert node.slices(0) == ["3g.20gb", "3g.20gb"]
            assert manager.mismatched() == 0
            assert "nvidia.com/mig.config" not in node.labels
            node.label(mig_config="all-balanced")
            await node.shows("success")
            assert "3g.20gb" in node.slices(0)
            assert "1g.5gb" in node.slices(0)
            node.label(mig_config=None)
            await until(lambda: node.slices(0) == ["3g.20gb", "3g.20gb"])

    on_node(tmp_path, test, A100)


def test_a_default_layout_asks_nothing_of_a_node_without_a_gpu_to_cut(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(MigSettings(default_layout="all-1g.5gb")) as manager:
            await until(lambda: manager.ready().ready)
            assert node.shown == (None, None)
            node.label(mig_config="all-1g.5gb")
            await node.shows("failed", "MigNotSupported")

    on_node(tmp_path, test, machine_type="g4dn.xlarge")


def test_mig_on_a_t4_is_a_failure_that_says_why(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.5gb")
            await node.shows("failed", "MigNotSupported")
            await until(lambda: ("Warning", "MigNotSupported") in node.events)
            assert node.machine.machine.total_change_calls() == 0
            node.label(mig_config="all-disabled")
            await node.shows("success")

    on_node(tmp_path, test, machine_type="g4dn.xlarge")


def test_a_slice_in_use_keeps_its_pod_and_its_uuid_while_the_rest_is_cut(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            held = node.slice_uuid(0, 0)
            node.kubelet.holders[held] = node.pod("a")
            node.label(mig_config="all-3g.20gb")
            await node.shows("pending", "GpuBusy")
            await until(lambda: node.slices(0) == ["1g.5gb", "3g.20gb"] and node.slices(1) == ["3g.20gb", "3g.20gb"])
            assert held in {
                device.uuid
                for instance in node.host.driver.observe().by_index(0).instances
                for device in instance.compute_instances
            }
            await until(lambda: held in node.inventory.draining)
            assert node.condition is not None
            assert "pod default/a" in node.condition[2]
            node.kubelet.holders.clear()
            await node.shows("success")
            assert node.slices(0) == ["3g.20gb", "3g.20gb"]
            await until(lambda: held not in node.inventory.draining)

    on_node(tmp_path, test, A100, A100)


@pytest.mark.parametrize("pod_deleted_meanwhile", [False, True])
def test_a_kubelet_that_starts_while_a_layout_waits_costs_no_pod_its_slice(
    tmp_path: Path, pod_deleted_meanwhile: bool
) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            held = {
                node.slice_uuid(gpu, rank): node.pod(f"pod-{gpu}-{rank}") for gpu in (0, 1) for rank in range(0, 7, 2)
            }
            node.kubelet.holders |= held
            await node.inventory.refresh()
            node.label(mig_config="all-3g.20gb")
            await node.shows("pending", "GpuBusy")
            for _ in range(3):
                if pod_deleted_meanwhile:
                    node.server.objects.pop("/api/v1/namespaces/default/pods/pod-0-0", None)
                listed = node.kubelet.restart()
                for _ in range(5):
                    await node.inventory.refresh()
                    await asyncio.sleep(0.05)
                assert node.shown == ("pending", "GpuBusy")
                node.kubelet.holders |= listed
                await node.inventory.refresh()
            there = {
                device.uuid
                for gpu in node.host.driver.observe()
                for instance in gpu.instances
                for device in instance.compute_instances
            }
            assert set(held) <= there
            node.kubelet.holders.clear()
            await node.shows("success")

    on_node(tmp_path, test, A100, A100)


def test_refuse_leaves_everything_as_it_is(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(MigSettings(policy=InUsePolicy.REFUSE)):
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            node.kubelet.holders[node.slice_uuid(0, 0)] = node.pod("a")
            calls = node.machine.machine.total_change_calls()
            await node.inventory.refresh()
            node.label(mig_config="all-3g.20gb")
            await node.shows("failed", "GpuBusy")
            assert node.machine.machine.total_change_calls() == calls
            node.kubelet.holders.clear()
            await node.shows("success")

    on_node(tmp_path, test, A100)


def test_drain_evicts_who_is_in_the_way_and_uncordons(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(MigSettings(policy=InUsePolicy.DRAIN)):
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            pod = node.pod("a")
            node.kubelet.holders[node.slice_uuid(0, 0)] = pod
            await node.inventory.refresh()
            node.label(mig_config="all-7g.40gb")
            await until(lambda: "/api/v1/namespaces/default/pods/a" not in node.server.objects)
            assert node.unschedulable
            node.kubelet.holders.clear()
            await node.shows("success")
            await until(lambda: not node.unschedulable and set(node.annotations) == _claims(node))

    on_node(tmp_path, test, A100)


def test_the_cordon_of_a_drain_outlives_the_evicted_pod_in_the_api_server(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(MigSettings(policy=InUsePolicy.DRAIN)):
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            node.kubelet.holders[node.slice_uuid(0, 0)] = node.pod("a")
            await node.inventory.refresh()
            node.label(mig_config="all-7g.40gb")
            await until(lambda: node.unschedulable and node.services.node_pods.value == ())
            await _rounds(node, 2)
            assert node.unschedulable
            node.kubelet.holders.clear()
            await node.shows("success")
            await until(lambda: not node.unschedulable)

    on_node(tmp_path, test, A100)


def test_a_pod_of_which_the_watch_tells_late_is_evicted_all_the_same(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        told: LatestValue[tuple[KubePod, ...]] = LatestValue()
        told.publish(())
        late = replace(node, services=replace(node.services, node_pods=told))
        async with late.managed(MigSettings(policy=InUsePolicy.DRAIN)):
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            node.kubelet.holders[node.slice_uuid(0, 0)] = node.pod("a")
            await node.inventory.refresh()
            node.label(mig_config="all-7g.40gb")
            await node.shows("pending", "GpuBusy")
            await _rounds(node, 2)
            told.publish(await node.api.list_pods_on_node("n1"))
            await until(lambda: "/api/v1/namespaces/default/pods/a" not in node.server.objects)
            node.kubelet.holders.clear()
            told.publish(())
            await node.shows("success")

    on_node(tmp_path, test, A100)


def test_another_manager_of_which_the_watch_tells_late_is_told_on_the_node(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            await _rounds(node, 2)
            node.pod("other", labels={"app": "nvidia-mig-manager"}, namespace="gpu-operator")
            await node.shows("failed", "ManagerConflict")

    on_node(tmp_path, test, A100)


def test_an_eviction_that_fails_is_told_and_keeps_no_other_pod(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(MigSettings(policy=InUsePolicy.DRAIN)):
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            first, second = node.pod("a"), node.pod("b")
            node.kubelet.holders |= {node.slice_uuid(0, 0): first, node.slice_uuid(0, 1): second}
            await node.inventory.refresh()
            message = "This pod has more than one PodDisruptionBudget"
            node.server.refusals["POST", "/pods/a/eviction"] = (500, {"message": message})
            node.label(mig_config="all-7g.40gb")
            await until(lambda: "/api/v1/namespaces/default/pods/b" not in node.server.objects)
            node.set_labels({"poke": "1"})
            await until(lambda: node.condition is not None and message in node.condition[2])
            assert node.shown == ("pending", "GpuBusy")

    on_node(tmp_path, test, A100)


def test_no_layout_waits_for_the_right_to_record_events(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.server.refusals["POST", "/events"] = (403, {"message": "events is forbidden"})
        async with node.managed() as manager:
            node.label(mig_config="all-1g.10gb")
            await node.shows("success")
            await until(lambda: manager.ready().ready)
            assert node.events == set()

    on_node(tmp_path, test, H100)


def test_gpus_that_cannot_be_read_at_the_start_are_told(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.machine.machine.inject_error("nvmlDeviceGetCount_v2", 999, calls=1_000_000)
        unread = replace(
            node, services=replace(node.services, inventory=Inventory(node.services.pods.look, clock=lambda: 0.0))
        )
        node.label(mig_config="all-1g.10gb", mig_config_state="success")
        async with unread.managed():
            await node.shows("failed", "HardwareError")
            assert node.condition is not None
            assert "cannot decide on the layout: " in node.condition[2]
            node.machine.machine.clear_injections()
            await unread.services.inventory.refresh()
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_layouts_that_may_not_be_read_are_told_until_they_are(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.config_map(ONE_HALF)
        node.server.refusals["GET", "/configmaps"] = (403, {"message": "configmaps is forbidden"})
        node.label(mig_config="custom", mig_config_state="success")
        calls = node.machine.machine.total_change_calls()
        async with node.managed() as manager:
            await node.shows("pending", "KubernetesUnavailable")
            assert node.condition is not None
            assert "cannot read the layouts in ConfigMap tranche/layouts" in node.condition[2]
            assert not manager.ready().ready
            assert node.machine.machine.total_change_calls() == calls
            node.server.refusals.clear()
            await node.shows("success")
            assert manager.ready().ready

    on_node(tmp_path, test, A100)


def test_a_defect_of_the_agent_is_a_failure_like_others(tmp_path: Path) -> None:
    key = "nvidia.com/gpu.deploy.dcgm"

    class Defective:
        places = None

        def boot_ended(self, boot_id: str) -> None:
            return None

        def change(self, decide: object, *, apart: bool) -> None:
            raise ZeroDivisionError("oops")

    async def test(node: ManagedNode) -> None:
        defective = Defective()
        defective.places = node.host.places  # type: ignore[assignment]
        broken = replace(node, services=replace(node.services, host=cast(Host, defective)))
        node.set_labels({key: "true"})
        async with broken.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("failed", "Internal")
            assert node.condition is not None
            assert "ZeroDivisionError: oops" in node.condition[2]
            assert node.labels[key] == "true"

    on_node(tmp_path, test, H100)


def test_operands_are_paused_for_the_cut_and_restored(tmp_path: Path) -> None:
    key = "nvidia.com/gpu.deploy.device-plugin"

    async def test(node: ManagedNode) -> None:
        operand = "/api/v1/namespaces/gpu-operator/pods/plugin"
        node.pod("plugin", labels={"app": "nvidia-device-plugin-daemonset"}, namespace="gpu-operator")
        async with node.managed():
            node.set_labels(
                {key: "true", "nvidia.com/gpu.deploy.dcgm": "false", "nvidia.com/mig.config": "all-1g.10gb"}
            )
            await node.shows("pending", "WaitingForOperands")
            assert node.labels[key] == PAUSED
            assert node.slices() == []
            node.server.delete(operand)
            await node.shows("success")
            assert (node.labels[key], node.labels["nvidia.com/gpu.deploy.dcgm"]) == ("true", "false")

    on_node(tmp_path, test, H100)


def test_a_driver_that_refuses_is_tried_again_and_the_failure_clears_itself(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        machine = node.machine.machine
        machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1)
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("failed", "HardwareError")
            assert node.slices() == []
            assert ATTEMPT_ANNOTATION in node.annotations
            node.now += 6
            node.set_labels({"poke": "1"})
            await node.shows("success")
            await until(lambda: set(node.annotations) == _claims(node))

    on_node(tmp_path, test, H100)


def test_a_change_that_hangs_in_the_driver_makes_the_manager_unready(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        machine = node.machine.machine
        machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 5.0)  # long enough to be seen
        async with node.managed() as manager:
            await until(lambda: manager.ready().ready)
            calls = machine.total_change_calls()
            node.label(mig_config="all-7g.80gb")
            await until(lambda: machine.total_change_calls() > calls)
            assert node.shown == ("pending", "Applying")
            assert manager.ready().ready
            node.now += 700
            await until(lambda: "a layout change has taken 700 s" in manager.ready().why)
            await node.shows("success")
            await until(lambda: manager.ready().ready)

    on_node(tmp_path, test, H100)


def test_patience_outlives_a_restart_of_the_manager(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.machine.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=2)
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("failed", "HardwareError")
        calls = node.machine.machine.total_change_calls()
        async with node.managed() as manager:
            await until(lambda: manager.ready().ready)
            assert node.machine.machine.total_change_calls() == calls, "the restarted manager did not wait its turn"
            node.now += 6
            node.set_labels({"poke": "1"})
            await until(lambda: '"failures":2' in node.annotations.get(ATTEMPT_ANNOTATION, ""))
            node.now += 11
            node.set_labels({"poke": "2"})
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_a_mode_that_does_not_change_restarts_the_machine(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        machine = node.machine.machine
        machine.inject_stuck_mode(0)
        async with node.managed(MigSettings(with_reboot=True)):
            node.label(mig_config="all-1g.5gb")
            await until(lambda: ATTEMPT_ANNOTATION in node.annotations)
            node.now += 6
            machine.inject_stuck_mode(0, stuck=False)
            node.set_labels({"poke": "1"})
            await until(lambda: node.restarts == 1)
            machine.reboot()
            node.set_labels({"poke": "2"})
            await node.shows("success")
            assert len(node.slices()) == 7
            assert ("Normal", "RebootForMigMode") in node.events

    on_node(tmp_path, test, A100)


def test_the_kubelet_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed() as manager:
            await until(lambda: manager.ready().ready)
            node.kubelet.failing = True
            node.label(mig_config="all-1g.10gb")
            await node.shows("pending", "KubeletUnavailable")
            assert node.slices() == []
            node.kubelet.failing = False
            node.now += 6
            node.set_labels({"poke": "1"})
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_what_waits_is_told_also_while_the_kubelet_does_not_answer(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed() as manager:
            node.label(mig_config="all-7g.80gb")
            await node.shows("success")
            node.kubelet.holders[node.slice_uuid(0, 0)] = node.pod("a")
            await node.inventory.refresh()
            node.kubelet.failing = True
            node.label(mig_config="all-1g.10gb")
            await node.shows("pending", "GpuBusy")
            await until(lambda: "the kubelet does not answer" in manager.ready().why)
            node.kubelet.failing = False
            node.kubelet.holders.clear()
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_an_api_server_that_fails_for_a_while_is_tried_again(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            node.server.failures += [(500, {"message": "etcd is away"})] * 3
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_two_managers_of_one_node_stand_still_until_one_is_gone(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        other = CLAIM_PREFIX + "00000000-0000-4000-8000-000000000000"
        async with node.managed():
            await until(lambda: bool(_claims(node)))
            await node.api.patch_node_metadata("n1", annotations={other: "{}"})
            node.label(mig_config="all-1g.10gb")
            await node.shows("failed", "ManagerConflict")
            assert node.machine.machine.total_change_calls() == 0
            await node.api.patch_node_metadata("n1", annotations={other: None})
            await node.shows("success")
        assert not _claims(node), "the claim is withdrawn at the end"

    on_node(tmp_path, test, H100)


def test_a_manager_that_was_killed_is_gone_by_the_clock_of_the_one_that_stays(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        dead = CLAIM_PREFIX + "00000000-0000-4000-8000-000000000000"
        node.annotate({dead: '{"since":9999999999,"renewed":9999999999}'})
        node.label(mig_config="all-1g.10gb")
        async with node.managed():
            await node.shows("failed", "ManagerConflict")
            node.now += ANSWER_SECONDS
            node.set_labels({"poke": "1"})
            await node.shows("success")
            assert dead not in node.annotations

    on_node(tmp_path, test, H100)


def test_nvidias_own_manager_on_the_node_is_a_conflict(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.pod("nvidia-mig-manager-x", labels={"app": "nvidia-mig-manager"}, namespace="gpu-operator")
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("failed", "ManagerConflict")
            assert node.condition is not None
            assert "gpu-operator/nvidia-mig-manager-x" in node.condition[2]
            node.server.delete("/api/v1/namespaces/gpu-operator/pods/nvidia-mig-manager-x")
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_pods_of_a_tenant_stop_nothing_whatever_they_call_themselves(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        operand = "nvidia.com/gpu.deploy.dcgm"
        node.pod("a", labels={"app": "nvidia-mig-manager"}, namespace="tenant")
        node.pod("b", labels={"app": "nvidia-dcgm"}, namespace="tenant")
        node.set_labels({operand: "true"})
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("success")
            assert node.labels[operand] == "true"

    on_node(tmp_path, test, H100)


def test_a_gpu_whose_driver_refuses_keeps_no_layout_from_the_others_and_is_named(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        machine = node.machine.machine
        machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1_000_000, gpu=1)
        async with node.managed():
            node.label(mig_config="all-3g.20gb")
            await node.shows("failed", "HardwareError")
            assert node.condition is not None
            assert "GPU 1 (" in node.condition[2]
            assert "the change succeeded on the other 2 GPUs" in node.condition[2]
            assert [node.slices(index) for index in range(3)] == [["3g.20gb"] * 2, [], ["3g.20gb"] * 2]
            made = node.slice_uuid(0, 0)
            machine.clear_injections()
            node.now += 6
            node.set_labels({"poke": "1"})
            await node.shows("success")
            assert [node.slices(index) for index in range(3)] == [["3g.20gb"] * 2] * 3
            assert node.slice_uuid(0, 0) == made

    on_node(tmp_path, test, A100, A100, A100)


def test_a_lost_gpu_keeps_no_layout_from_the_others_and_is_named(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.machine.machine.inject_lost(1)
        await node.inventory.refresh()
        async with node.managed():
            node.label(mig_config="all-balanced")
            await node.shows("failed", "HardwareError")
            assert len(node.slices(0)) == len(node.slices(2)) == 4
            assert node.condition is not None
            assert "GPU 1 is lost" in node.condition[2]
            node.machine.machine.inject_lost(1, lost=False)
            await node.shows("success")
            assert len(node.slices(1)) == 4

    on_node(tmp_path, test, A100, A100, A100)


def test_a_state_folder_that_cannot_be_written_is_told_on_the_node_and_what_must_go_stays_marked(
    tmp_path: Path,
) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("success")
            held = node.slice_uuid(0, 0)
            node.kubelet.holders[held] = node.pod("a")
            await node.inventory.refresh()
            node.label(mig_config="all-7g.80gb")
            await node.shows("pending", "GpuBusy")
            node.services.state_problem.publish("the state folder /s cannot be written: Read-only file system")
            await node.shows("failed", "LedgerUnavailable")
            assert node.condition is not None
            assert "/s cannot be written" in node.condition[2]
            assert held in node.inventory.draining
            node.services.state_problem.publish("")
            node.kubelet.holders.clear()
            await node.shows("success")

    on_node(tmp_path, test, H100)


def test_a_manager_that_is_cut_short_at_any_write_is_made_good_by_the_next(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        key = "nvidia.com/gpu.deploy.dcgm"
        node.set_labels({key: "true"})
        layouts = ["all-1g.10gb", "all-balanced", "all-disabled"]
        for kill_after in range(24):
            wanted = layouts[kill_after % len(layouts)]
            node.label(mig_config=wanted)
            last_write = _writes(node) + kill_after % 12
            async with node.managed():
                await until(partial(_has_written_or_is_through, node, last_write))
        async with node.managed():
            node.label(mig_config="all-balanced")
            await node.shows("success")
            assert node.slices() == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
            assert node.labels[key] == "true"
            assert set(node.annotations) == _claims(node)

    on_node(tmp_path, test, H100)


def test_a_pod_that_got_a_slice_during_the_decision_is_not_hit(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.10gb")
            await node.shows("success")
            wanted = node.slice_uuid(0, 3)
            real = node.kubelet.read

            async def given_meanwhile() -> KubeletResponse:
                # The kubelet lists it only once it is draining: it was handed over just before.
                if wanted in node.inventory.draining:
                    node.kubelet.holders[wanted] = PodRef("default", "late")
                return await real()

            node.kubelet.read = given_meanwhile  # type: ignore[method-assign]
            node.label(mig_config="all-7g.80gb")
            await node.shows("pending", "GpuBusy")
            await asyncio.sleep(0.2)
            assert node.slices() == ["1g.10gb"]
            assert node.slice_uuid(0, 0) == wanted

    on_node(tmp_path, test, H100)


def _claims(node: ManagedNode) -> set[str]:
    return {key for key in node.annotations if key.startswith(CLAIM_PREFIX)}


def _has_written_or_is_through(node: ManagedNode, writes: int) -> bool:
    wanted = f"'{node.labels['nvidia.com/mig.config']}'"
    return _writes(node) >= writes or (node.condition is not None and wanted in node.condition[2])


def _writes(node: ManagedNode) -> int:
    return sum(seen.method in ("PATCH", "POST") for seen in node.server.requests)


class Backlog:
    """Pods that wait for 1g.5gb slices, more than there will ever be: each takes what the device plugin would offer it."""

    def __init__(self, node: ManagedNode) -> None:
        self._node = node
        self.given: list[str] = []

    async def run(self) -> None:
        async for _ in self._node.inventory.latest.changes():
            await self.take()

    async def take(self) -> None:
        """Give every slice that is offered and free to the next pod, as scheduler and kubelet do."""
        node = self._node
        snapshot = node.inventory.latest.value
        for gpu in snapshot.view.node:
            for instance in gpu.instances:
                for device in instance.compute_instances:
                    grant = Slice(gpu.uuid, instance.profile, instance.placement)
                    held = held_otherwise(grant, ONE, snapshot.view.allocations)
                    free = held is None and device.uuid not in node.kubelet.holders
                    if str(device.name) == "1g.5gb" and free and device.uuid not in node.inventory.draining:
                        ref = node.pod(f"replica-{len(self.given)}")
                        node.kubelet.resources[device.uuid] = ONE
                        try:
                            await node.services.pods.hand_over(ONE, HeldGrants((grant,)))
                        except GpuBusy:
                            continue
                        self.given.append(device.uuid)
                        node.kubelet.holders[device.uuid] = ref


@pytest.mark.parametrize("seed", some_of(range(5), 1))
def test_a_slice_that_must_go_is_given_to_no_pod_of_a_backlog(tmp_path: Path, seed: int) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            old = [node.slice_uuid(gpu, rank) for gpu in range(2) for rank in range(7)]
            node.kubelet.holders |= {uuid: node.pod(f"old-{rank}") for rank, uuid in enumerate(old)}
            await node.inventory.refresh()
            backlog = Backlog(node)
            taking = asyncio.create_task(backlog.run())
            node.label(mig_config="all-balanced")
            await node.shows("pending", "GpuBusy")
            random.Random(seed).shuffle(old)
            for uuid in old:
                del node.kubelet.holders[uuid]
                await node.inventory.refresh()
                for _ in range(random.Random(uuid).randrange(40)):
                    await asyncio.sleep(0.002)
            await node.shows("success")
            taking.cancel()
            assert node.slices(0) == node.slices(1) == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]

    on_node(tmp_path, test, A100, A100)


def test_a_node_whose_turn_it_is_not_waits_with_everything_as_it_was(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed():
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
        before = node.slices()
        async with node.managed(budget="0"):
            node.label(mig_config="all-3g.20gb")
            await node.shows("pending", "WaitingForTurn")
            await until(lambda: node.tickets == ["waiting"])
            assert (node.slices(), node.inventory.draining) == (before, frozenset())
            assert node.condition is not None
            assert "waits for its turn: the rollout is paused" in node.condition[2]
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            await until(lambda: node.tickets == [])

    on_node(tmp_path, test, A100)


def test_a_change_takes_its_turn_and_gives_it_back(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(budget="100%"):
            node.label(mig_config="all-balanced")
            await node.shows("success")
            await until(lambda: node.tickets == [])
            states = {seen.body["spec"]["holderIdentity"] for seen in node.server.requests if seen.method == "PUT"}
            assert {"granted", "changing"} <= states

    on_node(tmp_path, test, A100)


def test_a_node_that_fails_in_its_turn_holds_the_others_up_and_then_goes_on(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        node.machine.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1_000_000)
        node.machine.machine.inject_error("nvmlDeviceCreateGpuInstance", 999, calls=1_000_000)
        async with node.managed(budget="1"):
            node.label(mig_config="all-balanced")
            await node.shows("failed", "HardwareError")
            await until(lambda: node.tickets == ["failed"])
            node.machine.machine.clear_injections()
            node.now += 3600
            node.label(x="y")  # news, upon which it is tried again
            await node.shows("success")
            await until(lambda: node.tickets == [])

    on_node(tmp_path, test, A100)


def test_no_layout_cuts_a_node_that_is_given_away_by_claims(tmp_path: Path) -> None:
    async def test(node: ManagedNode) -> None:
        async with node.managed(MigSettings(config_map="layouts", heeds_mode=True)) as manager:
            node.label(mig_config="all-1g.5gb")
            await node.shows("success")
            node.set_labels({MODE_LABEL: "dynamic", "nvidia.com/mig.config": "all-balanced"})
            await node.shows(None)
            assert manager.ready().ready
            assert node.slices() == ["1g.5gb"] * 7
            node.set_labels({MODE_LABEL: "static"})
            await node.shows("success")
            assert node.slices() != ["1g.5gb"] * 7

    on_node(tmp_path, test, A100)


async def _rounds(node: ManagedNode, count: int) -> None:
    """News of the node, and the manager's looks at it because of them, so many times one after another."""
    for _ in range(count):
        before = node.reads
        node.set_labels({"poke": str(before)})
        await until(partial(_read_since, node, before))
    await node.inventory.refresh()


def _read_since(node: ManagedNode, before: int) -> bool:
    return node.reads > before
