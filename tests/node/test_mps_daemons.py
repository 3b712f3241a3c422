"""MPS daemons on a simulated machine: they serve one device each, and whatever happens, nothing of them is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mps_leftovers import end_daemons_below
from tests.node.machines import Node, change, create, destroy, enable, node_of
from tests.node.processes import Child, in_child, isolated, kill_at_every_boundary
from tests.simulator.control_groups import group, hierarchy
from tranche.core.allocation import Allocation, FractionalShare, Phase, Slice, WholeGpu
from tranche.core.errors import GpuBusy, MpsFailed, MpsPathTooLong, VerificationFailed
from tranche.core.events import LimitsLost, PlanUndone
from tranche.core.grid import PlacedInstance, Placement
from tranche.core.keeper import ProcessKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import Isolation, Request, WholeGpus
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeMode, DaemonState, GpuState, MpsDaemon
from tranche.hardware import mps_process
from tranche.hardware.mps_control import MpsControlClient
from tranche.node.host import Host
from tranche.node.mps import mps_daemons
from tranche.node.mps.mps_records import IDLE_SECONDS
from tranche.node.state.session import process_lives, process_start_time
from tranche.node.store import register
from tranche.planning.steps import StartMps, Step, StopMps
from tranche.planning.steps.plan import Plan

GIB = 2**30


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets; whatever daemon is left in it is ended."""
    folder = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    yield folder
    end_daemons_below(folder)
    shutil.rmtree(folder)


@pytest.fixture
def t4(short: Path) -> Node:
    """A T4, which has no MIG."""
    return node_of(short, machine_type="g4dn.xlarge")


@pytest.fixture
def cut(short: Path) -> Node:
    """One A100 with a 3g.20gb at 0."""
    node = node_of(short, "A100-40GB")

    def prepare() -> None:
        with node.host() as host:
            change(host, *enable(only(host)))
            change(host, create(only(host), "3g.20gb", 0))

    in_child(prepare)
    return node


def only(host: Host) -> GpuState:
    (gpu,) = host.view().node.gpus
    return gpu


def daemon_of(host: Host) -> MpsDaemon:
    (daemon,) = only(host).daemons
    return daemon


def start(gpu: GpuState, memory: int = 3 * GIB) -> StartMps:
    return StartMps(gpu.uuid, None, memory)


def place_of(gpu: GpuState) -> PlacedInstance:
    (occupant,) = gpu.occupants
    return occupant


def share(host: Host, device: WholeGpu | Slice, memory: int = 3 * GIB, name: str = "held") -> None:
    """An allocation of a part, which this process keeps."""
    part = FractionalShare(device, memory, Sharing.MPS)
    allocation = Allocation(name, Request(WholeGpus(1)), (part,), Phase.ACTIVE, 1.0, "train.py")
    with host.ledger.write() as db:
        register.add_allocation(db, allocation, {device: 15 * GIB})
        register.set_keeper(db, name, ProcessKeeper(os.getpid(), process_start_time(os.getpid())))


def asked(host: Host, command: str) -> str:
    """What the daemon of the only device answers."""
    return host.daemons.process(daemon_of(host).device_uuid).control.ask(command)


def nothing_left(node: Node, host: Host, mode: ComputeMode = ComputeMode.DEFAULT) -> None:
    gpu = only(host)
    assert (gpu.daemons, gpu.compute_mode) == ((), mode)
    assert host.daemons.records.all() == ()
    assert not [path for path in node.state_dir.glob("mps/*") if path.suffix != ".log"]
    assert processes_of(node) == []


def processes_of(node: Node) -> list[int]:
    """The processes of MPS that were started for the node."""
    found = []
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and b"nvidia-cuda-mps" in Path(entry.path, "cmdline").read_bytes():
                environment = Path(entry.path, "environ").read_bytes()
                if os.fsencode(f"CUDA_MPS_PIPE_DIRECTORY={node.state_dir}/") in environment:
                    found.append(int(entry.name))
    return found


# They serve and they end


@isolated
def test_a_gpu_is_shared_and_given_back_as_it_was(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        daemon = daemon_of(host)
        assert daemon == MpsDaemon(None, only(host).uuid, DaemonState.READY, 3 * GIB)
        assert only(host).compute_mode is ComputeMode.EXCLUSIVE
        assert asked(host, "get_default_device_pinned_mem_limit 0").strip() == "3G"
        change(host, start(only(host), 5 * GIB))
        assert asked(host, "get_default_device_pinned_mem_limit 0").strip() == "5G"
        pid = host.daemons.records.all()[0].pid
        change(host, StopMps(only(host).uuid, None))
        nothing_left(t4, host)
        assert process_start_time(pid) == 0


def test_a_daemon_outlives_the_control_group_of_the_command_that_started_it(t4: Node, tmp_path: Path) -> None:
    with hierarchy(tmp_path) as top, group(top) as unit:

        def share_it() -> None:
            (unit / "cgroup.procs").write_text("0")
            with t4.host() as host:
                change(host, start(only(host)))

        def look_and_end() -> DaemonState:
            with t4.host() as host:
                state = daemon_of(host).state
                change(host, StopMps(only(host).uuid, None))
                nothing_left(t4, host)
            return state

        in_child(share_it)
        assert len(processes_of(t4)) == 2, "the daemon, and the server that keeps the GPU for it"
        (unit / "cgroup.kill").write_text("1")
        assert (unit / "cgroup.procs").read_text() == ""
        assert in_child(look_and_end) is DaemonState.READY


def without_multi_user(folder: Path, machine: Mapping[str, str]) -> dict[str, str]:
    """An environment in which NVIDIA's program is of a release that knows no server for all users."""
    real = shutil.which("nvidia-cuda-mps-control", path=machine["PATH"])
    older = folder / "older" / "nvidia-cuda-mps-control"
    older.parent.mkdir()
    older.write_text(
        f'#!/bin/sh\ncase "$*" in *multiuser*) echo "Unknown option: $*"; exit 1;; esac\nexec {real} "$@"\n'
    )
    older.chmod(0o755)
    return {**os.environ, **machine, "PATH": f"{older.parent}:{machine['PATH']}"}


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' daemons serve themselves alone")
@isolated
def test_programs_of_all_users_share_where_the_driver_knows_how(t4: Node, tmp_path: Path) -> None:
    for environment, every_user in ((None, True), (without_multi_user(tmp_path, t4.machine.environment()), False)):
        options = {} if environment is None else {"environment": environment}
        with t4.host(**options) as host:
            change(host, start(only(host)))
            (record,) = host.daemons.records.all()
            assert (record.every_user, daemon_of(host).every_user) == (every_user, every_user)
            (server,) = host.daemons.process(record.device_uuid).servers()
            asked(host, "start_server -uid 1001")
            assert asked(host, "get_server_list").split() == [str(server.pid)] or not every_user
            change(host, StopMps(only(host).uuid, None))
            nothing_left(t4, host)


@isolated
def test_a_compute_mode_that_was_chosen_before_is_kept(t4: Node) -> None:
    with t4.host() as host:
        host.driver.set_compute_mode(only(host).uuid, ComputeMode.EXCLUSIVE)
        change(host, start(only(host)))
        change(host, StopMps(only(host).uuid, None))
        nothing_left(t4, host, ComputeMode.EXCLUSIVE)


@isolated
def test_a_slice_has_a_daemon_of_its_own_and_its_gpu_no_compute_mode(cut: Node) -> None:
    with cut.host() as host:
        gpu = only(host)
        change(host, StartMps(gpu.uuid, place_of(gpu), 4 * GIB))
        (instance,) = gpu.instances
        assert instance.whole_slice is not None
        assert daemon_of(host).device_uuid == instance.whole_slice.uuid
        assert daemon_of(host).slot == gpu.key(instance)
        assert only(host).compute_mode is ComputeMode.DEFAULT
        # The daemon's server is Tranche's own and does not count as somebody who uses the slice.
        asked(host, f"start_server -uid {os.getuid()}")
        assert asked(host, "get_server_list").split()
        assert not only(host).all_processes
        # Whoever takes the slice away has the daemon ended first.
        change(host, destroy(only(host), "3g.20gb", 0))
        assert only(host).instances == ()
        nothing_left(cut, host)


@isolated
def test_a_daemon_ends_under_whoever_shares_the_device_in_another_way(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        part = FractionalShare(WholeGpu(only(host).uuid), 3 * GIB, Sharing.TIME_SLICING)
        allocation = Allocation("turns", Request(WholeGpus(1)), (part,), Phase.ACTIVE, 1.0, "train.py")
        with host.ledger.write() as db:
            register.add_allocation(db, allocation, {part.device: 15 * GIB})
            register.set_keeper(db, "turns", ProcessKeeper(os.getpid(), process_start_time(os.getpid())))
        change(host, StopMps(only(host).uuid, None))
        nothing_left(t4, host)


@isolated
def test_a_limit_also_holds_for_the_server_that_runs(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        asked(host, f"start_server -uid {os.getuid()}")
        change(host, start(only(host), 5 * GIB))
        server = asked(host, "get_server_list").strip()
        assert asked(host, f"get_device_pinned_mem_limit {server} 0").strip() == "5G"


@isolated
def test_nobody_who_shares_loses_the_daemon(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        with pytest.raises(GpuBusy, match="allocation held"):
            change(host, StopMps(only(host).uuid, None))
        assert daemon_of(host).state is DaemonState.READY


def test_a_path_that_is_too_long_changes_nothing(tmp_path: Path) -> None:
    node = node_of(tmp_path / ("x" * 80), machine_type="g4dn.xlarge")

    def work() -> None:
        with node.host() as host:
            with pytest.raises(MpsPathTooLong):
                change(host, start(only(host)))
            nothing_left(node, host)

    in_child(work)


@isolated
def test_a_slot_that_holds_another_device_gets_another_daemon_and_the_first_one_ends(
    cut: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut.host() as host:
        gpu = only(host)
        step = StartMps(gpu.uuid, place_of(gpu), 4 * GIB)
        with monkeypatch.context() as unproved:  # no server starts for a device that is not there
            unproved.setattr(mps_daemons, "_refuse_silent", ignore)
            host.daemons.start(gpu, step.slot, "MIG-before", step.limit, host.driver, time.sleep)
        (before,) = host.daemons.records.all()
        change(host, step)
        (now,) = host.daemons.records.all()
        assert now.device_uuid == daemon_of(host).device_uuid == step.device_uuid(gpu)
        (server,) = host.daemons.process(now.device_uuid).servers()
        assert set(processes_of(cut)) == {now.pid, server.pid}
        assert not host.daemons.records.pipes(before.device_uuid).exists()
        change(host, StopMps(gpu.uuid, place_of(gpu)))
        nothing_left(cut, host)


# They fail


@isolated
def test_a_daemon_goes_when_a_later_step_fails(t4: Node) -> None:
    with t4.host() as host:
        gpu = only(host)
        nowhere = PlacedInstance(parse_profile("1g.5gb"), Placement(0, 1))
        with pytest.raises(VerificationFailed, match=r"1g\.5gb at 0:1 does not exist"):
            change(host, start(gpu), StartMps(gpu.uuid, nowhere, GIB))
        nothing_left(t4, host)


@isolated
def test_a_driver_without_the_program_says_so_and_nothing_changes(t4: Node) -> None:
    with t4.host(environment={"PATH": "/nowhere"}) as host:
        with pytest.raises(MpsFailed, match="not on the PATH"):
            change(host, start(only(host)))
        nothing_left(t4, host)


def test_nothing_is_left_when_the_process_is_killed_at_a_boundary(t4: Node) -> None:
    def work(host: Host) -> None:
        change(host, start(only(host)), start(only(host), 4 * GIB))

    kill_at_every_boundary(
        t4,
        work,
        lambda host, killed: look_through(t4, host),
        boundaries=6,
        clock=lambda: time.time() + 2 * IDLE_SECONDS,
    )


def look_after_kill(node: Node) -> None:
    # A change that was through counts as done: its daemon goes later, as any that nobody needs.
    with node.host(clock=lambda: time.time() + 2 * IDLE_SECONDS) as host:
        look_through(node, host)


def look_through(node: Node, host: Host) -> None:
    host.view()
    nothing_left(node, host)
    calls = node.machine.total_change_calls()
    host.view()
    assert node.machine.total_change_calls() == calls


@pytest.mark.parametrize("moment", ["set_compute_mode", "start", "limit_memory"])
def test_nothing_is_left_when_the_process_is_killed_within_the_act(t4: Node, moment: str) -> None:
    def work() -> None:
        from tranche.hardware.mps_process import MpsProcess

        with t4.host() as host:
            home: type = {"set_compute_mode": type(host.driver), "start": MpsProcess, "limit_memory": MpsControlClient}[
                moment
            ]
            done: Callable[..., object] = getattr(home, moment)

            def then_killed(*args: object, **kwargs: object) -> None:
                done(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(home, moment, then_killed)
            change(host, start(only(host)))

    assert Child(work).wait() == -signal.SIGKILL
    in_child(lambda: look_after_kill(t4))


def test_nothing_is_left_of_a_daemon_that_comes_up_when_its_starter_was_killed(
    t4: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        def begun_then_killed(command: list[str], *, env: dict[str, str], **_: object) -> None:
            script = 'kill -STOP $$; exec "$0" -d'
            subprocess.Popen([command[0], "-c", script, "-d"], executable="/bin/bash", env=env, start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)

        with t4.host() as host:
            monkeypatch.setattr(subprocess, "run", begun_then_killed)
            change(host, start(only(host)))

    assert Child(work).wait() == -signal.SIGKILL
    in_child(lambda: look_after_kill(t4))


@isolated
def test_a_daemon_whose_pid_file_is_gone_ends_as_any_other(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        (host.daemons.records.pipes(record.device_uuid) / "nvidia-cuda-mps-control.pid").unlink()
        change(host, StopMps(record.gpu_uuid, None))
        nothing_left(t4, host)


@isolated
def test_a_daemon_that_cannot_be_killed_is_not_forgotten(t4: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        with monkeypatch.context() as nobody_ends:
            nobody_ends.setattr(MpsControlClient, "quit", ignore)
            nobody_ends.setattr(os, "kill", refuse)
            nobody_ends.setattr(mps_process, "_QUIT_SECONDS", 0.0)
            with pytest.raises(MpsFailed, match=rf"did not exit: .*\b{record.pid}\b"):
                change(host, StopMps(record.gpu_uuid, None))
        assert host.daemons.records.all() == (record,)
        assert host.daemons.records.pipes(record.device_uuid).is_dir()
        assert (daemon_of(host).state, only(host).compute_mode) == (DaemonState.READY, ComputeMode.EXCLUSIVE)
        change(host, StopMps(record.gpu_uuid, None))
        nothing_left(t4, host)


def ignore(*_: object, **__: object) -> None:
    """Do as a daemon does that says yes and goes on."""


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@isolated
def test_a_compute_mode_that_the_driver_does_not_say_is_not_known(t4: Node) -> None:
    with t4.host() as host:
        t4.machine.inject_error("nvmlDeviceGetComputeMode", 999, calls=1)
        (gpu,) = host.driver.observe()
        assert gpu.compute_mode is None
        with pytest.raises(MpsFailed, match="does not report the compute mode"):
            host.daemons.start(gpu, None, gpu.uuid, 3 * GIB, host.driver, time.sleep)
        nothing_left(t4, host)


@isolated
@pytest.mark.parametrize("seen", [ComputeMode.EXCLUSIVE, None])
def test_the_compute_mode_is_put_back_and_read_back_also_where_it_could_not_be_seen(
    t4: Node, monkeypatch: pytest.MonkeyPatch, seen: ComputeMode | None
) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        gpu = replace(only(host), compute_mode=seen)
        with monkeypatch.context() as ignored:
            ignored.setattr(host.driver, "set_compute_mode", ignore)
            with pytest.raises(VerificationFailed, match="set to default, but is exclusive-process"):
                host.daemons.stop(gpu, None, host.driver, time.sleep)
        assert host.daemons.records.all() == (record,)
        host.daemons.stop(gpu, None, host.driver, time.sleep)
        nothing_left(t4, host)


@isolated
def test_a_compute_mode_that_somebody_sets_meanwhile_stays(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        host.driver.set_compute_mode(only(host).uuid, ComputeMode.PROHIBITED)
        change(host, StopMps(only(host).uuid, None))
        nothing_left(t4, host, ComputeMode.PROHIBITED)


@isolated
def test_a_compute_mode_that_somebody_sets_while_the_daemon_ends_stays(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        gpu = only(host)
        host.driver.set_compute_mode(gpu.uuid, ComputeMode.PROHIBITED)
        host.daemons.stop(gpu, None, host.driver, time.sleep)
        nothing_left(t4, host, ComputeMode.PROHIBITED)


# They are looked after


@isolated
def test_a_daemon_that_nobody_needs_goes_after_a_while(t4: Node) -> None:
    now = time.time()
    with t4.host(clock=lambda: now) as host:
        change(host, start(only(host)))
        assert daemon_of(host).state is DaemonState.READY
        share(host, WholeGpu(only(host).uuid))
        now += IDLE_SECONDS + 60
        assert daemon_of(host).state is DaemonState.READY
        with host.ledger.write() as db:
            register.remove_allocation(db, "held")
        nothing_left(t4, host)
        assert not [event for event in host.events() if isinstance(event.data, PlanUndone)]


@isolated
def test_a_daemon_that_dies_leaves_its_parts_without_limits_and_lets_nobody_in(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        part = FractionalShare(WholeGpu(only(host).uuid), 3 * GIB, Sharing.MPS)
        assert host.view().allocations[0].grants == (part,)
        pid = host.daemons.records.all()[0].pid
        end(pid)
        view = host.view()
        assert view.allocations[0].grants[0].walls.isolation is Isolation.NONE
        assert view.node.gpus[0].daemons[0].state is DaemonState.LOST
        host.view()
        (told,) = [event for event in host.events() if isinstance(event.data, LimitsLost)]
        assert told.allocation_id == "held"
        assert "memory" in told.message
        # What is written down stays true, whatever daemon comes after this one.
        with host.ledger.read() as db:
            (stored,) = register.allocations(db)
        assert stored.grants == (part._replace(unlimited=True),)
        with host.ledger.write() as db:
            register.remove_allocation(db, "held")
        nothing_left(t4, host)


@isolated
def test_servers_that_a_daemon_left_when_it_died_are_ended_with_it(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        asked(host, f"start_server -uid {os.getuid()}")
        records = host.daemons.records.all()
        end(records[0].pid)
        nothing_left(t4, host)


@isolated
def test_a_share_whose_process_was_killed_has_its_daemon_started_anew(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        host.release("held", why="killed")
        nothing_left(t4, host)


@isolated
def test_a_device_that_another_plan_works_on_is_left_alone(t4: Node) -> None:
    with t4.host() as host:
        seen: list[tuple[MpsDaemon, ...]] = []

        def while_it_runs(gpu: GpuState, step: Step) -> None:
            with t4.host(clock=lambda: time.time() + 10 * IDLE_SECONDS) as other:
                seen.append(only(other).daemons)

        change(host, start(only(host)))
        host.change(lambda view: Plan("raise", (start(view.node.gpus[0], 6 * GIB),)), progress=while_it_runs)
        assert [each[0].state for each in seen] == [DaemonState.READY]


def end(pid: int) -> None:
    """Kill a process and return when it is gone; a daemon is nobody's child here."""
    started = process_start_time(pid)
    os.kill(pid, signal.SIGKILL)
    while process_lives(pid, started):
        subprocess.run(["true"], check=True)


@isolated
def test_everybody_sees_that_a_daemon_serves_and_nobody_else_reaches_its_sockets(t4: Node, short: Path) -> None:
    with t4.host() as host:
        short.chmod(0o755)
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        pipes = host.daemons.records.pipes(record.device_uuid)
        assert host.places.mps.stat().st_mode & 0o555 == 0o555
        assert pipes.with_suffix(".json").stat().st_mode & 0o444 == 0o444
        assert pipes.stat().st_mode & 0o077 == 0
        # An agent closes the state folder. Containers of all users then come to the sockets by their own mount.
        host.places.state_dir.chmod(0o700)
        change(host, start(only(host), 5 * GIB))
        assert pipes.stat().st_mode & 0o777 == 0o755
        change(host, StopMps(record.gpu_uuid, None))
