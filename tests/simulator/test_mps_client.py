"""Unmodified CUDA programs under an MPS daemon of a simulated machine: limits, ceilings, errors, and what tools list."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pynvml as nvml
import pytest

from tests.machines import wait_until
from tests.simulator.cuda_programs import MIB, CudaProgram, cuda, cuda_program
from tests.simulator.machines import create, gpu, make_machine, mig_devices, span, talking_to
from tests.simulator.mps_caller import mps_callers
from tests.simulator.mps_daemon import MpsBench, mps_daemon
from tests.simulator.smi_runner import Smi
from tests.support.length import some_of
from tranche_simulator import SimulatedMachine

OUT_OF_MEMORY, DEVICE_UNAVAILABLE, NO_DEVICE, ILLEGAL_ADDRESS = 2, 46, 100, 700
CONNECTION_FAILED, RPC_FAILURE, SERVER_NOT_READY, MAX_CLIENTS_REACHED, CLIENT_TERMINATED = 805, 806, 807, 808, 810

# The largest allocation in MiB that succeeds, what the context left of the limit included; free and total as CUDA tells them.
MEASURE = """
context()
available, total = (value >> 20 for value in check(cu.cuMemGetInfo()))
refused = code(cu.cuMemAlloc((available + 2) << 20))
granted = code(cu.cuMemAlloc(available << 20))
tell([available, total, refused, granted])
"""
HOLD = """
context()
check(cu.cuMemAlloc(1 << 30))
tell("here")
wait()
tell(code(cu.cuMemAlloc(1 << 20)))
wait()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[MpsBench]:
    """One on a machine of a T4 whose contexts take 128 MiB."""
    machine = make_machine(tmp_path, "T4")
    machine.set_context_memory(128 * MIB)
    with mps_daemon(machine) as started:
        yield started


def run(daemon: MpsBench, code: str, **variables: str) -> Any:
    return cuda(daemon.machine, code, CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe), **variables)


def test_a_pinned_limit_is_a_wall_for_each_process(daemon: MpsBench) -> None:
    daemon("set_default_device_pinned_mem_limit 0 3G")
    total = 15360 - 0
    for _ in range(2):
        available, seen, refused, granted = run(daemon, MEASURE)
        assert available == 3 * 1024 - 128
        assert abs(seen - total) < 1024  # the whole GPU's, whatever the limit
        assert (refused, granted) == (OUT_OF_MEMORY, 0)


@pytest.mark.parametrize(
    ("own", "available"),
    [
        ("0=1G", 1024 - 128),
        ("{uuid}=1G", 1024 - 128),
        ("0=512MB", 512 - 128),
        ("0=4G", 2048 - 128),
        ("nonsense", 2048 - 128),
    ],
)
def test_a_process_can_lower_its_limit_and_not_raise_it(daemon: MpsBench, own: str, available: int) -> None:
    daemon("set_default_device_pinned_mem_limit 0 2G")
    uuid = daemon.machine.gpus()[0].uuid
    assert run(daemon, MEASURE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=own.format(uuid=uuid))[0] == available


@pytest.mark.parametrize("unseen", ["1=1G", "0=1G,7=1G", "GPU-00000000-0000=1G"])
def test_an_entry_for_a_gpu_that_the_process_does_not_see_undoes_every_limit(daemon: MpsBench, unseen: str) -> None:
    daemon("set_default_device_pinned_mem_limit 0 2G")
    assert run(daemon, MEASURE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=unseen)[0] > 10 * 1024


def test_clients_number_the_devices_that_the_daemon_leaves(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4", "T4", "T4")
    uuids = [each.uuid for each in machine.gpus()]
    names = (
        "check(cu.cuInit(0)); devices = range(check(cu.cuDeviceGetCount()))\n"
        "tell([bytes(check(cu.cuDeviceGetUuid(i)).bytes).hex() for i in devices])"
    )
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES=uuids[1]) as daemon:
        only = [uuids[1].removeprefix("GPU-").replace("-", "")]
        assert run(daemon, names) == only
        assert run(daemon, names, CUDA_VISIBLE_DEVICES="0") == only
        assert run(daemon, names, CUDA_VISIBLE_DEVICES=uuids[1]) == only
        for old in ("1", uuids[0]):
            assert run(daemon, "tell(code(cu.cuInit(0)))", CUDA_VISIBLE_DEVICES=old) == NO_DEVICE


COUNT = """
from cuda.bindings.driver import CUdevice_attribute as a
context()
tell(check(cu.cuDeviceGetAttribute(a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)))
"""


@pytest.mark.parametrize(
    ("default", "own", "count"),
    [("100", "", 40), ("50", "", 20), ("25", "100", 10), ("100", "10", 4), ("33", "", 12), ("1", "", 2)],
)
def test_a_percentage_is_a_ceiling_in_multiprocessors(daemon: MpsBench, default: str, own: str, count: int) -> None:
    daemon(f"set_default_active_thread_percentage {default}")
    variables = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": own} if own else {}
    assert run(daemon, COUNT, **variables) == count


def test_tools_list_the_server_and_its_clients(daemon: MpsBench) -> None:
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe)) as program:
        program.told()
        (server,) = daemon.servers()
        with talking_to(daemon.machine):
            computing = nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu())
            clients = nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu())
        client = (program.pid, 1024 + 128)
        assert [(each.pid, each.usedGpuMemory // MIB) for each in computing] == [(server, 30), client]
        assert [(each.pid, each.usedGpuMemory // MIB) for each in clients] == [client]
        assert daemon(f"get_client_list {server}") == f"{program.pid}\n"
        smi = Smi(daemon.machine)
        rows = [line.split()[4:6] for line in smi.succeed().splitlines() if "N/A  N/A  " in line]
        assert rows == [[str(server), "C"], [str(program.pid), "M+C"]]
        types = [line.split()[-1] for line in smi.succeed("-q").splitlines() if line.strip().startswith("Type ")]
        assert types == ["C", "M+C"]
        listed = smi.succeed("--query-compute-apps=pid", "--format=csv,noheader").split()
        assert listed == [str(server), str(program.pid)]
    wait_until(lambda: daemon(f"get_client_list {server}") == "")


def test_without_a_daemon_programs_run_without_limits_and_are_not_told(daemon: MpsBench) -> None:
    daemon("set_default_device_pinned_mem_limit 0 1G")
    assert run(daemon, MEASURE)[0] < 1024
    for folder in ("/nowhere", str(daemon.folder)):
        assert cuda(daemon.machine, MEASURE, CUDA_MPS_PIPE_DIRECTORY=folder)[0] > 10 * 1024
    os.kill(daemon.pid(), signal.SIGKILL)
    wait_until(lambda: daemon.program(typed="ps\n").code == 1)
    assert run(daemon, MEASURE)[0] > 10 * 1024


def test_an_exclusive_gpu_admits_clients_of_its_server_alone(daemon: MpsBench) -> None:
    Smi(daemon.machine).succeed("-c", "EXCLUSIVE_PROCESS")
    create_context = "check(cu.cuInit(0)); tell(code(cu.cuCtxCreate(None, 0, 0)))"
    assert run(daemon, create_context) == 0
    assert cuda(daemon.machine, create_context, CUDA_MPS_PIPE_DIRECTORY="/nowhere") == DEVICE_UNAVAILABLE
    assert run(daemon, create_context) == 0


def test_a_client_whose_server_dies_is_told_at_its_next_call(daemon: MpsBench) -> None:
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe)) as program:
        program.told()
        (server,) = daemon.servers()
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: daemon.servers() == [])
        program.go_on()
        assert program.told() == RPC_FAILURE


def test_a_terminated_client_holds_nothing_and_can_do_nothing(daemon: MpsBench) -> None:
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe)) as program:
        program.told()
        (server,) = daemon.servers()
        assert daemon(f"terminate_client {server} {program.pid}") == "0\n"
        assert [client.pid for client in daemon.machine.clients()] == [server]
        program.go_on()
        assert program.told() == CLIENT_TERMINATED
        assert [client.pid for client in daemon.machine.clients()] == [server]


def test_a_fault_of_one_client_ends_the_other(daemon: MpsBench) -> None:
    faulty = """
context()
tell("here")
wait()
tell(code(cu.cuMemAlloc(1)))
wait()
"""
    pipe = str(daemon.pipe)
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=pipe) as beside:
        beside.told()
        with cuda_program(daemon.machine, faulty, CUDA_MPS_PIPE_DIRECTORY=pipe) as culprit:
            culprit.told()
            daemon.machine.inject_error("cuMemAlloc", 700)
            culprit.go_on()
            assert culprit.told() == 700
            (server,) = daemon.servers()
            wait_until(lambda: "FAULT" in daemon(f"get_server_status {server}"))
            assert run(daemon, "tell(code(cu.cuInit(0)))") == SERVER_NOT_READY
            beside.go_on()
            assert beside.told() == 700
    wait_until(lambda: "ACTIVE" in daemon(f"get_server_status {server}"))
    assert run(daemon, "tell(code(cu.cuInit(0)))") == 0


def test_a_forked_child_does_not_keep_its_parent_a_client(daemon: MpsBench) -> None:
    code = "context()\nchild = os.fork()\nif child == 0:\n    wait()\n    os._exit(0)\ntell(child)\nos._exit(0)"
    with cuda_program(daemon.machine, code, CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe)) as program:
        child = program.told()
        (server,) = daemon.servers()
        wait_until(lambda: daemon(f"get_client_list {server}") == "")
        assert Path(f"/proc/{child}").exists()
        program.go_on()


def test_in_a_mig_device(machine: SimulatedMachine, a100: Any) -> None:
    machine.set_context_memory(128 * MIB)
    for profile in (9, 19):
        span(create(a100, profile))
    large, small = (nvml.nvmlDeviceGetUUID(device) for device in mig_devices(a100))
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES=large) as daemon:
        daemon("set_default_device_pinned_mem_limit 0 2G")
        assert run(daemon, MEASURE, CUDA_VISIBLE_DEVICES=large)[0] == 2048 - 128
        assert run(daemon, MEASURE)[0] == 2048 - 128
        assert run(daemon, "tell(code(cu.cuInit(0)))", CUDA_VISIBLE_DEVICES=small) == NO_DEVICE
        own = f"{large}=1G"  # not known to count by that name
        assert run(daemon, MEASURE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=own)[0] == 2048 - 128
        assert run(daemon, MEASURE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")[0] == 1024 - 128


def test_a_driver_before_495_knows_no_limits(tmp_path: Path) -> None:
    machine = SimulatedMachine.create("old", boards=["T4"], root=tmp_path, time_scale=0, driver="470.256.02")
    with mps_daemon(machine, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G") as daemon:
        assert daemon.program("-v").text == "Binary version: 11040\n"
        for command in ("set_default_device_pinned_mem_limit 0 1G", "get_default_device_pinned_mem_limit 0"):
            assert daemon(command).startswith("Unknown command")
        assert run(daemon, MEASURE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")[0] > 10 * 1024
        assert daemon("set_default_active_thread_percentage 50") == "50.0\n"


@pytest.mark.parametrize(("driver", "most"), [("580.95.05", 48), ("615.71.09", 60)])
def test_the_client_maximum_follows_the_driver(tmp_path: Path, driver: str, most: int) -> None:
    machine = SimulatedMachine.create("machine", boards=["T4"], root=tmp_path, time_scale=0, driver=driver)
    with mps_daemon(machine) as daemon, mps_callers(daemon, most):
        assert run(daemon, "check(cu.cuInit(0))\ntell(code(cu.cuCtxCreate(None, 0, 0)))") == MAX_CLIENTS_REACHED


@pytest.mark.parametrize(("driver", "counts"), [("550.54.15", False), ("580.95.05", True)])
def test_a_limit_by_uuid_follows_the_driver(tmp_path: Path, driver: str, counts: bool) -> None:
    machine = SimulatedMachine.create("machine", boards=["T4"], root=tmp_path, time_scale=0, driver=driver)
    with mps_daemon(machine) as daemon:
        daemon(f"set_default_device_pinned_mem_limit {machine.gpus()[0].uuid} 1G")
        assert (run(daemon, MEASURE)[0] < 1024) == counts


def test_a_daemon_that_drops_a_limit_shows_it_when_it_is_read_back(daemon: MpsBench) -> None:
    daemon("set_default_device_pinned_mem_limit 0 2G")
    daemon.machine.inject_error("mpsSetLimit", 999)
    assert daemon("set_default_device_pinned_mem_limit 0 1G") == ""
    assert daemon("get_default_device_pinned_mem_limit 0") == "2G\n"
    assert run(daemon, MEASURE)[0] > 1024


def test_a_server_that_does_not_enforce_a_limit_shows_it_to_a_canary_alone(daemon: MpsBench) -> None:
    daemon("set_default_device_pinned_mem_limit 0 1G")
    daemon.machine.inject_error("mpsEnforceLimit", 999)
    assert run(daemon, MEASURE)[0] > 10 * 1024
    (server,) = daemon.servers()
    assert daemon(f"get_device_pinned_mem_limit {server} 0") == "1G\n"
    assert run(daemon, MEASURE)[0] < 1024


def test_a_server_that_does_not_start_fails_its_clients_once(daemon: MpsBench) -> None:
    daemon.machine.inject_error("mpsServerStart", 999)
    assert run(daemon, "tell(code(cu.cuInit(0)))") == CONNECTION_FAILED
    assert run(daemon, "tell(code(cu.cuInit(0)))") == 0


# A kernel of ten minutes of the model, which its test can wait for no more than its program.
AT_WORK = """
context(); work = kernel()
launch(work, 600 * 10**6)
tell("at work")
wait()
tell(code(cu.cuCtxSynchronize()))
wait()
"""
JOIN = "tell(code(cu.cuInit(0)))"


def with_time(daemon: MpsBench, scale: float = 1.0) -> str:
    """Kernels take time from now on; the daemon's pipe folder."""
    daemon.machine.set_time_scale(scale)
    return str(daemon.pipe)


def departures(daemon: MpsBench) -> int:
    return daemon.log("server.log").count("Client process disconnected")


def test_a_client_killed_amid_its_work_harms_nobody_by_itself(daemon: MpsBench) -> None:
    pipe = with_time(daemon)
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=pipe) as beside:
        beside.told()
        with cuda_program(daemon.machine, AT_WORK, CUDA_MPS_PIPE_DIRECTORY=pipe) as killed:
            killed.told()
        wait_until(lambda: departures(daemon) == 1)
        beside.go_on()
        assert beside.told() == 0
    assert run(daemon, JOIN) == 0


def test_a_client_killed_amid_its_work_can_take_its_neighbours_along(daemon: MpsBench) -> None:
    pipe = with_time(daemon)
    daemon.machine.inject_error("mpsClientKilled", 999)
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=pipe) as beside:
        beside.told()
        with cuda_program(daemon.machine, AT_WORK, CUDA_MPS_PIPE_DIRECTORY=pipe) as killed:
            killed.told()
        (server,) = daemon.servers()
        wait_until(lambda: "FAULT" in daemon(f"get_server_status {server}"))
        beside.go_on()
        assert beside.told() == ILLEGAL_ADDRESS


def test_a_lone_client_killed_amid_its_work_can_wedge_the_server_silently(daemon: MpsBench) -> None:
    pipe = with_time(daemon)
    daemon.machine.inject_error("mpsClientKilled", 999)
    with cuda_program(daemon.machine, AT_WORK, CUDA_MPS_PIPE_DIRECTORY=pipe) as killed:
        killed.told()
    wait_until(lambda: departures(daemon) == 1)
    (server,) = daemon.servers()
    with cuda_program(daemon.machine, JOIN, CUDA_MPS_PIPE_DIRECTORY=pipe) as later:
        wait_until(lambda: daemon(f"get_client_list {server}") == f"{later.pid}\n")
        assert "ACTIVE" in daemon(f"get_server_status {server}")
        with daemon.typing(f"terminate_client {server} {later.pid}") as terminal:
            wait_until(lambda: f"Cmd:terminate_client {server}" in daemon.log("control.log"))
            assert terminal.poll() is None  # for ever
            assert not later.has_told()  # it hangs in cuInit
            daemon("quit -t 0")
            assert terminal.communicate()[0] == ""
        assert later.told() == CONNECTION_FAILED
    daemon.start()
    assert run(daemon, JOIN) == 0


def test_a_server_can_hang_for_all_clients_from_one_on(daemon: MpsBench) -> None:
    pipe = with_time(daemon)
    with cuda_program(daemon.machine, "context(); tell(0); wait()", CUDA_MPS_PIPE_DIRECTORY=pipe) as before:
        assert before.told() == 0
        daemon.machine.inject_error("mpsServerHangs", 999)
        with (
            cuda_program(daemon.machine, JOIN, CUDA_MPS_PIPE_DIRECTORY=pipe) as one,
            cuda_program(daemon.machine, JOIN, CUDA_MPS_PIPE_DIRECTORY=pipe) as other,
        ):
            (server,) = daemon.servers()
            wait_until(lambda: len(daemon(f"get_client_list {server}").split()) == 3)
            assert "ACTIVE" in daemon(f"get_server_status {server}")
            assert not one.has_told()
            assert not other.has_told()
            daemon("quit -t 0")


def test_a_client_whose_work_is_done_harms_nobody_when_it_is_killed(daemon: MpsBench) -> None:
    pipe = with_time(daemon, 1e-6)  # the kernel takes 0.6 ms
    daemon.machine.inject_error("mpsClientKilled", 999)
    with cuda_program(daemon.machine, AT_WORK, CUDA_MPS_PIPE_DIRECTORY=pipe) as killed:
        killed.told()
        killed.go_on()
        assert killed.told() == 0
    wait_until(lambda: departures(daemon) == 1)
    assert run(daemon, JOIN) == 0


def test_terminate_client_waits_for_work_under_way(daemon: MpsBench) -> None:
    pipe = with_time(daemon)
    with cuda_program(daemon.machine, AT_WORK, CUDA_MPS_PIPE_DIRECTORY=pipe) as program:
        program.told()
        (server,) = daemon.servers()
        with daemon.typing(f"terminate_client {server} {program.pid}") as terminal:
            wait_until(lambda: f"Cmd:terminate_client {server}" in daemon.log("control.log"))
            assert len(daemon("ps").splitlines()) == 2  # others are answered meanwhile
            assert terminal.poll() is None
            daemon.machine.set_time_scale(1e-6)
            assert terminal.communicate()[0] == "0\n"
        program.go_on()
        assert program.told() == CLIENT_TERMINATED


def test_a_kernel_with_an_illegal_address_ends_every_client(daemon: MpsBench) -> None:
    pipe = with_time(daemon, 1e-3)
    bad = 'context(); bad = kernel(b"bad")\ntell("here")\nwait()\nlaunch(bad, 0)\ntell(code(cu.cuCtxSynchronize()))\nwait()'
    with cuda_program(daemon.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=pipe) as beside:
        beside.told()
        with cuda_program(daemon.machine, bad, CUDA_MPS_PIPE_DIRECTORY=pipe) as culprit:
            culprit.told()
            culprit.go_on()
            assert culprit.told() == ILLEGAL_ADDRESS
            (server,) = daemon.servers()
            wait_until(lambda: "FAULT" in daemon(f"get_server_status {server}"))
            beside.go_on()
            assert beside.told() == ILLEGAL_ADDRESS


@pytest.mark.parametrize("seed", some_of(range(2), 1))
def test_random_kills_leave_nobody_and_hang_nothing(daemon: MpsBench, seed: int) -> None:
    random, pipe, programs = Random(seed), with_time(daemon, 1e-3), ExitStack()
    work = "tell('here')\ncontext(); work = kernel()\nwhile not launch(work, 10**5): check(cu.cuCtxSynchronize())"
    with programs:
        running: list[CudaProgram] = []
        for _ in range(40):
            match random.choice(("start", "start", "kill", "server", "terminate", "ask")):
                case "start" if len(running) < 4:
                    program = cuda_program(daemon.machine, work, CUDA_MPS_PIPE_DIRECTORY=pipe)
                    running.append(programs.enter_context(program))
                    running[-1].told()  # what comes next strikes it in cuInit, at work, or anywhere between
                case "kill" if running:
                    running.pop(random.randrange(len(running))).kill()
                case "server":
                    for server in daemon.servers():
                        os.kill(server, signal.SIGKILL)
                case "terminate" if running:
                    for server in daemon.servers():
                        daemon(f"terminate_client {server} {random.choice(running).pid}")
                case _:
                    daemon(random.choice(("ps", "get_server_list", "get_device_client_list")))
    wait_until(lambda: {client.pid for client in daemon.machine.clients()} <= set(daemon.servers()))
    wait_until(lambda: run(daemon, JOIN) == 0)  # a server that was killed last may still be taken for one


# The process goes on as the first of a pid namespace of its own, like that of a container.
CONTAINED = """
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000000) == 0
child = os.fork()
if child:
    os.waitpid(child, 0)
    os._exit(0)
libc.prctl(1, 9)  # ends with its parent
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to make pid namespaces")
def test_clients_of_the_same_pid_in_two_containers_are_two(daemon: MpsBench) -> None:
    pipe = str(daemon.pipe)
    with ExitStack() as programs:
        code = CONTAINED + HOLD
        running = [
            programs.enter_context(cuda_program(daemon.machine, code, CUDA_MPS_PIPE_DIRECTORY=pipe)) for _ in range(2)
        ]
        assert [program.told() for program in running] == ["here", "here"]
        (server,) = daemon.servers()
        assert [client.pid for client in daemon.machine.clients() if client.mps_server] == [1, 1]
        first, second = map(int, daemon(f"get_client_list {server}").split())
        assert first != second
        assert daemon(f"terminate_client {server} {first}") == "0\n"
        assert [client.memory >> 30 for client in daemon.machine.clients() if client.mps_server] == [1]
        for program in running:
            program.go_on()
        assert sorted(program.told() for program in running) == [0, CLIENT_TERMINATED]
