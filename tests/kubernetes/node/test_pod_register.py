"""Pods in the ledger of a simulated machine: beside commands, plans, restarts of the kubelet and a lost state folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kubernetes.kubelet_stand_in import Kubelet
from tests.node.machines import Node, change, create, destroy, enable, node_of
from tranche.core.allocation import FractionalShare, Grant, NodeView, Slice, WholeGpu
from tranche.core.errors import GpuBusy, KubeletUnavailable, KubernetesUnavailable, NoRoom
from tranche.core.grid import Placement
from tranche.core.keeper import ADMISSION_SECONDS, SETTLED_SECONDS, PodKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import parse_request
from tranche.core.sharing import Sharing
from tranche.kubernetes.api.decoding import decode_pod
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.device_plugin.announcements import announced_of_register
from tranche.kubernetes.device_plugin.offers import held_otherwise
from tranche.kubernetes.node.pod_register import PodRegister
from tranche.kubernetes.node.pod_settlement import HeldGrants
from tranche.local.queue import Queue
from tranche.node.health.checkup import check_pods, forgotten_pods
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.planning.steps.plan import Plan

ONE, TWO, GPU = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/gpu"
POD = PodRef("ns", "a")


@dataclass
class Scene:
    """One A100 in seven slices, its register, a kubelet, an API server's pods (None: it does not answer), and a clock."""

    host: Host
    machine: Node
    kubelet: Kubelet = field(default_factory=Kubelet)
    pods: list[KubePod] | None = field(default_factory=list)
    now: float = 0.0
    living: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.register = PodRegister(
            self.host, self.kubelet, self._ask, clock=lambda: self.now, living=lambda uids: dict(self.living)
        )

    async def _ask(self) -> Sequence[KubePod]:
        if self.pods is None:
            raise KubernetesUnavailable("away")
        return tuple(self.pods)

    def slot(self, start: int) -> Slice:
        return Slice(self.host.driver.observe().gpus[0].uuid, parse_profile("1g.5gb"), Placement(start, 1))

    def uuid(self, start: int) -> str:
        instance = self.host.driver.observe().gpus[0].instance_at(Placement(start, 1))
        assert instance is not None
        return instance.compute_instances[0].uuid

    def run_pod(self, name: str, start: int, resource: str = ONE) -> PodRef:
        """A pod that runs with that slice, listed by kubelet and API server."""
        ref = PodRef("ns", name)
        self.kubelet.resources[self.uuid(start)] = resource
        self.kubelet.holders[self.uuid(start)] = ref
        assert self.pods is not None
        self.pods.append(KubePod(ref, f"uid-{name}", resources=frozenset({resource})))
        return ref

    async def held(self) -> dict[Grant, str]:
        return {grant: str(each.keeper) for each in (await self.register.look()).allocations for grant in each.grants}


def play(folder: Path, scenario: Callable[[Scene], Coroutine[None, None, None]], *boards: str) -> None:
    """On a machine whose first GPU is cut into seven; one GPU unless the test says more."""
    node = node_of(folder, *(boards or ("A100-40GB",)))
    with node.host() as host:
        gpu = host.driver.observe().gpus[0]
        change(host, *enable(gpu), *(create(gpu, "1g.5gb", start) for start in range(7)))
        asyncio.run(scenario(Scene(host, node)))


def take(host: Host) -> HeldAllocation:
    """A slice for a command, without waiting."""
    request = parse_request(mig_profile="1g.5gb")
    return Queue(host).acquire(request, command="train.py", pid=1, patience=WaitLimit(False, None))


def test_a_command_is_not_given_what_a_pod_holds_nor_a_pod_what_a_command_holds(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        for start in range(6):
            scene.run_pod(f"pod-{start}", start)
        await scene.register.look()
        held = take(scene.host)
        assert held.allocation.grants == (scene.slot(6),)
        with pytest.raises(NoRoom):
            take(scene.host)
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(ONE, HeldGrants((scene.slot(6),)))
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(GPU, HeldGrants((WholeGpu(scene.slot(6).gpu_uuid),)))
        assert len(await scene.held()) == 7

    play(tmp_path, scenario)


def test_what_is_handed_over_is_held_before_the_kubelet_lists_it(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))
        assert await scene.held() == {scene.slot(0): "a pod that is being admitted"}
        gpu = scene.host.driver.observe().gpus[0]
        with pytest.raises(GpuBusy):
            change(scene.host, destroy(gpu, "1g.5gb", 0))
        scene.run_pod("a", 0)
        (allocation,) = (await scene.register.look()).allocations
        assert allocation.keeper == PodKeeper(ONE, "ns", "a", "main", "uid-a", scene.kubelet.run())
        scene.kubelet.holders.clear()
        assert await scene.held() == {}

    play(tmp_path, scenario)


def test_the_kubelet_is_not_asked_for_its_list_while_it_gives_a_device_away(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        order: list[str] = []
        scene.kubelet.asked = lambda: order.append("asked")
        hand_over = asyncio.create_task(scene.register.hand_over(ONE, HeldGrants((scene.slot(0),))))
        await asyncio.sleep(0)
        look = asyncio.create_task(scene.register.look())
        await hand_over
        order.append("answered")
        await look
        assert order == ["answered", "asked"]

    play(tmp_path, scenario)


def test_an_admission_that_failed_is_forgotten_after_a_while(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))
        await scene.register.look()
        scene.now = ADMISSION_SECONDS - 1
        assert await scene.held()
        scene.now = ADMISSION_SECONDS + 1
        assert not await scene.held()

    play(tmp_path, scenario)


def test_the_kubelet_may_give_anew_what_it_took_back_and_nobody_else_may(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))  # the first admission failed
        assert len((await scene.register.look()).allocations) == 1
        scene.run_pod("a", 1)
        await scene.register.look()
        scene.kubelet.holders.pop(scene.uuid(1))  # it ended, and its successor gets the slice before anybody looked
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(1),)))
        scene.run_pod("b", 2)
        await scene.register.look()
        scene.kubelet.restart()  # it has lost its checkpoint, and gives away what a pod still has
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(ONE, HeldGrants((scene.slot(2),)))
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(GPU, HeldGrants((scene.slot(2),)))

    play(tmp_path, scenario)


def test_nobody_is_given_what_processes_of_a_pod_use_that_was_deleted_by_force(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.run_pod("a", 0)
        before = await scene.held()
        scene.living["uid-a"] = {scene.uuid(0)}
        scene.kubelet.holders.clear()  # it forgets the pod at once, and ends its containers a while later
        scene.pods = []
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))
        assert await scene.held() == before
        (allocation,) = (await scene.register.look()).allocations
        assert held_otherwise(scene.slot(0), ONE, [allocation]) is allocation
        gpu = scene.host.driver.observe().gpus[0]
        with pytest.raises(GpuBusy, match="held by allocation"):
            change(scene.host, destroy(gpu, "1g.5gb", 0))
        scene.living.clear()
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))

    play(tmp_path, scenario)


def test_a_container_of_the_pod_may_have_the_device_of_its_init_container(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register.hand_over(
            ONE, HeldGrants((scene.slot(0),))
        )  # an init container's, which the kubelet does not list
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))
        scene.run_pod("a", 0)
        assert await scene.held() == {scene.slot(0): "pod ns/a"}

    play(tmp_path, scenario)


def test_a_kubelet_that_gives_away_what_it_lists_with_a_pod_is_refused(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))
        scene.run_pod("a", 0)
        with pytest.raises(GpuBusy, match="the kubelet lists it with pod ns/a"):
            await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))  # 40 ms later, before anybody has looked
        assert await scene.held() == {scene.slot(0): "pod ns/a"}
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(1),)))
        scene.kubelet.holders.pop(scene.uuid(0))
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))

    play(tmp_path, scenario)


def test_a_restarted_kubelet_that_lists_nothing_frees_nothing(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.run_pod("a", 0)
        before = await scene.held()
        listed = scene.kubelet.restart()
        for scene.now in (0.0, 10.0, 100.0):
            assert await scene.held() == before
        gpu = scene.host.driver.observe().gpus[0]
        with pytest.raises(GpuBusy, match="held by allocation"):
            change(scene.host, destroy(gpu, "1g.5gb", 0))
        scene.pods = None
        assert await scene.held() == before, "nobody can be asked"
        scene.kubelet.holders |= listed
        assert await scene.held() == before
        scene.kubelet.restart()
        scene.pods = []
        assert await scene.held() == before, "deleted while the kubelet was away: its containers may still run"
        scene.now += SETTLED_SECONDS
        assert await scene.held() == {}

    play(tmp_path, scenario)


def test_a_container_that_starts_after_a_lost_checkpoint_has_its_new_device_alone(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.run_pod("a", 0)
        await scene.held()
        scene.kubelet.restart()  # without its checkpoint; the container starts after that
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(1),)))
        scene.kubelet.resources[scene.uuid(1)] = ONE
        scene.kubelet.holders[scene.uuid(1)] = POD
        both = {scene.slot(0): "pod ns/a", scene.slot(1): "pod ns/a"}
        assert await scene.held() == both, "it may run with the first"
        scene.living["uid-a"] = {scene.uuid(1)}
        assert await scene.held() == {scene.slot(1): "pod ns/a"}
        await scene.register.hand_over(ONE, HeldGrants((scene.slot(0),)))

    play(tmp_path, scenario)


def test_pods_that_a_kubelet_has_forgotten_are_named_until_it_lists_them(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        async def named() -> tuple[list[str], list[str]]:
            view = await scene.register.look()
            findings = [each.text for each in check_pods(view.allocations)]
            events = [each.message for each in announced_of_register(view).values()]
            return findings, events

        scene.run_pod("a", 0)
        scene.run_pod("b", 1)
        assert await named() == ([], [])
        listed = scene.kubelet.restart()
        scene.living["uid-a"] = {scene.uuid(0)}
        assert await named() == ([], []), "it may find them yet"
        scene.now += SETTLED_SECONDS
        (finding,), (event,) = await named()
        assert finding.endswith("its next restart will end running pods: ns/a, ns/b")
        assert "ns/a, ns/b; let them end, or delete them" in event
        scene.kubelet.holders |= listed
        assert await named() == ([], [])

    play(tmp_path, scenario)


def test_what_is_over_or_given_anew_is_no_pod_that_the_kubelet_has_forgotten(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.run_pod("a", 0)
        scene.run_pod("b", 1)
        await scene.held()
        scene.kubelet.restart()
        scene.living = {"uid-a": {scene.uuid(0)}, "uid-b": {scene.uuid(1)}}
        assert scene.pods is not None
        scene.pods = [each for each in scene.pods if each.ref != POD]  # deleted by force meanwhile
        scene.kubelet.resources[scene.uuid(2)] = ONE
        scene.kubelet.holders[scene.uuid(2)] = PodRef("ns", "b")
        for scene.now in (0.0, SETTLED_SECONDS, 2 * SETTLED_SECONDS):
            assert not forgotten_pods((await scene.register.look()).allocations)

    play(tmp_path, scenario)


def test_a_kubelet_that_does_not_answer_changes_nothing(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.run_pod("a", 0)
        await scene.register.look()
        scene.kubelet.failing = True
        with pytest.raises(KubeletUnavailable):
            await scene.register.look()
        assert [str(each.keeper) for each in scene.host.view().allocations] == ["pod ns/a"]

    play(tmp_path, scenario)


def test_after_the_state_folder_is_lost_the_register_is_made_anew_from_what_kubelet_and_api_server_say(
    tmp_path: Path,
) -> None:
    async def look(node: Node, before: Scene) -> tuple[Scene, NodeView]:
        with node.host() as host:
            scene = Scene(host, node, before.kubelet, before.pods)
            return scene, await scene.register.look()

    async def scenario(scene: Scene) -> None:
        scene.run_pod("a", 0)
        scene.run_pod("b", 3)
        first = await scene.held()
        scene.host.close()
        shutil.rmtree(scene.host.places.state_dir)
        again, view = await look(scene.machine, scene)
        assert {grant: str(each.keeper) for each in view.allocations for grant in each.grants} == first
        # Now the kubelet has started as well, and does not know its pods yet: each slice may be one of theirs.
        shutil.rmtree(again.host.places.state_dir)
        listed = again.kubelet.restart()
        again, view = await look(scene.machine, again)
        assert {grant for each in view.allocations for grant in each.grants} == {
            scene.slot(start) for start in range(7)
        }
        again.kubelet.holders |= listed
        _, view = await look(scene.machine, again)
        assert {grant: str(each.keeper) for each in view.allocations for grant in each.grants} == first

    play(tmp_path, scenario)


def by_resource(name: str, *, claimed: str, count: int = 1) -> KubePod:
    """A running pod of two containers that ask for a slice each by its resource; the container `claimed` has its by a claim."""
    limits = {"resources": {"limits": {ONE: str(count), "cpu": "1"}}}
    return decode_pod(
        {
            "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
            "spec": {"containers": [{"name": "main", **limits}, {"name": "side", **limits}]},
            "status": {
                "phase": "Running",
                "extendedResourceClaimStatus": {
                    "resourceClaimName": f"{name}-extended-resources-x",
                    "requestMappings": [
                        {"containerName": each, "resourceName": ONE, "requestName": "container-0-request-0"}
                        for each in claimed.split()
                    ],
                },
            },
        }
    )


def test_a_pod_whose_claim_serves_its_extended_resource_has_nothing_of_the_device_plugins(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.pods = [by_resource("a", claimed="main side"), by_resource("b", claimed="", count=0)]
        assert await scene.held() == {}, "an agent that has just started takes neither for a pod with unknown slices"
        scene.kubelet.restart()
        assert await scene.held() == {}
        scene.pods = [by_resource("c", claimed="main")]
        scene.kubelet.restart()
        assert set((await scene.held()).values()) == {"pod ns/c"}, "the slice of its other container is not known"

    play(tmp_path, scenario)


def test_a_device_that_a_plan_takes_away_is_handed_to_nobody(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        refused: list[bool] = []

        def hand_over_now() -> None:
            try:
                asyncio.run(scene.register.hand_over(ONE, HeldGrants((scene.slot(0),))))
            except GpuBusy:
                refused.append(True)

        gpu = scene.host.driver.observe().gpus[0]
        await asyncio.to_thread(
            scene.host.change,
            lambda view: Plan("test", (destroy(gpu, "1g.5gb", 0),)),
            progress=lambda gpu, step: hand_over_now(),
        )
        assert refused == [True]
        assert await scene.held() == {}

    play(tmp_path, scenario)


def test_two_who_say_that_they_have_one_device_are_told_and_the_first_keeps_it(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        held = take(scene.host)
        (grant,) = held.allocation.grants
        assert grant.slot is not None
        scene.run_pod("a", grant.slot.placement.start)
        view = await scene.register.look()
        assert [each.id for each in view.allocations] == [held.allocation.id]
        assert [each.name for each in scene.host.events(last=1)] == ["HeldTwice"]

    play(tmp_path, scenario)


def quarter(scene: Scene, *numbers: int) -> HeldGrants:
    """So many of four replicas of the machine's second GPU."""
    gpu = scene.host.driver.observe().gpus[1]
    device = WholeGpu(gpu.uuid)
    part = FractionalShare(device, len(numbers) * (gpu.memory // 4), Sharing.TIME_SLICING)
    return HeldGrants((part,), tuple(f"{gpu.uuid}::{number}" for number in numbers), {device: gpu.memory})


def test_several_pods_hold_parts_of_one_gpu_that_nobody_else_gets(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        gpu = scene.host.driver.observe().gpus[1]
        await scene.register.hand_over(GPU, quarter(scene, 0))
        await scene.register.hand_over(GPU, quarter(scene, 1, 2))
        assert len((await scene.register.look()).allocations) == 2
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(GPU, HeldGrants((WholeGpu(gpu.uuid),)))
        with pytest.raises(NoRoom):
            Queue(scene.host).acquire(
                parse_request(gpus="2"), command="train.py", pid=1, patience=WaitLimit(False, None)
            )
        with pytest.raises(GpuBusy):
            change(scene.host, *enable(gpu))
        scene.kubelet.holders = {replica: PodRef("ns", "a") for replica in quarter(scene, 1, 2).replicas}
        scene.pods = [KubePod(PodRef("ns", "a"), "uid-a", resources=frozenset({GPU}))]
        scene.now = ADMISSION_SECONDS + 1
        (left,) = (await scene.register.look()).allocations
        assert left.grants == quarter(scene, 1, 2).grants
        run, replicas = scene.kubelet.run(), quarter(scene, 1, 2).replicas
        assert left.keeper == PodKeeper(GPU, "ns", "a", "main", "uid-a", run, replicas=replicas)

    play(tmp_path, scenario, "A100-40GB", "A100-40GB")


def test_a_replica_is_no_two_pods(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.register.hand_over(GPU, quarter(scene, 0))
        await scene.register.hand_over(GPU, quarter(scene, 0))  # the first admission failed
        assert len((await scene.register.look()).allocations) == 1
        (replica,) = quarter(scene, 0).replicas
        scene.kubelet.holders[replica] = PodRef("ns", "a")
        with pytest.raises(GpuBusy, match="the kubelet lists it with pod ns/a"):
            await scene.register.hand_over(GPU, quarter(scene, 0))
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(f"{GPU}.shared", quarter(scene, 0, 1))
        await scene.register.hand_over(GPU, quarter(scene, 1))
        assert len((await scene.register.look()).allocations) == 2

    play(tmp_path, scenario, "A100-40GB", "A100-40GB")


def test_replicas_are_no_more_than_the_gpu_and_taken_of_none_that_a_command_has(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        Queue(scene.host).acquire(parse_request(gpus="1"), command="train.py", pid=1, patience=WaitLimit(False, None))
        with pytest.raises(GpuBusy):
            await scene.register.hand_over(GPU, quarter(scene, 0))

    play(tmp_path, scenario, "A100-40GB", "A100-40GB")
