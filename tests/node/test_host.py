"""The host: what is promised is nobody else's, declared changes exclude each other, saved plans know their state."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.node.machines import Node, change, create, cuts_of, destroy, enable, node_of, start_share
from tests.node.processes import Child, isolated
from tranche.core.allocation import NodeView
from tranche.core.errors import AllocationUnknown, GpuBusy, HardwareError, StateMoved
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.core.state import GpuState
from tranche.node.held import HeldAllocation, QueuePlace
from tranche.node.host import Host
from tranche.node.locks.locks import is_held
from tranche.planning.decide.allocate import Waiting, decide
from tranche.planning.layouts.restore import as_saved
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan, plan_from_dict, plan_to_dict


def slice_of(profile: str) -> Request:
    return Request(MigSlice(parse_profile(profile)))


def ask(host: Host, request: Request) -> QueuePlace:
    return host.enqueue(request, command="work", pid=os.getpid())


def serve(host: Host, request: Request) -> HeldAllocation | Waiting:
    return start_share(host, ask(host, request), lambda view: decide(view, request))


def first_gpu(host: Host) -> GpuState:
    return host.view().node.gpus[0]


@isolated
def test_an_instance_that_a_running_plan_is_about_to_destroy_is_not_granted(tmp_path: Path) -> None:
    """The media extensions exist once: a promised 2g.12gb+me evicts an idle 1g.6gb+me wherever that is."""
    node = node_of(tmp_path, "A30-24GB")
    with node.host() as host, node.host() as other:
        change(host, *enable(first_gpu(host)))
        change(host, create(first_gpu(host), "1g.6gb+me", 3))
        outcomes: list[HeldAllocation | Waiting] = []
        request = slice_of("2g.12gb+me")
        held = start_share(
            host,
            ask(host, request),
            lambda view: decide(view, request),
            decided=lambda: outcomes.append(serve(other, slice_of("1g.6gb+me"))),
        )
        assert isinstance(held, HeldAllocation)
        assert [type(outcome) for outcome in outcomes] == [Waiting]


@isolated
def test_two_allocations_never_share_a_slice(a100: Node) -> None:
    with a100.host() as host, a100.host() as other:
        keys = set()
        for _ in range(3):
            for each in (host, other):
                held = serve(each, slice_of("1g.5gb"))
                assert isinstance(held, HeldAllocation)
                keys.add(held.allocation.grants[0].slot)
        assert len(keys) == 6
        assert isinstance(serve(host, slice_of("1g.5gb")), HeldAllocation)
        assert isinstance(serve(other, slice_of("1g.5gb")), Waiting)


@isolated
def test_a_released_instance_stays_idle_and_is_used_again_without_a_change(a100: Node) -> None:
    with a100.host() as host:
        first = serve(host, slice_of("2g.10gb"))
        assert isinstance(first, HeldAllocation)
        host.release(first.allocation.id, why="test")
        first.lock.release(remove=True)
        calls = a100.machine.total_change_calls()
        second = serve(host, slice_of("2g.10gb"))
        assert isinstance(second, HeldAllocation)
        assert second.allocation.grants == first.allocation.grants
        assert a100.machine.total_change_calls() == calls


@isolated
def test_releasing_what_is_not_there_is_said_so(a100: Node) -> None:
    with a100.host() as host, pytest.raises(AllocationUnknown, match="abcdef"):
        host.release("abcdef", why="test")


@isolated
def test_a_failed_request_leaves_the_machine_and_its_place_in_the_queue(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(first_gpu(host)))
        before = cuts_of(host.view().node)
        request = slice_of("3g.20gb")
        ticket = ask(host, request)
        later = ask(host, request)
        a100.machine.inject_error("nvmlGpuInstanceCreateComputeInstance", 999, calls=1)
        with pytest.raises(HardwareError):
            start_share(host, ticket, lambda view: decide(view, request))
        view = host.view()
        assert cuts_of(view.node) == before
        assert view.allocations == ()
        assert view.owned == frozenset()
        assert [waiter.id for waiter in host.waiters()] == [ticket.id, later.id]
        assert isinstance(start_share(host, ticket, lambda view: decide(view, request)), HeldAllocation)


@isolated
def test_a_request_that_left_the_queue_cannot_start(a100: Node) -> None:
    with a100.host() as host:
        ticket = ask(host, Request(WholeGpus(1)))
        host.leave(ticket)
        assert not is_held(host.places.waiter(ticket.id))
        with pytest.raises(AllocationUnknown):
            start_share(host, ticket, lambda view: decide(view, Request(WholeGpus(1))))
        assert host.view().allocations == ()


@isolated
def test_a_change_of_a_gpu_that_another_change_works_on_is_refused(two_h100: Node) -> None:
    with two_h100.host() as host, two_h100.host() as other:
        gpus = host.view().node.gpus
        refused: list[str] = []

        def meddle(gpu: GpuState, step: Step) -> None:
            with pytest.raises(GpuBusy, match="GPU 0 is being changed") as caught:
                change(other, *enable(gpus[1]), *enable(gpus[0]))
            refused.append(caught.value.hint)

        host.change(lambda view: Plan("first", enable(gpus[0])), progress=meddle)
        assert len(refused) == 1
        assert [gpu.mig_enabled for gpu in host.view().node] == [True, False]
        change(other, *enable(gpus[1]), *enable(gpus[0]))
        assert [gpu.mig_enabled for gpu in host.view().node] == [True, True]


@isolated
def test_nothing_is_granted_on_a_gpu_that_is_being_changed(two_h100: Node) -> None:
    with two_h100.host() as host, two_h100.host() as other:
        gpus = host.view().node.gpus
        granted: list[str] = []

        def take(gpu: GpuState, step: Step) -> None:
            for _ in range(2):
                held = serve(other, Request(WholeGpus(1)))
                if isinstance(held, HeldAllocation):
                    granted.extend(grant.gpu_uuid for grant in held.allocation.grants)

        host.change(lambda view: Plan("cut", enable(gpus[0])), progress=take)
        assert granted == [gpus[1].uuid]


@isolated
def test_a_saved_plan_is_carried_out_when_nothing_moved(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(first_gpu(host)))
        gpu = first_gpu(host)
        plan = Plan("saved", (create(gpu, "1g.5gb", 0), create(gpu, "2g.10gb", 2)), {gpu.uuid: gpu.fingerprint})
        host.change(partial(as_saved, plan_from_dict(plan_to_dict(plan))))
        assert [str(instance.profile) for instance in first_gpu(host).instances] == ["1g.5gb", "2g.10gb"]


@isolated
def test_a_saved_plan_is_refused_when_the_state_has_moved(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(first_gpu(host)))
        gpu = first_gpu(host)
        plan = Plan("saved", (create(gpu, "1g.5gb", 0),), {gpu.uuid: gpu.fingerprint})
        change(host, create(gpu, "1g.5gb", 6))
        calls = a100.machine.total_change_calls()
        with pytest.raises(StateMoved, match="GPU 0"):
            host.change(partial(as_saved, plan))
        change(host, destroy(gpu, "1g.5gb", 6))
        assert a100.machine.total_change_calls() > calls
        host.change(partial(as_saved, plan))


@isolated
def test_a_saved_plan_that_names_no_state_of_a_gpu_is_refused(a100: Node) -> None:
    with a100.host() as host:
        calls = a100.machine.total_change_calls()
        with pytest.raises(StateMoved, match="has no expected state"):
            host.change(partial(as_saved, Plan("saved", enable(first_gpu(host)))))
        assert a100.machine.total_change_calls() == calls


@isolated
def test_an_instance_that_another_tool_removed_is_no_longer_known_as_ours(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(first_gpu(host)))
        change(host, create(first_gpu(host), "1g.5gb", 0), create(first_gpu(host), "1g.5gb", 1))
        gpu = first_gpu(host)
        assert host.view().owned == {gpu.key(instance) for instance in gpu.instances}
        gone = gpu.instances[0]
        host.driver.destroy_compute_instance(gpu.uuid, gone.id, gone.compute_instances[0].id)
        host.driver.destroy_gpu_instance(gpu.uuid, gone.id)
        views: list[NodeView] = []
        host.change(lambda view: views.append(view) or Plan("nothing"))  # type: ignore[func-returns-value]
        assert views[0].owned == {gpu.key(gpu.instances[1])}
        assert host.view().owned == views[0].owned


@isolated
def test_an_empty_plan_leaves_no_trace(a100: Node) -> None:
    with a100.host() as host:
        host.change(lambda view: Plan("nothing"))
        assert host.events() == ()
        assert a100.machine.total_change_calls() == 0


@isolated
def test_what_fails_on_one_gpu_leaves_the_others_their_change_where_that_is_asked_for(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB", "A100-40GB")
    with node.host() as host:
        for gpu in host.view().node:
            change(host, *enable(gpu))
        gpus = host.view().node.gpus
        plan = Plan("cut", tuple(create(gpu, "7g.40gb", 0) for gpu in gpus))
        for apart in (False, True):
            node.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1, gpu=1)
            with pytest.raises(HardwareError) as caught:
                host.change(lambda view: plan, apart=apart)
            assert caught.value.gpu_uuid == gpus[1].uuid
            assert "GPU 1" in caught.value.message
            assert ("the change succeeded on the other 2 GPUs" in caught.value.message) is apart
            assert [bool(gpu.instances) for gpu in host.view().node] == [apart, False, apart]
            assert host.view().changing == frozenset()
        assert {key.gpu_uuid for key in host.view().owned} == {gpus[0].uuid, gpus[2].uuid}
        host.change(lambda view: plan, apart=True)
        assert all(gpu.instances for gpu in host.view().node)


@isolated
def test_a_crash_amid_changes_that_are_apart_undoes_the_half_done_ones_only(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB")
    with node.host() as host:
        for gpu in host.view().node:
            change(host, *enable(gpu))
        gpus = host.view().node.gpus
        plan = Plan("cut", tuple(create(gpu, "7g.40gb", 0) for gpu in gpus))

    def victim() -> None:
        done: list[str] = []

        def boundary() -> None:
            with host.ledger.read() as db:
                done[:] = [
                    name for (name,) in db.execute("SELECT id FROM plans WHERE status = 'done' AND purpose = 'cut'")
                ]

        def progress(gpu: GpuState, step: Step) -> None:
            if gpu.uuid == gpus[1].uuid:
                while not done:
                    time.sleep(0.002)
                os.kill(os.getpid(), signal.SIGKILL)

        with node.host(boundary=boundary) as host:
            host.change(lambda view: plan, apart=True, progress=progress)

    child = Child(victim)
    assert child.wait() == -signal.SIGKILL
    child.end()
    with node.host() as host:
        assert [bool(gpu.instances) for gpu in host.view().node] == [True, False]
        assert "Recovered" in [event.name for event in host.events()]
