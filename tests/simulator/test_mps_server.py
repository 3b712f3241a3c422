"""nvidia-cuda-mps-server of a simulated machine: whom it serves, with what limits, and how faults and deaths spread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.machines import readable_folder, wait_until
from tests.simulator.machines import create, make_machine, mig_devices, span, talking_to
from tests.simulator.mps_caller import DESTROY, FAULT, MpsCaller, mps_callers
from tests.simulator.mps_daemon import MpsBench, mps_daemon
from tests.simulator.smi_runner import Smi
from tranche_simulator import SimulatedMachine

GIB = 2**30
ILLEGAL_ADDRESS = 700
NOT_PERMITTED, CONNECTION_FAILED, SERVER_NOT_READY = 800, 805, 807
INVALID_RESOURCE_CONFIGURATION = 915
MAX_CLIENTS_REACHED, MAX_CONNECTIONS_REACHED, CLIENT_TERMINATED = 808, 809, 810

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be somebody else")


@pytest.fixture
def daemon(machine: SimulatedMachine) -> Iterator[MpsBench]:
    with mps_daemon(machine) as started:
        yield started


@pytest.fixture
def daemon_of_root() -> Iterator[MpsBench]:
    """One whose machine every user can reach."""
    with readable_folder() as folder, mps_daemon(make_machine(folder)) as started:
        yield started


def status(daemon: MpsBench) -> str:
    (server,) = daemon.servers()
    return daemon(f"get_server_status {server}").strip()


def test_the_first_client_starts_a_server_that_stays(daemon: MpsBench) -> None:
    assert daemon.servers() == []
    caller = MpsCaller.connect(daemon).join()
    assert caller.error == 0
    assert daemon.servers() == [caller.server]
    assert daemon(f"get_client_list {caller.server}") == f"{os.getpid()}\n"
    caller.leave()
    wait_until(lambda: daemon(f"get_client_list {caller.server}") == "")
    assert daemon.servers() == [caller.server]
    log = daemon.log("control.log")
    pending = f"NEW CLIENT {os.getpid()} from user {os.geteuid()}: Server is not ready, push client to pending list"
    assert log.index(pending) < log.index("Starting new server") < log.index(f"NEW SERVER {caller.server}: Ready")
    MpsCaller.connect(daemon).join().leave()
    assert f"NEW CLIENT {os.getpid()} from user {os.geteuid()}: Server already exists" in daemon.log("control.log")


def test_server_log_of_a_client(daemon: MpsBench) -> None:
    with mps_callers(daemon, 2) as (first, second):
        server = first.server
        first.leave()
        wait_until(lambda: "Client process disconnected" in daemon.log("server.log"))
        second.leave()
        wait_until(lambda: daemon.log("server.log").count("Client process disconnected") == 2)
    new = [
        "Volta MPS Server: Received new client request",
        "MPS Server: worker created",
        "Volta MPS: Creating worker thread",
    ]
    gone = "Receive command failed, assuming client exit"
    left = "Volta MPS: Client disconnected. Number of active client contexts is"
    ended = "Volta MPS: Client process disconnected"
    assert [line.partition("] ")[2] for line in daemon.log("server.log").splitlines()[4:]] == [
        *new,
        *new,
        gone,
        f"{left} 1",
        ended,
        gone,
        f"{left} 0",
        ended,
    ]
    assert daemon.servers() == [server]


def test_ps_lists_who_has_a_context(daemon: MpsBench) -> None:
    with mps_callers(daemon, 1) as (caller,):
        header, row = daemon("ps").splitlines()
        assert header.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        shortened = daemon.machine.gpus()[0].uuid[:23]
        assert row.split() == [str(os.getpid()), "0", str(caller.server), shortened, "4026531836", "./nbody"]
        assert daemon(f"ps -p {caller.server}").splitlines() == [header, row]
        caller.tell(DESTROY)
        wait_until(lambda: daemon("ps") == f"{header}\n")


def test_limits_reach_clients_by_ordinal_or_uuid_the_last_one_set(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4", "T4", "T4")
    uuids = [gpu.uuid for gpu in machine.gpus()]
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES=f"{uuids[2]},{uuids[1]},{uuids[0]}") as daemon:
        daemon("set_default_device_pinned_mem_limit 0 1G")
        daemon(f"set_default_device_pinned_mem_limit {uuids[2]} 2G")
        daemon(f"set_default_device_pinned_mem_limit {uuids[1]} 3G")
        daemon("set_default_device_pinned_mem_limit 1 1044M")
        daemon("set_default_device_pinned_mem_limit 9 1G")
        caller = MpsCaller.connect(daemon).join()
        assert caller.limits == {uuids[2]: 2 * GIB, uuids[1]: 1044 << 20, uuids[0]: 0}


def test_settings_of_a_server_hold_for_later_clients(daemon: MpsBench) -> None:
    (uuid,) = (gpu.uuid for gpu in daemon.machine.gpus())
    daemon("set_default_device_pinned_mem_limit 0 2G")
    daemon("set_default_active_thread_percentage 50")
    early = MpsCaller.connect(daemon).join()
    daemon("set_default_device_pinned_mem_limit 0 1G")
    daemon("set_default_active_thread_percentage 10")
    same = MpsCaller.connect(daemon).join()
    daemon(f"set_device_pinned_mem_limit {early.server} 0 3G")
    daemon(f"set_active_thread_percentage {early.server} 25")
    later = MpsCaller.connect(daemon).join()
    assert [caller.limits for caller in (early, same, later)] == [{uuid: 2 * GIB}, {uuid: 2 * GIB}, {uuid: 3 * GIB}]
    assert [caller.percentage for caller in (early, same, later)] == [50, 50, 25]


@as_root
def test_users_take_turns_and_the_server_is_replaced(daemon_of_root: MpsBench) -> None:
    daemon = daemon_of_root
    first = MpsCaller.connect(daemon, uid=1001).join()
    other = MpsCaller.connect(daemon, uid=1002)
    wait_until(lambda: "from user 1002: Server is not ready, push client to pending list" in daemon.log("control.log"))
    second = MpsCaller.connect(daemon, uid=1001).join()
    assert second.server == first.server
    first.leave()
    wait_until(lambda: daemon.log("server.log").count("Client process disconnected") == 1)
    assert other.waits()
    second.leave()
    assert other.join().error == 0
    assert other.server != first.server
    assert Path(f"/proc/{other.server}").stat().st_uid == 1002
    assert f"Server {first.server} exited with status 0" in daemon.log("control.log")


@as_root
def test_a_waiting_client_that_gives_up_is_forgotten(daemon_of_root: MpsBench) -> None:
    daemon = daemon_of_root
    first = MpsCaller.connect(daemon, uid=1001).join()
    waiting = MpsCaller.connect(daemon, uid=1002)
    wait_until(lambda: "from user 1002: Server is not ready, push client to pending list" in daemon.log("control.log"))
    waiting.leave()
    daemon.servers()  # a later answer: the daemon has seen the client hang up
    first.leave()
    assert MpsCaller.connect(daemon, uid=1001).join().server == first.server


@as_root
def test_the_multi_user_server_serves_everybody_at_once() -> None:
    with readable_folder() as folder, mps_daemon(make_machine(folder), "-multiuser-server") as daemon:
        callers = [MpsCaller.connect(daemon, uid=uid).join() for uid in (1001, 1002, 0)]
        assert {caller.server for caller in callers} == set(daemon.servers())
        assert Path(f"/proc/{callers[0].server}").stat().st_uid == 0


@as_root
def test_a_daemon_of_a_user_serves_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with readable_folder() as folder, mps_daemon(make_machine(folder), start=False) as daemon:
        monkeypatch.setenv("TRANCHE_CACHE_DIR", str(folder / "cache"))  # the user must reach the program
        os.chmod(daemon.folder, 0o777)
        daemon.start(user=1001)
        assert MpsCaller.connect(daemon, uid=1002).join().error == NOT_PERMITTED
        assert MpsCaller.connect(daemon, uid=1001).join().error == 0


def test_client_maximum(daemon: MpsBench) -> None:
    with mps_callers(daemon, 48) as callers:
        late = MpsCaller.connect(daemon).join()
        assert late.error == 0
        assert late.create() == MAX_CLIENTS_REACHED
        assert "Maximum number of client contexts" in daemon.log("server.log")
        callers[7].tell(DESTROY)
        wait_until(lambda: late.create() == 0)
        late.leave()


def test_more_connections_leave_room_for_fewer_clients(daemon: MpsBench) -> None:
    callers = [MpsCaller.connect(daemon, connections=32).join() for _ in range(4)]
    assert [caller.create() for caller in callers] == [0, 0, 0, MAX_CONNECTIONS_REACHED]


def test_a_fault_is_everybodys_and_lasts_until_the_last_has_left(daemon: MpsBench) -> None:
    with mps_callers(daemon, 3) as callers:
        bystander = MpsCaller.connect(daemon).join()
        callers[1].tell(FAULT, code=ILLEGAL_ADDRESS)
        wait_until(lambda: status(daemon) == "FAULT")
        assert [caller.health() for caller in callers] == [ILLEGAL_ADDRESS] * 3
        assert bystander.health() == 0  # it has no context on that GPU
        assert MpsCaller.connect(daemon).join().error == SERVER_NOT_READY
        for caller in callers[:2]:
            caller.leave()
        wait_until(lambda: daemon.log("server.log").count("Client process disconnected") == 2)
        assert status(daemon) == "FAULT"
        callers[2].leave()
        wait_until(lambda: status(daemon) == "ACTIVE")
        assert MpsCaller.connect(daemon).join().error == 0
        assert f"client process {os.getpid()}" in daemon.log("server.log")


def test_a_fault_reaches_only_gpus_that_the_culprit_uses(tmp_path: Path) -> None:
    with mps_daemon(make_machine(tmp_path, "T4", "T4")) as daemon:
        culprit, beside, elsewhere = (MpsCaller.connect(daemon).join() for _ in range(3))
        assert [culprit.create(0), beside.create(0), beside.create(1), elsewhere.create(1)] == [0] * 4
        culprit.tell(FAULT, code=ILLEGAL_ADDRESS)
        wait_until(lambda: status(daemon) == "FAULT")
        assert [caller.health() for caller in (culprit, beside, elsewhere)] == [ILLEGAL_ADDRESS, ILLEGAL_ADDRESS, 0]
        assert elsewhere.create(0) == SERVER_NOT_READY


def test_terminate_client(daemon: MpsBench) -> None:
    with mps_callers(daemon, 1) as (caller,):
        assert daemon(f"terminate_client {caller.server} {os.getpid()}") == "0\n"
        assert caller.health() == CLIENT_TERMINATED
        assert len(daemon("ps").splitlines()) == 1
        assert daemon(f"get_client_list {caller.server}") == ""
        assert caller.create() == CLIENT_TERMINATED
        assert daemon(f"terminate_client {caller.server} {os.getpid()}") == "CUDA_ERROR_INVALID_VALUE\n"


def test_a_server_that_dies_leaves_its_clients_alone_and_the_next_gets_another(daemon: MpsBench) -> None:
    with mps_callers(daemon, 1) as (caller,):
        os.kill(caller.server, signal.SIGKILL)
        assert caller.connection.recv(1) == b""
        wait_until(lambda: daemon.servers() == [])
        later = MpsCaller.connect(daemon).join()
        assert (later.error, later.server == caller.server) == (0, False)


def test_a_daemon_that_dies_leaves_the_server_to_its_clients(daemon: MpsBench) -> None:
    with mps_callers(daemon, 1) as (caller,):
        os.kill(daemon.pid(), signal.SIGKILL)
        wait_until(lambda: daemon.program(typed="ps\n").code == 1)
        assert caller.create() == 0
        caller.leave()
        wait_until(lambda: daemon.machine.clients() == ())


def test_quit_waits_for_clients_and_refuses_new_ones(daemon: MpsBench) -> None:
    with mps_callers(daemon, 1) as (caller,), daemon.typing("quit") as terminal:
        wait_until(lambda: "Cmd:quit" in daemon.log("control.log"))
        assert MpsCaller.connect(daemon).join().error == SERVER_NOT_READY
        assert caller.create() == 0
        assert terminal.poll() is None
        caller.leave()
        assert terminal.communicate()[0] == ""
    assert daemon.program(typed="ps\n").code == 1


def test_quit_with_a_time_ends_clients_connections(daemon: MpsBench) -> None:
    with mps_callers(daemon, 1) as (caller,):
        assert daemon("quit -t 0") == ""
        assert caller.connection.recv(1) == b""
    assert daemon.program(typed="ps\n").code == 1


def test_a_client_whose_server_cannot_start_is_told(machine: SimulatedMachine) -> None:
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES="") as daemon:
        assert MpsCaller.connect(daemon).join().error == CONNECTION_FAILED


@pytest.mark.parametrize(("mode", "used", "error"), [
    ("EXCLUSIVE_PROCESS", False, 0),
    ("EXCLUSIVE_PROCESS", True, CONNECTION_FAILED),
    ("DEFAULT", True, 0),
    ("PROHIBITED", False, CONNECTION_FAILED),
])  # fmt: skip
def test_compute_modes(machine: SimulatedMachine, mode: str, used: bool, error: int) -> None:
    Smi(machine).succeed("-c", mode)
    with mps_daemon(machine) as daemon:
        client = machine.attach(machine.gpus()[0].uuid) if used else None
        assert MpsCaller.connect(daemon).join().error == error
        if client is not None:
            machine.detach(client)


def test_a_server_in_a_mig_device(machine: SimulatedMachine, a100: Any) -> None:
    slices = [create(a100, 9), create(a100, 19)]
    for each in slices:
        span(each)
    large, small = (nvml.nvmlDeviceGetUUID(device) for device in mig_devices(a100))
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES=small) as daemon:
        daemon("set_default_device_pinned_mem_limit 0 1G")
        daemon(f"set_default_device_pinned_mem_limit {small} 2G")
        with mps_callers(daemon, 6):  # a seventh of the multiprocessors, a seventh of the clients
            late = MpsCaller.connect(daemon).join()
            assert late.limits == {small: GIB}
            assert late.create() == MAX_CLIENTS_REACHED
        (client,) = machine.clients()
        assert client.gpu_instance_id is not None
    with mps_daemon(machine) as daemon, talking_to(machine):
        assert list(MpsCaller.connect(daemon).join().limits or {}) == [large]


def test_static_partitioning_leaves_no_client_a_context_without_a_partition(machine: SimulatedMachine) -> None:
    with mps_daemon(machine, "-S") as daemon:
        assert MpsCaller.connect(daemon).join().create() == INVALID_RESOURCE_CONFIGURATION


def test_the_daemons_of_a_machine_end_with_it_and_no_others(machine: SimulatedMachine, tmp_path: Path) -> None:
    with mps_daemon(machine) as kept, mps_daemon(make_machine(tmp_path / "other"), start=False) as gone:
        ending = gone.foreground()
        wait_until(lambda: gone.program(typed="get_server_list\n").code == 0)
        gone.machine.destroy()
        assert ending.wait(60) == -signal.SIGKILL
        ending.communicate()
        assert kept.program(typed="get_server_list\n").code == 0
