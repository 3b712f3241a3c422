"""What the kubelet asks of the driver, on a simulated machine: claims are prepared, refused by name, and given back."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import grpc
import pytest

from tests.kubernetes.dra.claim_node import CLAIMS, GIB, ClaimNodeStandIn, on_claim_node
from tests.kubernetes.waiting import PATIENCE_SECONDS, patiently, until
from tests.node.machines import change, create, enable
from tests.node.processes import isolated
from tranche.core.errors import KubeletUnavailable
from tranche.core.keeper import ClaimKeeper
from tranche.core.sharing import GpuPolicy
from tranche.core.state import DaemonState
from tranche.kubernetes.agent.process import with_claims
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.device_plugin.config import PluginConfig
from tranche.kubernetes.device_plugin.config_source import ConfigSource, StartSettings
from tranche.kubernetes.dra.driver import ClaimDriver, calm
from tranche.kubernetes.dra.registration import PluginSocketFiles
from tranche.kubernetes.kubelet.proto import pluginregistration_pb2 as pb
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.health import QUIET_SECONDS
from tranche.kubernetes.node.inventory import Inventory
from tranche.kubernetes.node.share_edits import FiledKeeper, ShareFiles
from tranche.node.claims import ClaimRegister
from tranche.node.policy_change import change_policy, cordon, uncordon
from tranche.node.state.session import boot_id
from tranche.node.store import register
from tranche_simulator.machine import SimulatedMachine

LONG = 3600.0


@isolated
def test_a_claim_is_prepared_once_and_given_back_without_a_trace() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0-1g-5gb-3", "gpu-0-2g-10gb-0")
        async with node.driver() as driver:
            info = node.kubelet.info
            assert (info.type, info.name) == ("DRAPlugin", "gpu.tranche.dev")
            assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
            assert driver.ready().ready
            for version in ("v1", "v1beta1", "v1"):
                node.kubelet.version = version
                answer = (await node.kubelet.prepare(claim))[claim.uid]
                assert not answer.error
                first, second = answer.devices
                assert (list(first.request_names), first.pool_name) == (["r0"], "n1")
                assert (first.device_name, list(first.cdi_device_ids)) == (
                    "gpu-0-1g-5gb-3",
                    ["tranche.dev/share=uid-a-0"],
                )
                assert list(second.cdi_device_ids) == ["tranche.dev/share=uid-a-1"]
            (held,) = node.allocations
            assert held.keeper == ClaimKeeper("team", "a", "uid-a")
            spec = node.specification(claim)
            assert [each["name"] for each in spec["devices"]] == ["uid-a-0", "uid-a-1"]
            (instance,) = (each for each in node.node.host.observe().gpus[0].instances if each.placement.start == 3)
            assert instance.whole_slice is not None
            mounted = [each["containerPath"] for each in spec["devices"][0]["containerEdits"]["mounts"]]
            assert any(path.endswith(instance.whole_slice.uuid) for path in mounted)
            assert "TRANCHE_CLAIM_uid_a=team/a" in spec["devices"][0]["containerEdits"]["env"]
            for _ in range(2):
                await node.unprepare(claim)
            assert not node.allocations
            assert not node.files
            assert len(node.node.host.observe().gpus[0].instances) == 2, "the slices stay, idle"

    on_claim_node(test, "A100-40GB")


@isolated
def test_the_node_is_looked_at_again_after_a_claim() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        inventory = Inventory(node.node.services.pods.look, clock=asyncio.get_running_loop().time, period=3600)
        node.node.services = replace(node.node.services, inventory=inventory)
        looking = asyncio.create_task(inventory.run())
        claim = node.allocate("a", "gpu-0-1g-5gb-0")
        async with node.driver():
            assert await node.prepare(claim) == [""]
            await until(lambda: len(inventory.latest.value.view.allocations) == 1)
            await node.unprepare(claim)
            await until(lambda: not inventory.latest.value.view.allocations)
        looking.cancel()

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_kubelet_that_asks_before_the_node_was_looked_at_has_its_answer_afterwards() -> None:
    """A kubelet that does not find the driver may ask again only after more than a minute."""

    async def test(node: ClaimNodeStandIn) -> None:
        inventory = Inventory(node.node.services.pods.look, clock=asyncio.get_running_loop().time, period=3600)
        node.node.services = replace(node.node.services, inventory=inventory)
        claim, other = node.allocate("a", "gpu-0-1g-5gb-0"), node.allocate("b", "gpu-0-1g-5gb-1")
        async with node.driver(wait=False) as driver:
            assert "claims wait" in driver.ready().why
            asked = asyncio.gather(node.prepare(claim), node.unprepare(other))
            await until(lambda: node.kubelet.asked == 2)
            assert not asked.done()
            await inventory.refresh()
            assert (await asked)[0] == [""]
            assert driver.ready().ready

    on_claim_node(test, "A100-40GB")


def test_a_backlog_is_over_when_nothing_comes_and_nothing_is_under_way() -> None:
    changed, busy, slept = asyncio.Event(), [True, True, False], 0

    async def sleep(_: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 3:
            changed.set()  # one more, after nothing was under way

    changed.set()
    asyncio.run(calm(changed, lambda: busy.pop(0) if busy else False, sleep))
    assert (slept, busy, changed.is_set()) == (4, [], False)


@isolated
def test_a_backlog_of_all_kinds_is_prepared_at_once() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        async with node.driver():
            claims = [node.allocate(f"s{n}", f"gpu-0-1g-5gb-{n}") for n in range(7)]
            claims += [node.allocate(f"t{n}", f"gpu-1-{p}") for n, p in enumerate(("3g-20gb-4", "4g-20gb-0"))]
            claims.append(node.allocate("whole", "gpu-2"))
            answers = await asyncio.gather(*(node.prepare(claim) for claim in claims))
            assert answers == [[""]] * len(claims)
            gpus = node.node.host.observe().gpus
            assert [len(gpu.instances) for gpu in gpus] == [7, 2, 0]
            assert len(node.allocations) == len(node.files) == 10
            await asyncio.gather(*(node.unprepare(claim) for claim in claims))
            assert not node.allocations
            assert not node.files
            again = node.allocate("again", "gpu-0-7g-40gb-0")
            assert await node.prepare(again) == [""], "idle slices make room"

    on_claim_node(test, "A100-40GB", "A100-40GB", "A100-40GB")


@isolated
def test_a_claim_that_is_given_back_amid_a_look_leaves_no_file_and_no_share() -> None:
    """The look has seen that the claim has a slice, and sees no file any more."""

    async def test(node: ClaimNodeStandIn) -> None:
        loop, marks = asyncio.get_running_loop(), ShareFiles.marks
        given_back: list[int] = []
        looks = 0

        def seen_late(files: ShareFiles) -> Mapping[str, FiledKeeper]:
            nonlocal looks
            looks += 1
            if armed and not given_back:
                given_back.append(looks)
                asyncio.run_coroutine_threadsafe(node.unprepare(claim), loop).result()
            return marks(files)

        ShareFiles.marks = seen_late  # type: ignore[assignment, method-assign]
        armed = False
        async with node.driver():
            claim = node.allocate("a", "gpu-0-1g-5gb-0")
            assert await node.prepare(claim) == [""]
            armed = True
            await until(lambda: bool(given_back) and looks > given_back[0] + 5)
            assert node.files == []
            assert not node.allocations

    on_claim_node(test, "A100-40GB")


@isolated
def test_the_last_line_refuses_what_a_scheduler_got_wrong_and_leaves_the_others() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        first = node.allocate("first", "gpu-0-2g-10gb-0")
        async with node.driver():
            assert await node.prepare(first) == [""]
            calls = node.node.machine.machine.total_change_calls()

            async def refusal(claim: object) -> str:
                (error,) = await node.prepare(claim)  # type: ignore[arg-type]
                return error

            overlap = node.allocate("overlap", "gpu-0-1g-5gb-1")
            assert "GPU 0: 1g.5gb at 1:1 overlaps what claim team/first holds" in await refusal(overlap)
            assert "overlaps what claim team/first holds" in await refusal(node.allocate("whole", "gpu-0"))
            assert "allocated in pool n2" in await refusal(node.allocate("far", "gpu-0-1g-5gb-3", pool="n2"))
            gone = node.allocate("gone", "gpu-0-1g-5gb-3")
            node.delete("gone")
            assert "was deleted" in await refusal(gone)
            node.allocate("gone", "gpu-0-1g-5gb-3", uid="another")
            assert "now has uid another, but the kubelet asked for uid uid-gone" in await refusal(gone)
            assert "does not have" in await refusal(node.allocate("odd", "gpu-0-1g-5gb-9"))
            across = await refusal(node.allocate("both", "gpu-0-1g-5gb-5", "gpu-0-2g-10gb-4"))
            assert "was allocated gpu-0-1g-5gb-5 and gpu-0-2g-10gb-4, which cannot exist together" in across
            two = node.allocate("two", "gpu-0-shared", "gpu-0-shared", consumed={"memory": "4Gi"})
            assert "team/two was allocated several parts of gpu-0-shared" in await refusal(two)
            node.node.server.put(
                "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/bare", {"metadata": {"uid": "uid-bare"}}
            )
            bare = node.allocate("bare")
            assert "has no allocated device from gpu.tranche.dev" in await refusal(bare)
            assert node.node.machine.machine.total_change_calls() == calls
            (held,) = node.allocations
            assert held.keeper == ClaimKeeper("team", "first", "uid-first")
            assert node.files == ["tranche.dev-share_uid-first.json"]
            # The neighbour ends, and the one that was refused is served: the kubelet asks again.
            await node.unprepare(first)
            assert await node.prepare(overlap) == [""]
            both = node.allocate("b", "gpu-0-1g-5gb-5"), node.allocate("c", "gpu-0-1g-5gb-1")
            good, bad = await node.prepare(*both)
            assert (good, "team/overlap" in bad) == ("", True), "claims of one call are answered one by one"

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_claim_waits_for_the_one_before_it_to_end_and_holds_up_nobody() -> None:
    """As after `kubectl delete --force`: the scheduler takes for free what a pod has until its containers have ended."""

    async def test(node: ClaimNodeStandIn) -> None:
        before, after = node.allocate("before", "gpu-0"), node.allocate("after", "gpu-0-3g-20gb-0")
        other = node.allocate("other", "gpu-1")
        async with node.driver(patience=LONG):
            assert await node.prepare(before) == [""]
            waiting = asyncio.create_task(node.prepare(after))
            await until(lambda: reads_of(node, "after") > 1)
            assert await node.prepare(other) == [""]
            await node.unprepare(before)
            assert await patiently(waiting) == [""]
            assert {str(each.keeper) for each in node.allocations} == {"claim team/after", "claim team/other"}

    on_claim_node(test, "A100-40GB", "A100-40GB")


@isolated
def test_a_claim_that_waits_and_is_given_back_or_deleted_gets_nothing() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        before, withdrawn, deleted = (node.allocate(name, "gpu-0") for name in ("before", "withdrawn", "deleted"))
        async with node.driver(patience=LONG):
            assert await node.prepare(before) == [""]
            waiting = [asyncio.create_task(node.prepare(each)) for each in (withdrawn, deleted)]
            await until(lambda: min(reads_of(node, "withdrawn"), reads_of(node, "deleted")) > 0)
            await patiently(node.unprepare(withdrawn))
            assert "overlaps what claim team/before holds" in (await patiently(waiting[0]))[0]
            assert not waiting[1].done()
            node.delete("deleted")
            assert "was deleted" in (await patiently(waiting[1]))[0]
            await node.unprepare(before)
            assert not node.allocations
            assert await node.prepare(withdrawn) == [""], "its next pod"

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_claim_waits_for_an_api_server_that_begins_anew() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0")
        node.node.server.refusals["GET", "/a"] = (503, {"message": "shutting down"})
        async with node.driver(patience=LONG):
            waiting = asyncio.create_task(node.prepare(claim))
            await until(lambda: reads_of(node, "a") > 0)
            del node.node.server.refusals["GET", "/a"]
            assert await patiently(waiting) == [""]

    on_claim_node(test, "A100-40GB")


def reads_of(node: ClaimNodeStandIn, name: str) -> int:
    """How often the claim was asked for."""
    return sum(each.path == f"{CLAIMS}/{name}" for each in node.node.server.requests)


@isolated
def test_a_share_is_within_its_limit_before_the_container_starts() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        async with node.driver():
            one = node.allocate("one", "gpu-0-shared", consumed={"memory": "4Gi", "compute": "20", "clients": "1"})
            two = node.allocate("two", "gpu-0-shared", consumed={"memory": "6Gi", "compute": "0", "clients": "1"})
            assert await node.prepare(one, two) == ["", ""]
            (daemon,) = node.node.host.observe().gpus[0].daemons
            assert (daemon.state, daemon.limit) == (DaemonState.READY, 6 * GIB)
            answer = (await node.kubelet.prepare(one))[one.uid]
            assert answer.devices[0].share_id == "share-one"
            environment = node.specification(one)["devices"][0]["containerEdits"]["env"]
            assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M" in environment
            assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20" in environment
            assert any(word.startswith("CUDA_MPS_PIPE_DIRECTORY=") for word in environment)
            three = node.allocate("three", "gpu-0-shared", consumed={"memory": "8Gi", "compute": "0"})
            (error,) = await node.prepare(three)
            assert "but the request needs" in error
            four = node.allocate("four", "gpu-0-shared", consumed={"memory": "900Gi"})
            assert "the device has only" in (await node.prepare(four))[0]
            for number, odd in enumerate(("1500m", "-4Gi", "1")):
                claim = node.allocate(f"odd-{number}", "gpu-0-shared", consumed={"memory": odd})
                (error,) = await node.prepare(claim)
                assert "memory" in error or "whole number" in error
                assert "another share" not in error
            await node.unprepare(one, two)
            assert await node.prepare(three) == [""], "room again"

    on_claim_node(test, machine_type="g4dn.xlarge")


@isolated
def test_instances_that_somebody_else_made_or_uses_are_refused_by_name() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        host = node.node.host
        change(host, *enable(host.observe().gpus[0]))
        change(host, create(host.observe().gpus[0], "1g.5gb", 0))
        (instance,) = host.observe().gpus[0].instances
        assert instance.whole_slice is not None
        async with node.driver():
            with SimulatedMachine(node.node.machine.machine.directory).attached(instance.whole_slice.uuid):
                (error,) = await node.prepare(node.allocate("a", "gpu-0-2g-10gb-0"))
                assert "outside any claim" in error
            with host.ledger.write() as db:
                db.execute("DELETE FROM owned_instances")
            (error,) = await node.prepare(node.allocate("b", "gpu-0-2g-10gb-0"))
            assert "which Tranche did not create" in error
            assert len(host.observe().gpus[0].instances) == 1

    on_claim_node(test, "A100-40GB")


@isolated
def test_what_a_crash_left_is_found_again() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        kept, freed, fallen = (node.allocate(name, f"gpu-0-1g-5gb-{n}") for n, name in enumerate("abc"))
        host = node.node.host
        async with node.driver():
            assert await node.prepare(kept, freed, fallen) == ["", "", ""]
        # Killed between the share and its file; and the register lost.
        ClaimRegister(host).give_back(freed.uid, why="test")
        node.delete("b")
        with host.ledger.write() as db:
            (lost,) = (each for each in register.allocations(db) if str(each.keeper) == "claim team/a")
            register.remove_allocation(db, lost.id)
        async with node.driver():
            await until(lambda: node.files == ["tranche.dev-share_uid-a.json", "tranche.dev-share_uid-c.json"])
            await until(lambda: {str(each.keeper) for each in node.allocations} == {"claim team/a", "claim team/c"})
            again = next(each for each in node.allocations if str(each.keeper) == "claim team/a")
            assert again.grants == lost.grants
            (node.cdi / "tranche.dev-share_uid-a.json").unlink()
            await until(lambda: len(node.files) == 2)
            # Its pod and its claim are gone, and the kubelet says nothing.
            node.delete("c")
            reads = len(node.node.server.requests)
            await until(lambda: len(node.node.server.requests) > reads + 3)
            assert len(node.allocations) == 2, "it may be about to start"
            node.now += 60
            await until(lambda: [str(each.keeper) for each in node.allocations] == ["claim team/a"])
            await until(lambda: node.files == ["tranche.dev-share_uid-a.json"])
            # An API server that is away says nothing about anybody.
            node.node.server.refusals["GET", "/a"] = (503, {"message": "no"})
            node.now += 60
            reads = len(node.node.server.requests)
            await until(lambda: len(node.node.server.requests) > reads + 3)
            assert len(node.allocations) == 1

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_slice_with_a_process_is_kept_although_its_claim_is_gone() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0-1g-5gb-0")
        async with node.driver():
            assert await node.prepare(claim) == [""]
            (instance,) = node.node.host.observe().gpus[0].instances
            assert instance.whole_slice is not None
            with SimulatedMachine(node.node.machine.machine.directory).attached(instance.whole_slice.uuid):
                node.delete("a")
                await _looked_after(node)
                assert len(node.allocations) == 1
            await until(partial(_later_and_free, node))

    on_claim_node(test, "A100-40GB")


async def _looked_after(node: ClaimNodeStandIn, times: int = 4) -> None:
    """Return when claims were looked after so often, a minute after another."""
    for _ in range(times):
        node.now += 60
        asked = node.node.kubelet.reads
        await until(lambda asked=asked: node.node.kubelet.reads > asked + 1)  # type: ignore[misc]


@isolated
def test_a_pod_keeps_what_its_claim_was_given_whatever_becomes_of_claim_environment_and_agent() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0-1g-5gb-0")
        async with node.driver():
            assert await node.prepare(claim) == [""]
            process = node.process(71, "pod-a")  # as `env -i` leaves it: nothing names the claim
            node.delete("a")
            await _looked_after(node)
            assert len(node.allocations) == 1, "its pod runs"
        async with node.driver():  # which knows of the pod by the register alone
            await _looked_after(node)
            assert len(node.allocations) == 1
            other = node.allocate("b", "gpu-0-1g-5gb-0")
            assert "overlaps what claim team/a holds" in (await node.prepare(other))[0]
            shutil.rmtree(process)
            await until(partial(_later_and_free, node))
            assert await node.prepare(other) == [""]

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_claim_that_the_kubelet_lists_or_whose_kubelet_is_silent_is_kept() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim, kubelet = node.allocate("a", "gpu-0-1g-5gb-0"), node.node.kubelet
        async with node.driver():
            assert await node.prepare(claim) == [""]
            kubelet.by_claims = frozenset({"tranche.dev/share=uid-a-0", "nvidia.com/gpu=0"})
            node.delete("a")
            await _looked_after(node)
            assert len(node.allocations) == 1
            kubelet.by_claims, kubelet.failing = frozenset(), True
            await _looked_after(node)
            assert len(node.allocations) == 1
            kubelet.failing = False
            await until(partial(_later_and_free, node))

    on_claim_node(test, "A100-40GB")


@isolated
def test_each_pod_that_comes_to_use_a_shared_claim_keeps_it() -> None:
    """The kubelet asks for a claim once: of the second pod nobody tells the driver."""

    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0-1g-5gb-0")
        pods: LatestValue[tuple[KubePod, ...]] = LatestValue()
        pods.publish(())
        node.node.services = replace(node.node.services, node_pods=pods)
        async with node.driver(care_seconds=3600):
            assert await node.prepare(claim) == [""]
            second = KubePod(PodRef("team", "second"), "pod-second", claims=frozenset({"a"}))
            pods.publish((second, KubePod(PodRef("team", "third"), "pod-third", claims=frozenset({"b"}))))
            await until(lambda: _pods_of(node) == ("pod-a", "pod-second"))
        # Both are deleted by force, so that nobody but the kernel knows of them.
        pods.publish(())
        process = node.process(72, "pod-second")
        node.delete("a")
        async with node.driver():
            await _looked_after(node)
            assert len(node.allocations) == 1
            shutil.rmtree(process)
            await until(partial(_later_and_free, node))

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_claim_that_is_reserved_for_more_than_pods_is_kept_while_a_pod_runs_that_may_use_it() -> None:
    """A group's claim names the group: which pods it has, nobody says, and its uid is no pod's."""
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    likeness = {"apiGroup": "example.com", "resource": "pods", "name": "odd", "uid": "uid-odd"}
    pod = {"resource": "pods", "name": "p", "uid": "pod-p"}

    async def test(node: ClaimNodeStandIn) -> None:
        claims = [
            node.allocate(f"c{number}", f"gpu-0-1g-5gb-{number}", users=users)
            for number, users in enumerate(([group], [pod, group], [likeness], [pod]))
        ]
        async with node.driver():
            assert await node.prepare(*claims) == [""] * 4
            keepers = [each.keeper for each in node.allocations]
            assert [each.pods for each in keepers if isinstance(each, ClaimKeeper)] == [(), ("pod-p",), (), ("pod-p",)]
        process = node.process(73, "pod-of-the-group")  # its pod was deleted by force: the API server knows it no more
        for claim in claims:
            node.delete(claim.name)
        async with node.driver():
            await until(partial(_later_and_free, node, but=3))
            await _looked_after(node)
            names = [each.keeper.name for each in node.allocations if isinstance(each.keeper, ClaimKeeper)]
            assert names == ["c0", "c1", "c2"], "only the one whose pods are all known is over"
            shutil.rmtree(process)
            await until(partial(_later_and_free, node))

    on_claim_node(test, "A100-40GB")


@isolated
def test_after_a_reboot_two_claims_that_were_given_each_others_slices_end_their_wait_by_themselves() -> None:
    """Both pods are there, and the kubelet remembers both claims: the API server's word decides who has what."""

    async def test(node: ClaimNodeStandIn) -> None:
        devices = {"a": "gpu-0-1g-5gb-0", "b": "gpu-0-1g-5gb-1", "kept": "gpu-0-1g-5gb-2", "over": "gpu-0-1g-5gb-3"}
        claims = {name: node.allocate(name, device) for name, device in devices.items()}
        pods: LatestValue[tuple[KubePod, ...]] = LatestValue()
        pods.publish(tuple(KubePod(PodRef("team", name), f"pod-{name}", claims=frozenset({name})) for name in devices))
        node.node.services = replace(node.node.services, node_pods=pods)
        node.node.kubelet.by_claims = frozenset(f"tranche.dev/share=uid-{name}-0" for name in devices)
        async with node.driver():
            assert await node.prepare(*claims.values()) == [""] * 4
            node.allocate("a", devices["b"])
            node.allocate("b", devices["a"])
            node.delete("over")
            await _looked_after(node)
            assert len(node.allocations) == 4, "their pods run"
        _reboot(node)
        async with node.driver():
            refused = await node.prepare(claims["a"])
            assert "overlaps what claim team/b holds" in refused[0]
            await until(partial(_later_and_free, node, but=1))
            kept = [str(each.keeper) for each in node.allocations]
            assert kept == ["claim team/kept"], "the API server says that it has it"
            assert await node.prepare(claims["a"], claims["b"], claims["kept"]) == [""] * 3
            node.delete("a")
            await _looked_after(node)
            assert len(node.allocations) == 3, "it was prepared in this start of the machine"

    on_claim_node(test, "A100-40GB")


def _reboot(node: ClaimNodeStandIn) -> None:
    """As far as the register knows."""
    with node.node.host.ledger.write() as db:
        for each in register.allocations(db):
            assert isinstance(each.keeper, ClaimKeeper)
            assert each.keeper.boot == boot_id()
            register.set_keeper(db, each.id, replace(each.keeper, boot="an earlier start"))


def _pods_of(node: ClaimNodeStandIn) -> tuple[str, ...]:
    (held,) = node.allocations
    assert isinstance(held.keeper, ClaimKeeper)
    return held.keeper.pods


@isolated
def test_a_claim_that_was_deleted_under_its_pod_is_told_as_soon_as_another_meets_it_and_that_one_starts_by_itself() -> (
    None
):
    async def test(node: ClaimNodeStandIn) -> None:
        stands, deleted = node.allocate("stands", "gpu-0-1g-5gb-1"), node.allocate("deleted", "gpu-0-1g-5gb-0")
        async with node.driver(care_seconds=3600):
            assert await node.prepare(stands, deleted) == ["", ""]
            processes = [node.process(pid, f"pod-{name}") for pid, name in enumerate(("stands", "deleted"), 71)]
            await until(lambda: node.node.services.fallen.synced)
            assert node.node.services.fallen.value == frozenset()
            node.delete("deleted")
            late = node.allocate("late", "gpu-0-2g-10gb-0")
            (error,) = await node.prepare(late)
            assert "the pod starts when that share is free; to place it elsewhere now, recreate the pod" in error
            await until(lambda: node.node.services.fallen.value == {"uid-deleted"})
            await node.unprepare(stands)
            shutil.rmtree(processes[0])
        async with node.driver():
            shutil.rmtree(processes[1])
            await until(partial(_later_and_free, node))
            await until(lambda: node.node.services.fallen.value == frozenset())
            assert await node.prepare(late) == [""]

    on_claim_node(test, "A100-40GB")


@isolated
def test_every_claim_has_its_turn_to_be_asked_about() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claims = [node.allocate(f"c{number}", f"gpu-{number // 7}-1g-5gb-{number % 7}") for number in range(21)]
        async with node.driver():
            assert await node.prepare(*claims) == [""] * 21
            for number in range(21):
                node.process(100 + number, f"pod-c{number}")
            await until(lambda: node.node.services.fallen.synced)
            for name in ("c0", "c10", "c20"):
                node.delete(name)
            await until(lambda: node.node.services.fallen.value == {"uid-c0", "uid-c10", "uid-c20"})
            assert len(node.allocations) == 21

    on_claim_node(test, "A100-40GB", "A100-40GB", "A100-40GB")


ANY = ({"operator": "Exists"},)
RESERVED = ({"key": "tranche.dev/reserved", "operator": "Exists", "effect": "NoSchedule"},)


@isolated
def test_a_claim_that_tolerates_every_taint_is_given_nothing_that_the_administrator_does_not_offer() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        host, changes = node.node.host, node.node.machine.machine.total_change_calls
        slice_, part = (
            node.allocate("slice", "gpu-0-1g-5gb-0", tolerations=ANY),
            node.allocate("part", "gpu-0-shared", consumed={"memory": "4Gi"}, tolerations=ANY),
        )
        held = node.allocate("held", "gpu-1-1g-5gb-0")
        async with node.driver():
            assert await node.prepare(held) == [""]
            before = changes()
            for mode, refused, given in (
                ("dynamic", part, "which offers no parts of devices to claims"),
                ("shared", slice_, "which offers no slices to claims"),
                ("static", slice_, "the node is in mode static, which offers nothing to claims"),
                ("off", part, "the node is in mode off, which offers nothing to claims"),
            ):
                await node.set_mode(mode)
                (error,) = await node.prepare(refused)
                assert error.startswith("NotOffered: gpu-0")
                assert given in error
                assert "delete the pod" in error
                assert await node.prepare(held) == [""], "what was prepared before runs on"
            await node.set_mode("mixed")
            gpu = host.observe().gpus[0]
            change_policy(host, lambda policy: policy.with_sharing((), GpuPolicy.OFF))
            for claim in (slice_, part):
                assert "the GPU's policy is sharing=off" in (await node.prepare(claim))[0]
            change_policy(host, lambda policy: policy.with_sharing((), None))
            cordon(host, gpu, user="ada", reason="fan", clock=float)
            assert "cordoned by ada: fan" in (await node.prepare(slice_))[0]
            uncordon(host, gpu, user="ada", clock=float)
            assert changes() == before
            assert [str(each.keeper) for each in node.allocations] == ["claim team/held"]
            assert await node.prepare(slice_) == [""], "once it is offered"

    on_claim_node(test, "A100-40GB", "A100-40GB")


@isolated
def test_room_that_is_kept_is_not_for_whom_tolerates_the_taint_and_is_for_whom_came_before_it() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        sneaky = [
            node.allocate(f"s{number}", "gpu-0-1g-5gb-0", tolerations=each)
            for number, each in enumerate((ANY, RESERVED))
        ]
        other = [{"key": "example.com/other", "operator": "Exists"}, {"key": "tranche.dev/reserved", "value": "x"}]
        early, late = (
            node.allocate("early", "gpu-0-1g-5gb-0", tolerations=other),
            node.allocate("late", "gpu-0-1g-5gb-1", tolerations=ANY),
        )
        node.node.annotate({"tranche.dev/keep": "2g.10gb=1"})
        node.node.services.reserved.publish(frozenset({"gpu-0-1g-5gb-0"}))
        await until(lambda: bool(node.node.services.node.value and node.node.services.node.value.annotations))
        async with node.driver():
            for error in await node.prepare(*sneaky):
                assert "gpu-0-1g-5gb-0 is unavailable: it is reserved for larger requests" in error
            assert not node.allocations
            assert await node.prepare(early, late) == ["", ""]

    on_claim_node(test, "A100-40GB")


@isolated
def test_what_has_reported_an_error_is_given_to_nobody_until_it_is_well() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        listening = asyncio.create_task(node.node.services.gpu_events.run())
        try:
            async with node.driver(), node.kubelet.health() as reports:
                await patiently(anext(reports))
                await until(lambda: node.node.services.gpu_events.ready().ready)
                node.node.machine.machine.inject_xid(0, 79)
                async for report in reports:
                    if {each.device.device_name for each in report.devices if each.health == 2} >= {"gpu-0"}:
                        break
                claim = node.allocate("a", "gpu-0-1g-5gb-0", tolerations=ANY)
                assert "it reported an error (XID 79)" in (await node.prepare(claim))[0]
                node.node.now += QUIET_SECONDS + 1
                async for report in reports:
                    if all(each.health == 1 for each in report.devices):
                        break
                assert await node.prepare(claim) == [""]
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_wall_clock_that_leaps_frees_nobody_and_forgets_nothing() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        early, late = node.allocate("early", "gpu-0-1g-5gb-0"), node.allocate("late", "gpu-0-1g-5gb-1")
        host, requests = node.node.host, node.node.server.requests
        async with node.driver():
            for claim, year in ((early, 2040), (late, 1990)):
                host.clock = partial(float, (year - 1970) * 31_556_952)
                assert await node.prepare(claim) == [""]
                requests.clear()
                # Whoever looks after claims has looked, more than once.
                await until(lambda: len(requests) > 6)
            assert [len(node.allocations), len(node.files)] == [2, 2]
            assert await node.prepare(early, late) == ["", ""], "asked again, it is the same"
            await node.unprepare(early, late)
            assert [len(node.allocations), len(node.files)] == [0, 0]

    on_claim_node(test, "A100-40GB")


def _later_and_free(node: ClaimNodeStandIn, but: int = 0) -> bool:
    """Whether no more than so many claims have something, a minute after the last look."""
    node.now += 60
    return len(node.allocations) <= but


@isolated
def test_a_claim_on_a_gpu_that_was_lost_before_the_agent_began_is_kept() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-1")
        async with node.driver():
            assert await node.prepare(claim) == [""]
        node.node.machine.machine.inject_lost(1)
        await node.node.inventory.refresh()
        async with node.driver():
            await _looked_after(node)
            assert len(node.allocations) == 1
            node.node.machine.machine.inject_lost(1, lost=False)
            await node.node.inventory.refresh()
            node.delete("a")
            await until(partial(_later_and_free, node))

    on_claim_node(test, "A100-40GB", "A100-40GB")


@isolated
def test_the_kubelet_finds_the_driver_again_and_no_dead_one() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        sockets = PluginSocketFiles(node.kubelet.folder, "pod-0")
        for path in (sockets.plugin, sockets.registration):
            path.parent.mkdir(parents=True)
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        other = sockets.registration.with_name("other.example.com-reg.sock")
        other.touch()
        async with node.driver("pod-1"):
            pass
        assert other.exists(), "another driver's is not touched"
        assert not node.kubelet.sockets
        claim = node.allocate("a", "gpu-0")
        async with node.driver("pod-2") as driver:
            assert [path.name for path in node.kubelet.sockets] == ["gpu.tranche.dev-pod-2-reg.sock"]
            await node.kubelet.register(error="not this one")
            assert "not this one" in driver.ready().why
            shutil.rmtree(node.kubelet.folder)
            await until(lambda: "the kubelet has not registered the DRA driver yet" in driver.ready().why)
            await node.kubelet.register()
            assert driver.ready().ready
            assert await node.prepare(claim) == [""]

    on_claim_node(test, "A100-40GB")


@isolated
def test_a_kubelet_that_begins_anew_has_its_answer_while_the_agent_is_busy() -> None:
    """It waits one second for it, and fails the pods that it syncs before it has one."""

    async def test(node: ClaimNodeStandIn) -> None:
        async with node.driver():
            (registration,) = node.kubelet.sockets
            found: list[str] = []

            def ask() -> None:
                with grpc.insecure_channel(f"unix:{registration}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
                    info = channel.unary_unary(
                        "/pluginregistration.Registration/GetInfo",
                        request_serializer=pb.InfoRequest.SerializeToString,
                        response_deserializer=pb.PluginInfo.FromString,
                    )
                    found.append(info(pb.InfoRequest(), timeout=PATIENCE_SECONDS, wait_for_ready=True).name)

            asking = Thread(target=ask)
            asking.start()
            asking.join(PATIENCE_SECONDS)  # nothing runs on the event loop meanwhile
            assert found == ["gpu.tranche.dev"]

    on_claim_node(test, "A100-40GB")


def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match="longer than the limit of 107"):
        PluginSocketFiles(tmp_path / ("x" * 60), "00000000-0000-0000-0000-000000000000").make_room()


@isolated
def test_the_kubelet_hears_of_a_lost_gpu_and_claims_on_it_are_refused() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        async with node.driver(), node.kubelet.health() as reports:
            first = await patiently(anext(reports))
            assert {each.health for each in first.devices} == {1}
            assert {each.device.pool_name for each in first.devices} == {"n1"}
            node.node.machine.machine.inject_lost(1)
            node.node.inventory.poke()
            second = await patiently(anext(reports))
            sick = {each.device.device_name for each in second.devices if each.health == 2}
            assert "gpu-1" in sick
            assert not any(name.startswith("gpu-0") for name in sick)
            (error,) = await node.prepare(node.allocate("a", "gpu-1"))
            assert "GPU 1: the driver has lost it" in error

    on_claim_node(test, "A100-40GB", "A100-40GB")


@isolated
def test_the_kubelet_hears_of_a_faulty_slice_and_of_its_recovery() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0-2g-10gb-0")
        listening = asyncio.create_task(node.node.services.gpu_events.run())
        try:
            async with node.driver(), node.kubelet.health() as reports:
                assert await node.prepare(claim) == [""]

                async def told(sick: set[str]) -> dict[str, str]:
                    """The messages about all that is not well, once just that is so of these devices."""
                    async for report in reports:
                        found = {each.device.device_name: each.message for each in report.devices if each.health != 1}
                        if found.keys() & {"gpu-0", "gpu-0-2g-10gb-0", "gpu-0-1g-5gb-6", "gpu-1"} == sick:
                            return found
                    raise AssertionError("the stream ended")

                await patiently(told(set()))
                await until(lambda: node.node.services.gpu_events.ready().ready)
                (instance,) = node.node.host.observe().gpus[0].instances

                async def keep(act: Callable[[], None]) -> None:
                    while True:
                        act()
                        await asyncio.sleep(0.5)

                def pass_time() -> None:
                    node.node.now += QUIET_SECONDS + 1

                # Again and again: the driver is listened to anew once the claim has put the GPU into MIG mode.
                strike = partial(node.node.machine.machine.inject_xid, 0, 94, gpu_instance_id=instance.id)
                for act, sick in ((strike, {"gpu-0", "gpu-0-2g-10gb-0"}), (pass_time, set[str]())):
                    acting = asyncio.create_task(keep(act))
                    found = await patiently(told(sick))
                    acting.cancel()
                    assert found.get("gpu-0-2g-10gb-0") == ("the driver reported XID 94" if sick else None)
                await node.unprepare(claim)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    on_claim_node(test, "A100-40GB", "A100-40GB")


@isolated
def test_after_a_change_to_gates_the_kubelet_is_served_until_no_claim_is_left() -> None:
    async def test(node: ClaimNodeStandIn) -> None:
        claim = node.allocate("a", "gpu-0-1g-5gb-3")
        async with node.driver():
            assert await node.prepare(claim) == [""]
        # The chart's new word starts the agent anew.
        backend: LatestValue[AllocationBackend] = LatestValue()
        backend.publish(AllocationBackend.GATES)
        source = ConfigSource(
            StartSettings(), node.node.services.api, "tranche", LatestValue(), driver_obstacle=lambda config: ""
        )
        source.latest.publish(PluginConfig())
        services = replace(node.node.services, backend=backend)
        inside = ClaimDriver(
            services,
            kubelet_folder=node.kubelet.folder,
            instance="pod-2",
            cdi_folder=node.cdi,
            files=source.files,
            configured=source.latest.first,
        )
        # The last answer goes out within two looks, on a busy machine too.
        driver = with_claims(services, inside, inside.run, look_seconds=0.5)
        running = asyncio.create_task(driver.run())
        await node.kubelet.register()
        assert driver.ready().ready
        await node.unprepare(claim)
        assert not node.allocations
        await until(lambda: not node.kubelet.sockets)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    on_claim_node(test, "A100-40GB")
