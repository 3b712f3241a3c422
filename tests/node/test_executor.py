"""The executor: several GPUs at once, one GPU in order, all or nothing, and no call for what is there already."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.node.machines import Cut, Node, change, create, cuts_of, destroy, disable, enable, node_of
from tests.node.processes import in_child, isolated
from tranche.core.errors import TrancheError
from tranche.core.state import GpuState
from tranche.node.host import Host
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan

NO_PERMISSION, IN_USE, LOST, MEMORY, UNKNOWN = 4, 19, 15, 20, 999

CHANGING = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
READING = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlDeviceGetUUID",
)


CODES = (LOST, UNKNOWN, NO_PERMISSION, MEMORY)
# Each function fails once, and each code is met; at length each function fails in every way.
FAILURES = [
    pytest.param(function, code, marks=() if code == CODES[number % len(CODES)] else pytest.mark.long)
    for number, function in enumerate(CHANGING)
    for code in CODES
]


def gpus(host: Host) -> tuple[GpuState, ...]:
    return host.view().node.gpus


def prepared(node: Node) -> None:
    """GPU 0 is cut, the others are as they come."""
    with node.host() as host:
        change(host, *enable(gpus(host)[0]))
        change(host, create(gpus(host)[0], "1g.5gb", 0), create(gpus(host)[0], "2g.10gb", 2))


def work(found: tuple[GpuState, ...]) -> tuple[Step, ...]:
    """Every kind of step on two GPUs."""
    first, second = found[:2]
    return (
        destroy(first, "1g.5gb", 0),
        destroy(first, "2g.10gb", 2),
        create(first, "3g.20gb", 4, "1c.3g.20gb", "1c.3g.20gb"),
        create(first, "1g.5gb", 1),
        *enable(second),
        create(second, "7g.40gb", 0),
    )


@isolated
def test_gpus_are_worked_on_at_the_same_time(two_h100: Node) -> None:
    meeting = threading.Barrier(2)

    def meet(gpu: GpuState, step: Step) -> None:
        meeting.wait(timeout=60)  # nobody comes here alone unless the GPUs are done one after the other

    with two_h100.host() as host:
        steps = tuple(step for gpu in gpus(host) for step in enable(gpu))
        host.change(lambda view: Plan("both", steps), progress=meet)
        assert all(gpu.mig_enabled for gpu in gpus(host))


@isolated
def test_one_gpu_is_worked_on_in_the_order_of_the_plan(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB")
    prepared(node)
    begun: dict[str, list[Step]] = {}
    with node.host() as host:
        plan = Plan("all kinds", work(gpus(host)))
        host.change(lambda view: plan, progress=lambda gpu, step: begun.setdefault(gpu.uuid, []).append(step))
        for gpu in gpus(host):
            assert tuple(begun[gpu.uuid]) == plan.steps_on(gpu.uuid)
            told = [event.message for event in host.events() if event.gpu_uuid == gpu.uuid]
            assert told[-len(begun[gpu.uuid]) :] == [f"{gpu.label}: {step}" for step in begun[gpu.uuid]]


@isolated
def test_what_is_there_already_costs_no_call(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB")
    prepared(node)
    with node.host() as host:
        plan = Plan("again", work(gpus(host))[2:])
        change(host, destroy(gpus(host)[0], "1g.5gb", 0), destroy(gpus(host)[0], "2g.10gb", 2))
        host.change(lambda view: plan)
        calls = node.machine.change_calls()
        host.change(lambda view: plan)
        assert node.machine.change_calls() == calls


@pytest.mark.parametrize(("function", "code"), FAILURES)
def test_a_failing_call_undoes_everything_on_every_gpu(tmp_path: Path, function: str, code: int) -> None:
    check_all_or_nothing(tmp_path, function, code, calls=1)


def test_a_failing_reset_undoes_everything_on_every_gpu(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "A100-40GB")
    in_child(lambda: prepared(node))

    def attempt() -> tuple[dict[str, Cut], dict[str, Cut]]:
        with node.host() as host:
            before = cuts_of(host.view().node)
            steps = work(gpus(host))
            second = gpus(host)[1]

            def disturb(gpu: GpuState, step: Step) -> None:
                if gpu.uuid == second.uuid and type(step).__name__ == "ResetGpu":
                    node.machine.inject_busy(second.uuid, pid=5004711, name="monitor")

            with pytest.raises(TrancheError):
                host.change(lambda view: Plan("fails", steps), progress=disturb)
            node.machine.clear_injections()
            return before, cuts_of(host.view().node)

    before, after = in_child(attempt)
    second = node.machine.gpus()[1].uuid
    assert after[node.machine.gpus()[0].uuid] == before[node.machine.gpus()[0].uuid]
    # The driver refuses to take the mode back while the monitor is there, so it stays pending, and an event says so.
    assert (after[second].mode, after[second].slots) == (before[second].mode, frozenset())


@pytest.mark.parametrize("function", READING)
def test_a_failing_look_at_a_gpu_undoes_everything(tmp_path: Path, function: str) -> None:
    check_all_or_nothing(tmp_path, function, UNKNOWN, calls=1)


def check_all_or_nothing(folder: Path, function: str, code: int, *, calls: int) -> None:
    """Let the call fail at each step in turn: the plan is carried out whole, or nothing of it is left."""
    template = node_of(folder, "A100-40GB", "A100-40GB")
    in_child(lambda: prepared(template))

    def attempt(at: int) -> str:
        """What became of the plan when the call failed from that step on."""
        steps_begun = 0
        lock = threading.Lock()

        def disturb(gpu: GpuState, step: Step) -> None:
            nonlocal steps_begun
            with lock:
                if steps_begun == at:
                    template.machine.inject_error(function, code, calls=calls)
                steps_begun += 1

        with template.host(sleep=lambda seconds: None) as host:
            before = cuts_of(host.view().node)
            steps = work(gpus(host))
            try:
                host.change(lambda view: Plan("may fail", steps), progress=disturb)
            except TrancheError as error:
                failure = error.message
            else:
                failure = ""
            template.machine.clear_injections()
            if failure:
                after = cuts_of(host.view().node)
                assert after == before, f"{failure}: not undone"
                assert host.view().owned == {key for cut in before.values() for key, _ in cut.slots}
                return "refused"
            for gpu in gpus(host):
                change(host, *(destroy(gpu, str(each.profile), each.placement.start) for each in gpu.instances))
            change(host, *disable(gpus(host)[1]))
            change(host, create(gpus(host)[0], "1g.5gb", 0), create(gpus(host)[0], "2g.10gb", 2))
            return "done"

    # Whether a reading call hits depends on which thread comes first, so only changing calls must hit at least once.
    endings = [in_child(lambda at=at: attempt(at)) for at in range(7)]  # type: ignore[misc]
    assert set(endings) <= {"refused", "done"}
    if function in CHANGING:
        assert "refused" in endings


@isolated
def test_errors_while_undoing_are_told_and_the_rest_is_undone(a100: Node) -> None:
    with a100.host(sleep=lambda seconds: None) as host:
        change(host, *enable(gpus(host)[0]))
        gpu = gpus(host)[0]

        def disturb(observed: GpuState, step: Step) -> None:
            if step == last:
                a100.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN, calls=1)
                a100.machine.inject_error("nvmlComputeInstanceDestroy", UNKNOWN, calls=1)

        first, second, last = create(gpu, "1g.5gb", 0), create(gpu, "1g.5gb", 1), create(gpu, "1g.5gb", 2)
        with pytest.raises(TrancheError, match=r"undoing the change failed too, so parts of it remain: .*GPU 0"):
            host.change(lambda view: Plan("fails", (first, second, last)), progress=disturb)
        left = [instance.placement.start for instance in gpus(host)[0].instances]
        assert left == [1], "the last one made is undone first, and could not be"
        (told,) = [event for event in host.events() if event.name == "UndoIncomplete"]
        assert told.message
        assert host.view().owned == {gpus(host)[0].key(gpus(host)[0].instances[0])}
        change(host, destroy(gpu, "1g.5gb", 1))


@isolated
def test_an_interrupted_plan_is_undone(a100: Node) -> None:
    """Ctrl-C arrives while a step is carried out."""

    def interrupt(gpu: GpuState, step: Step) -> None:
        if "2g" in str(step):
            raise KeyboardInterrupt

    with a100.host() as host:
        change(host, *enable(gpus(host)[0]))
        gpu = gpus(host)[0]
        before = cuts_of(host.view().node)
        steps = (create(gpu, "1g.5gb", 0), create(gpu, "2g.10gb", 2))
        with pytest.raises(KeyboardInterrupt):
            host.change(lambda view: Plan("interrupted", steps), progress=interrupt)
    with a100.host() as host:
        view = host.view()
        assert cuts_of(view.node) == before
        assert (view.owned, view.changing) == (frozenset(), frozenset())
        change(host, create(gpu, "1g.5gb", 0))
        assert [str(instance.profile) for instance in gpus(host)[0].instances] == ["1g.5gb"]
