"""What dead processes leave is cleared by whoever comes next; what living ones hold is left alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.machines import wait_until
from tests.node.machines import Node, change, create, cuts_of, disable, enable, node_of, start_share
from tests.node.processes import Child, in_child, isolated
from tranche.core.allocation import Phase
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuState, MigMode
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.locks import FileLock
from tranche.planning.decide.allocate import decide
from tranche.planning.steps import Step
from tranche.planning.steps.plan import Plan

SMALL = Request(MigSlice(parse_profile("1g.5gb")))


def only(host: Host) -> GpuState:
    return host.view().node.gpus[0]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def run_to_death(node: Node, work: Callable[[Host], None]) -> None:
    """Do the work in a process that is killed in it."""

    def victim() -> None:
        with node.host() as host:
            work(host)

    child = Child(victim)
    assert child.wait() == -signal.SIGKILL
    child.end()


def kinds(host: Host) -> list[str]:
    return [event.name for event in host.events()]


def die_at(word: str) -> Callable[[GpuState, Step], None]:
    """Die when the first step begins that says the word."""

    def progress(gpu: GpuState, step: Step) -> None:
        if word in str(step):
            die()

    return progress


def test_a_change_that_was_complete_is_done(a100: Node) -> None:
    """Killed between the last step and the end of the plan: nothing is undone."""

    def work(host: Host) -> None:
        steps = (*enable(only(host)), create(only(host), "1g.5gb", 0))
        host.change(lambda view: Plan("complete", steps))

    # Opened, then intent and outcome of three steps; the end of the plan is the write after those.
    boundaries = 1 + 2 * 3
    count = 0

    def fuse() -> None:
        nonlocal count
        count += 1
        if count == boundaries:
            die()

    def victim() -> None:
        with a100.host(boundary=fuse) as host:
            work(host)

    child = Child(victim)
    assert child.wait() == -signal.SIGKILL
    child.end()

    def look() -> tuple[int, int, int, list[str]]:
        with a100.host() as host:
            needed = host.recovery_needed()
            view = host.view()
            return needed, len(view.node.gpus[0].instances), len(view.owned), kinds(host)

    needed, instances, owned, told = in_child(look)
    assert (needed, instances, owned) == (True, 1, 1)
    assert "Recovered" not in told


def test_a_change_that_was_being_undone_is_undone_to_the_end(two_h100: Node) -> None:
    """All of its steps were carried out, then it was interrupted, and killed while that was undone."""

    def work(host: Host) -> None:
        gpus = host.view().node.gpus
        steps = tuple(step for gpu in gpus for step in (*enable(gpu), create(gpu, "1g.10gb", 0)))
        # The interrupt meets a plan whose steps are all carried out; the first look of the undoing is the last thing.
        real = host._executor._on_each_gpu

        def interrupted(*args: object, **kwargs: object) -> list[object]:
            real(*args, **kwargs)  # type: ignore[arg-type]
            host._executor._on_each_gpu = undone_in_part  # type: ignore[method-assign,assignment]
            raise KeyboardInterrupt

        def undone_in_part(records: object, undo: Callable[[str], object], *args: object) -> list[object]:
            undo(gpus[0].uuid)
            die()
            return []

        host._executor._on_each_gpu = interrupted  # type: ignore[method-assign,assignment]
        host.change(lambda view: Plan("undone", steps))

    before = in_child(lambda: look_at(two_h100))
    run_to_death(two_h100, work)
    assert in_child(lambda: look_at(two_h100)) != before
    assert in_child(lambda: recovered(two_h100)) == before


def look_at(node: Node) -> object:
    with node.driver() as driver:
        return cuts_of(driver.observe())


def recovered(node: Node) -> object:
    with node.host() as host:
        return cuts_of(host.view().node)


def test_what_somebody_came_to_use_meanwhile_stays_and_is_told(a100: Node) -> None:
    def work(host: Host) -> None:
        change(host, *enable(only(host)))
        steps = (create(only(host), "1g.5gb", 0), create(only(host), "2g.10gb", 2), create(only(host), "1g.5gb", 6))
        host.change(lambda view: Plan("interrupted", steps), progress=die_at("at 6:1"))

    run_to_death(a100, work)

    def occupy() -> str:
        with a100.driver() as driver:
            gpu = driver.observe().gpus[0]
            return next(i for i in gpu.instances if i.placement.start == 2).compute_instances[0].uuid

    a100.machine.inject_busy(in_child(occupy), pid=5004711, name="train")

    def clear() -> tuple[list[int], list[str], bool]:
        with a100.host() as host:
            left = [instance.placement.start for instance in only(host).instances]
            told = [event.message for event in host.events() if event.name == "UndoIncomplete"]
            return left, told, host.recovery_needed()

    left, told, again = in_child(clear)
    assert left == [2]
    assert len(told) == 1
    assert "train (pid 5004711)" in told[0]
    assert not again


@isolated
def test_what_a_living_process_does_is_left_alone(a100: Node) -> None:
    """Another command comes while a plan is carried out and a share is held."""
    with a100.host() as host, a100.host() as other:
        ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
        seen: list[tuple[bool, Phase]] = []

        def look(gpu: GpuState, step: Step) -> None:
            (allocation,) = other.view().allocations
            seen.append((other.recovery_needed(), allocation.phase))

        held = start_share(host, ticket, lambda view: decide(view, SMALL), progress=look)
        assert isinstance(held, HeldAllocation)
        assert set(seen) == {(False, Phase.PREPARING)}
        assert [allocation.phase for allocation in other.view().allocations] == [Phase.ACTIVE]
        other.change(lambda view: Plan("nothing"))
        assert [allocation.id for allocation in other.view().allocations] == [held.allocation.id]


def test_a_dead_waiter_leaves_nothing_behind(a100: Node) -> None:
    def work(host: Host) -> None:
        host.enqueue(SMALL, command="work", pid=os.getpid())
        die()

    run_to_death(a100, work)

    def clear() -> tuple[bool, int, list[Path]]:
        with a100.host() as host:
            needed = host.recovery_needed()
            host.view()
            return needed, len(host.waiters()), list((a100.state_dir / "locks" / "waiters").iterdir())

    assert in_child(clear) == (True, 0, [])


def test_a_dead_allocation_leaves_its_instance_idle(a100: Node) -> None:
    def work(host: Host) -> None:
        ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
        start_share(host, ticket, lambda view: decide(view, SMALL))
        die()

    run_to_death(a100, work)

    def clear() -> tuple[int, list[str], str, list[Path]]:
        with a100.host() as host:
            view = host.view()
            profiles = [str(instance.profile) for instance in view.node.gpus[0].instances]
            assert set(view.owned) == {view.node.gpus[0].key(each) for each in view.node.gpus[0].instances}
            last = host.events(last=1)[0]
            locks = list((a100.state_dir / "locks" / "allocations").iterdir())
            return len(view.allocations), profiles, last.name, locks

    assert in_child(clear) == (0, ["1g.5gb"], "Released", [])


def test_an_allocation_is_kept_by_its_workload_even_without_the_lock(a100: Node) -> None:
    """The workload closed every file that it inherited, and tranche was killed."""
    workload = Child(signal.pause)

    def work(host: Host) -> None:
        ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
        held = start_share(host, ticket, lambda view: decide(view, SMALL))
        assert isinstance(held, HeldAllocation)
        host.set_holder(held, workload.pid)
        die()

    run_to_death(a100, work)
    assert len(in_child(lambda: allocation_ids(a100))) == 1
    workload.end()
    assert in_child(lambda: allocation_ids(a100)) == []


def allocation_ids(node: Node) -> list[str]:
    with node.host() as host:
        return [allocation.id for allocation in host.view().allocations]


def test_a_request_that_died_while_it_was_served_is_undone(a100: Node) -> None:
    def work(host: Host) -> None:
        ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
        start_share(host, ticket, lambda view: decide(view, SMALL), progress=die_at("create"))

    before = in_child(lambda: look_at(a100))
    run_to_death(a100, work)
    assert in_child(lambda: recovered(a100)) == before
    assert in_child(lambda: allocation_ids(a100)) == []

    def served() -> bool:
        with a100.host() as host:
            ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
            return isinstance(start_share(host, ticket, lambda view: decide(view, SMALL)), HeldAllocation)

    assert in_child(served)


def test_recovery_waits_for_a_reset_that_outlives_its_process(tmp_path: Path) -> None:
    """nvidia-smi goes on when tranche is killed: nobody may touch the GPU before it is through."""
    node = node_of(tmp_path, "A100-40GB")
    before = in_child(lambda: look_at(node))

    def victim() -> None:
        with node.host() as host:
            change(host, *enable(only(host)))

    node.machine.set_time_scale(0.3)  # a reset takes about a second
    child = Child(victim)

    def resetting() -> list[int]:
        listing = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
        return [int(word) for word in listing.split()] if any(t.what == "reset" for t in node.taken()) else []

    wait_until(lambda: bool(resetting()))
    (tool,) = resetting()
    child.kill()
    assert child.wait() == -signal.SIGKILL
    child.end()

    def clear() -> tuple[bool, object]:
        with node.host() as host:
            cuts = cuts_of(host.view().node)
            return Path(f"/proc/{tool}/exe").exists(), cuts

    alive, cuts = in_child(clear)
    assert not alive, "the GPU was touched while it was being reset"
    assert cuts == before


def test_recovering_twice_is_recovering_once(two_h100: Node) -> None:
    def work(host: Host) -> None:
        first, second = host.view().node.gpus
        change(host, *enable(first), create(first, "1g.10gb", 0), *enable(second))
        steps = (*(step for step in disable(second)), create(first, "2g.20gb", 2), create(first, "1g.10gb", 6))
        host.change(lambda view: Plan("interrupted", steps), progress=die_at("at 6:1"))

    run_to_death(two_h100, work)
    first = in_child(lambda: recovered(two_h100))
    calls = two_h100.machine.change_calls()
    events = in_child(lambda: events_of(two_h100))
    assert in_child(lambda: recovered(two_h100)) == first
    assert two_h100.machine.change_calls() == calls
    assert in_child(lambda: events_of(two_h100)) == events
    assert events.count("Recovered") == 1


def events_of(node: Node) -> list[str]:
    with node.host() as host:
        return kinds(host)


def test_gpus_that_were_switched_by_an_interrupted_change_are_switched_back(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "H100-80GB-SXM")

    def work(host: Host) -> None:
        ampere, hopper = host.view().node.gpus
        change(host, *enable(hopper))
        steps = (*enable(ampere), create(ampere, "1g.5gb", 0), *disable(hopper))
        host.change(lambda view: Plan("interrupted", steps), progress=die_at("create"))

    run_to_death(node, work)

    def modes() -> list[tuple[MigMode, MigMode]]:
        with node.host() as host:
            return [(gpu.mode, gpu.pending_mode) for gpu in host.view().node]

    off, on = MigMode.DISABLED, MigMode.ENABLED
    assert in_child(modes) == [(off, off), (on, on)]


def test_files_of_dead_sessions_are_removed_and_those_of_living_ones_are_not(a100: Node) -> None:
    def work(host: Host) -> None:
        change(host, *enable(only(host)))
        die()

    run_to_death(a100, work)
    folder = a100.state_dir / "locks" / "sessions"
    (dead,) = folder.iterdir()

    def live() -> tuple[bool, int]:
        with a100.host() as host, a100.host() as other:
            change(host, create(only(host), "1g.5gb", 0))
            other.change(lambda view: Plan("nothing"))
            return dead.exists(), len(list(folder.iterdir()))

    assert in_child(live) == (False, 1)
    assert list(folder.iterdir()) == []


def test_a_restart_of_the_machine_frees_everything_and_forgets_the_instances(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB", "H100-80GB-SXM")

    def work(host: Host) -> None:
        ampere, hopper = host.view().node.gpus
        change(host, *enable(ampere), *enable(hopper), create(hopper, "1g.10gb", 0))
        ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
        start_share(host, ticket, lambda view: decide(view, SMALL))
        host.enqueue(SMALL, command="waits", pid=os.getpid())
        host.change(lambda view: Plan("interrupted", (create(hopper, "1g.10gb", 1),)), progress=die_at("create"))

    run_to_death(node, work)
    node.machine.reboot()

    def look() -> tuple[list[MigMode], int, int, int, int, list[str]]:
        with node.host() as host:
            host.change(lambda view: Plan("nothing"))
            view = host.view()
            left = [event.name for event in host.events() if event.name == "UndoIncomplete"]
            instances = sum(len(gpu.instances) for gpu in view.node)
            modes = [gpu.mode for gpu in view.node]
            return modes, instances, len(view.allocations), len(view.owned), len(host.waiters()), left

    assert in_child(look) == ([MigMode.ENABLED, MigMode.DISABLED], 0, 0, 0, 0, [])


def test_no_lock_of_a_freed_share_stays(a100: Node) -> None:
    """Killed after the row was removed and before the file was: the next decision removes the file, and no lock that is held."""

    def victim() -> None:
        with a100.host() as host:
            ticket = host.enqueue(SMALL, command="work", pid=os.getpid())
            held = start_share(host, ticket, lambda view: decide(view, SMALL))
            assert isinstance(held, HeldAllocation)
            host.boundary = die
            host.release(held.allocation.id, why="test")

    child = Child(victim)
    assert child.wait() == -signal.SIGKILL
    child.end()

    def after() -> tuple[set[str], set[str]]:
        with a100.host() as host, FileLock(host.places.allocation("feedbeef")):
            before = host.places.allocations()
            with host.deciding():
                return before, host.places.allocations()

    before, left = in_child(after)
    assert (len(before), left) == (2, {"feedbeef"})
