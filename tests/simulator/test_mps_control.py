"""nvidia-cuda-mps-control of a simulated machine: the daemon, its files, and its commands by their text."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import readable_folder, wait_until
from tests.simulator.machines import make_machine
from tests.simulator.mps_daemon import MpsBench, mps_daemon
from tests.simulator.smi_runner import Answer, Smi
from tranche_simulator import SimulatedMachine

NO_DAEMON = Answer(1, "Cannot find MPS control daemon process\n")


@pytest.fixture
def daemon(machine: SimulatedMachine) -> Iterator[MpsBench]:
    with mps_daemon(machine) as started:
        yield started


def test_version(daemon: MpsBench) -> None:
    assert daemon.program("-v") == Answer(0, "Binary version: 13000\n")


def test_without_a_daemon(machine: SimulatedMachine) -> None:
    with mps_daemon(machine, start=False) as none:
        assert none.program(typed="get_server_list\n") == NO_DAEMON


def test_files_of_the_pipe_folder(daemon: MpsBench) -> None:
    assert stat.S_ISSOCK((daemon.pipe / "control").stat().st_mode)
    assert stat.S_ISFIFO((daemon.pipe / "log").stat().st_mode)
    assert {file.name for file in daemon.pipe.iterdir()} == {
        "control",
        "control_lock",
        "log",
        "nvidia-cuda-mps-control.pid",
    }
    command_line = Path(f"/proc/{daemon.pid()}/cmdline").read_bytes().split(b"\0")
    assert command_line[0].endswith(b"nvidia-cuda-mps-control")
    environ = Path(f"/proc/{daemon.pid()}/environ").read_bytes().split(b"\0")
    assert f"CUDA_MPS_PIPE_DIRECTORY={daemon.pipe}".encode() in environ


def test_a_second_daemon_of_a_folder_is_refused(daemon: MpsBench) -> None:
    assert daemon.program("-d") == Answer(1, "An instance of this daemon is already running\n")


def test_a_folder_whose_daemon_was_killed_is_taken_by_the_next(daemon: MpsBench) -> None:
    os.kill(daemon.pid(), signal.SIGKILL)
    wait_until(lambda: daemon.program(typed="get_server_list\n") == NO_DAEMON)
    daemon.start()
    assert daemon("get_server_list") == ""


def test_a_path_too_long_for_a_socket_shows_only_in_the_next_command(machine: SimulatedMachine, tmp_path: Path) -> None:
    with mps_daemon(machine, start=False) as short:
        for length, works in ((107 - len("/control"), True), (108 - len("/control"), False)):
            pipe = short.folder / ("p" * (length - len(str(short.folder)) - 1))
            named = MpsBench(machine, short.folder, {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)})
            assert named.program("-d", **named.variables) == Answer(0, "")
            answer = named.program(typed="get_default_active_thread_percentage\nquit\n", **named.variables)
            assert answer == (Answer(0, "100.0\n") if works else NO_DAEMON)


def test_quit_takes_servers_and_files_along(daemon: MpsBench) -> None:
    server, pid = daemon.server(), daemon.pid()
    assert daemon("quit") == ""
    assert [file.name for file in daemon.pipe.iterdir()] == ["control_lock"]
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert not Path(f"/proc/{server}").exists()
    assert daemon.program(typed="get_server_list\n") == NO_DAEMON


def test_defaults_are_lost_at_quit(daemon: MpsBench) -> None:
    daemon("set_default_active_thread_percentage 25")
    daemon("quit")
    daemon.start()
    assert daemon("get_default_active_thread_percentage") == "100.0\n"


def test_several_commands_of_one_input_and_a_command_as_arguments(daemon: MpsBench) -> None:
    both = daemon.program(typed="get_default_active_thread_percentage\n\nget_default_client_priority")
    assert both == Answer(0, "100.0\n0\n")
    assert daemon.program("get_default_active_thread_percentage") == Answer(0, "100.0\n")


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_active_thread_percentage 25", "25.0\n"),
        ("set_default_active_thread_percentage 33.3", "33.3\n"),
        ("set_default_device_pinned_mem_limit 0 1G", ""),
        ("set_default_device_pinned_mem_limit 77 1G", ""),
        ("set_default_device_pinned_mem_limit GPU-none 1G", ""),
        ("get_default_device_pinned_mem_limit 0", ""),
        ("set_default_client_priority 1", ""),
        ("get_server_list", ""),
        ("get_device_client_list", ""),
    ],
)
def test_answers(daemon: MpsBench, command: str, answer: str) -> None:
    assert daemon(command) == answer


@pytest.mark.parametrize(
    "command",
    [
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_device_pinned_mem_limit 0 1T",
        "set_default_device_pinned_mem_limit 0 -1G",
        "set_default_device_pinned_mem_limit 0",
        "set_default_client_priority 2",
        "get_server_status 1",
        "get_client_list 1",
        "set_active_thread_percentage 1 10",
        "set_client_priority 1",
        "start_server -uid root",
        "lspart",
        "sm_partition add 0 7",
        "quit now",
        "no_such_command",
    ],
)
def test_a_refusal_is_text_and_changes_nothing(daemon: MpsBench, command: str) -> None:
    assert daemon(command)  # the exit code is zero: only reading back tells
    assert daemon("get_default_active_thread_percentage") == "100.0\n"
    assert daemon("get_default_client_priority") == "0\n"
    assert daemon("get_default_device_pinned_mem_limit 0") == ""
    assert daemon.servers() == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [("1044M", "1G"), ("1023M", "1023M"), ("2047M", "1G"), ("2048M", "2G"), ("3G", "3G"), ("1G", "1G")],
)
def test_a_limit_reads_back_in_whole_gib_from_one_on(daemon: MpsBench, given: str, shown: str) -> None:
    daemon(f"set_default_device_pinned_mem_limit 0 {given}")
    assert daemon("get_default_device_pinned_mem_limit 0") == f"{shown}\n"


def test_ordinal_and_uuid_are_separate_keys(daemon: MpsBench) -> None:
    uuid = daemon.machine.gpus()[0].uuid
    daemon("set_default_device_pinned_mem_limit 0 1G")
    assert daemon(f"get_default_device_pinned_mem_limit {uuid}") == ""
    daemon(f"set_default_device_pinned_mem_limit {uuid} 2G")
    assert daemon("get_default_device_pinned_mem_limit 0") == "1G\n"
    assert daemon(f"get_default_device_pinned_mem_limit {uuid}") == "2G\n"


def test_defaults_come_from_the_environment(machine: SimulatedMachine) -> None:
    with mps_daemon(
        machine,
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="40",
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=512MB,1=2G",
        CUDA_MPS_CLIENT_PRIORITY="1",
    ) as daemon:
        assert daemon("get_default_active_thread_percentage") == "40.0\n"
        assert daemon("get_default_device_pinned_mem_limit 0") == "512M\n"
        assert daemon("get_default_device_pinned_mem_limit 1") == "2G\n"
        assert daemon("get_default_client_priority") == "1\n"


def test_settings_of_a_server_start_as_the_defaults_and_are_its_own(daemon: MpsBench) -> None:
    daemon("set_default_active_thread_percentage 50")
    daemon("set_default_device_pinned_mem_limit 0 4G")
    server = daemon.server()
    daemon("set_default_active_thread_percentage 10")
    daemon("set_default_device_pinned_mem_limit 0 1G")
    assert daemon(f"get_active_thread_percentage {server}") == "50.0\n"
    assert daemon(f"get_device_pinned_mem_limit {server} 0") == "4G\n"
    assert daemon(f"set_active_thread_percentage {server} 60") == "60.0\n"
    assert daemon(f"set_device_pinned_mem_limit {server} 0 8G") == ""
    assert daemon(f"get_device_pinned_mem_limit {server} 0") == "8G\n"
    assert daemon("get_default_active_thread_percentage") == "10.0\n"


def test_a_server_uses_every_gpu_and_stays(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4", "T4", "H100-80GB-SXM")
    with mps_daemon(machine) as daemon:
        server = daemon.server()
        assert [(client.gpu, client.pid, client.memory >> 20) for client in machine.clients()] == [
            (0, server, 30),
            (1, server, 30),
            (2, server, 60),
        ]
        assert daemon(f"get_server_status {server}") == "ACTIVE\n"
        assert daemon.server() == server
        listed = Smi(machine).succeed("--query-compute-apps=pid,name", "--format=csv,noheader")
        assert listed.splitlines() == [f"{server}, nvidia-cuda-mps-server"] * 3


def test_a_server_serves_what_the_daemon_may_see(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4", "T4", "T4")
    last, first = machine.gpus()[2].uuid, machine.gpus()[0].uuid
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES=f"{last},{first[:12]},nothing,1") as daemon:
        daemon.server()
        rows = [line.split(",") for line in daemon("device_query --csv").splitlines()]
        assert [(row[0], row[2]) for row in rows[1:]] == [("0", last), ("1", first)]
        assert {client.gpu for client in machine.clients()} == {0, 2}


def test_a_server_that_finds_no_gpu_ends_and_its_daemon_stays(machine: SimulatedMachine) -> None:
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES="7") as daemon:
        daemon(f"start_server -uid {os.geteuid()}")
        wait_until(lambda: "exited with status 1" in daemon.log("control.log"))
        assert daemon.servers() == []
        assert "no CUDA-capable device is detected" in daemon.log("server.log")


def test_a_server_that_is_killed_is_reported_and_replaced(daemon: MpsBench) -> None:
    killed = daemon.server()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: daemon.servers() == [])
    assert f"Server {killed} exited with status 9" in daemon.log("control.log")
    assert daemon.server() != killed


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be somebody else")
def test_a_server_of_another_user_replaces_an_idle_one() -> None:
    with readable_folder() as folder, mps_daemon(make_machine(folder)) as daemon:
        first = daemon.server()
        daemon("start_server -uid 12345")
        wait_until(lambda: daemon.servers() not in ([], [first]))
        second = daemon.server(12345)
        assert Path(f"/proc/{second}").stat().st_uid == 12345
        assert Path(f"/proc/{second}/comm").read_text() == "nvidia-cuda-mps\n"
        assert f"Starting new server {second} for user 12345" in daemon.log("control.log")


def test_only_root_may_serve_all_users(machine: SimulatedMachine) -> None:
    with mps_daemon(machine, start=False) as daemon:
        assert daemon.program("-d", "-multiuser-server").code == (0 if os.geteuid() == 0 else 1)


def test_control_log(daemon: MpsBench) -> None:
    daemon("set_default_active_thread_percentage 25")
    wait_until(lambda: "UI closed" in daemon.log("control.log"))
    pid = f"Control {daemon.pid():5}]"
    assert daemon.log("control.log").splitlines() == [
        f"{pid} Starting control daemon using socket {daemon.pipe}/control",
        f"{pid} To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={daemon.pipe}",
        f"{pid} Accepting connection...",
        f"{pid} NEW UI",
        f"{pid} Cmd:set_default_active_thread_percentage 25",
        f"{pid} 25.0",
        f"{pid} UI closed",
    ]


def test_server_log(daemon: MpsBench) -> None:
    daemon("set_default_active_thread_percentage 33")
    server = daemon.server()
    assert daemon.log("server.log").splitlines() == [
        f"Other {server:5}] Start",
        f"Other {server:5}] Volta MPS: Creating server context on device 0",
        f"Other {server:5}] activeThreadsPercentage set to 33.000000",
        f"Other {server:5}] MPS Server is started",
    ]
    assert f"NEW SERVER {server}: Ready" in daemon.log("control.log")


def test_in_the_foreground_the_log_is_on_stderr_too_and_a_signal_ends_the_daemon(machine: SimulatedMachine) -> None:
    with mps_daemon(machine, start=False) as daemon:
        with daemon.foreground() as process:
            assert process.stderr is not None
            assert "Starting control daemon using socket" in process.stderr.readline()
            server = daemon.server()
            process.terminate()
            rest = process.stderr.read()
        assert process.returncode == 0
        assert f"NEW SERVER {server}: Ready" in rest
        assert "MPS Server is started" in rest
        assert not Path(f"/proc/{server}").exists()
