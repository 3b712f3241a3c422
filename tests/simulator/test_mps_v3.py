"""Version 3 of the commands of MPS, on a machine whose driver has it: named servers, namespaces, and who may change them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.machines import readable_folder, wait_until
from tests.simulator.cuda_programs import MIB, cuda, cuda_program
from tests.simulator.mps_caller import MpsCaller
from tests.simulator.mps_daemon import MpsBench, mps_daemon
from tranche_simulator import SimulatedMachine

NOT_PERMITTED, CLIENT_TERMINATED = 800, 810
CSV = "--format=csv,noheader"
FREE = "context()\ntell([check(cu.cuMemGetInfo())[0] >> 20, count()])"
COUNT = """
def count():
    which = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return check(cu.cuDeviceGetAttribute(which, 0))
"""
HOLD = 'context()\ntell("here")\nwait()\ntell(code(cu.cuMemAlloc(1)))\nwait()'
# The daemon does not wait until the server has terminated the clients of a namespace that is deleted by force.
UNTIL_TERMINATED = """import time
context()
tell("here")
wait()
while not (ended := code(cu.cuMemAlloc(1))):
    time.sleep(0.001)
tell(ended)
wait()"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be somebody else")


def make(root: Path, driver: str = "615.71.09") -> SimulatedMachine:
    machine = SimulatedMachine.create("machine", boards=["T4", "T4"], root=root, time_scale=0, driver=driver)
    machine.set_context_memory(128 * MIB)
    return machine


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MpsBench]:
    with mps_daemon(make(tmp_path), start=False) as none:
        start(none)
        yield none


def start(bench: MpsBench, *flags: str) -> None:
    answer = bench.program("-d", "-p", "3", *flags)
    assert answer.text == f"To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY={bench.pipe}\n"


def do(bench: MpsBench, command: str, **variables: str) -> str:
    """What a command prints; its exit code is zero whatever it says."""
    answer = bench.program(*command.split(), **variables)
    assert answer.code == 0
    return answer.text


def create(bench: MpsBench, name: str, *options: str) -> None:
    do(bench, f"server create {name} {' '.join(options)}")
    wait_until(lambda: do(bench, f"server get {name} status") == "Ready\n")


def run(bench: MpsBench, code: str, *leaf: str, **variables: str) -> Any:
    """What a program tells whose pipe folder is that of a server or a namespace."""
    return cuda(bench.machine, COUNT + code, CUDA_MPS_PIPE_DIRECTORY=str(bench.pipe.joinpath(*leaf)), **variables)


def test_a_driver_before_615_has_no_version_3(tmp_path: Path) -> None:
    with mps_daemon(make(tmp_path, "610.40.01"), start=False) as none:
        assert none.program("-d", "-p", "3").code == 1
        assert none.program("-d", CUDA_MPS_PROTOCOL_VERSION="3").code == 0
        assert none("get_default_active_thread_percentage") == "100.0\n"


def test_version_2_is_the_default_and_the_variable_beats_the_flag(tmp_path: Path) -> None:
    with mps_daemon(make(tmp_path)) as started:
        assert started("get_server_list") == ""
        started("quit")
        assert started.program("-d", "-p", "2", CUDA_MPS_PROTOCOL_VERSION="3").code == 0
        assert do(started, f"server list {CSV}") == ""
        assert started("get_server_list") == "Unknown module 'get_server_list'\n"
        assert started.program("-q").code == 0
        assert started.program("-d", CUDA_MPS_PROTOCOL_VERSION="4").code == 1


def test_a_server_as_listed(bench: MpsBench) -> None:
    uuid = bench.machine.gpus()[1].uuid
    create(bench, "training", f"--allowed-devices={uuid}")
    row = do(bench, f"server list {CSV}").rstrip("\n").split(",")
    pid = do(bench, "server get training pid").rstrip("\n")
    assert row == ["training", str(os.geteuid()), pid, "Ready", f"{bench.pipe}/training", uuid, "-"]
    assert do(bench, "server get training pipe-directory") == f"{bench.pipe}/training\n"
    header = "name,uid,pid,status,pipe-directory,allowed-devices,context-ids"
    assert do(bench, "server list training --format=csv").splitlines()[0] == header
    assert do(bench, "server list").split()[:3] == ["NAME", "UID", "PID"]
    assert {client.gpu for client in bench.machine.clients()} == {1}
    assert (bench.folder / "log" / "training" / "server.log").exists()


@pytest.mark.parametrize(
    "command",
    [
        "server create Training",
        "server create " + "a" * 65,
        "server create",
        "server create training",
        "server get training colour",
        "server get other pid",
        "server set training",
        "server set training --pinned-memory-limit=8",
        "server set training --active-thread-percentage=0",
        "server frobnicate",
        "namespace create eval --server=other",
        "namespace create default --server=training",
        "namespace set eval --server=training --client-priority=1",
        "namespace delete default --server=training",
        "client terminate 1",
        "colour list",
    ],
)
def test_a_refusal_is_text_and_changes_nothing(bench: MpsBench, command: str) -> None:
    create(bench, "training")
    before = do(bench, f"namespace list {CSV}")
    assert do(bench, command)
    assert do(bench, f"namespace list {CSV}") == before
    assert len(do(bench, f"server list {CSV}").splitlines()) == 1


def test_a_named_namespace_inherits_nothing(bench: MpsBench) -> None:
    create(bench, "training")
    do(bench, "server set training --pinned-memory-limit=2G --active-thread-percentage=50")
    do(bench, "namespace create eval --server=training")
    rows = [line.split(",") for line in do(bench, f"namespace list {CSV}").splitlines()]
    assert rows == [
        ["default", "training", "Ready", "2G", "50", "0", f"{bench.pipe}/training"],
        ["eval", "training", "Ready", "-", "100", "0", f"{bench.pipe}/training/eval"],
    ]
    assert run(bench, FREE, "training") == [2048 - 128, 20]
    free, multiprocessors = run(bench, FREE, "training", "eval")
    assert (free > 10 * 1024, multiprocessors) == (True, 40)
    do(bench, "namespace set eval --server=training --pinned-memory-limit=4G --active-thread-percentage=25")
    assert do(bench, "namespace get eval training pinned-memory-limit") == "4G\n"
    assert run(bench, FREE, "training", "eval") == [4096 - 128, 10]
    assert run(bench, FREE, "training", "eval", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100") == [4096 - 128, 10]


def test_a_limit_reads_back_exactly(bench: MpsBench) -> None:
    create(bench, "training")
    for text in ("1044M", "8G", "512M", "1025K"):
        do(bench, f"server set training --pinned-memory-limit={text}")
        assert do(bench, "namespace get default training pinned-memory-limit") == f"{text}\n"


def test_a_namespace_in_use_is_neither_changed_nor_deleted_but_by_force(bench: MpsBench) -> None:
    create(bench, "training")
    do(bench, "namespace create eval --server=training")
    folder = bench.pipe / "training" / "eval"
    with cuda_program(bench.machine, UNTIL_TERMINATED, CUDA_MPS_PIPE_DIRECTORY=str(folder)) as program:
        program.told()
        (row,) = do(bench, f"client list {CSV}").splitlines()
        assert row.split(",")[:4] == [str(program.pid), "training", "0", "eval"]
        assert "active clients" in do(bench, "namespace set eval --server=training --pinned-memory-limit=1G")
        assert "active clients" in do(bench, "namespace delete eval --server=training")
        assert "active clients" in do(bench, "server delete training")
        do(bench, "namespace delete eval --server=training --force")
        assert not folder.exists()
        program.go_on()
        assert program.told() == CLIENT_TERMINATED


def test_clients_of_servers_on_one_gpu(bench: MpsBench) -> None:
    for name in ("one", "two"):
        create(bench, name)
    servers = {MpsCaller.connect(bench, leaf=(name,)).join().server for name in ("one", "two")}
    assert len(servers) == 2
    assert len(do(bench, f"client list --server=one {CSV}").splitlines()) == 1
    assert len(do(bench, f"client list --all {CSV}").splitlines()) == 2


def test_a_client_of_the_daemons_own_socket_is_routed_by_its_user(bench: MpsBench) -> None:
    caller = MpsCaller.connect(bench).join()
    assert do(bench, f"server get uid_{os.geteuid()} pid") == f"{caller.server}\n"


def test_a_deleted_server_is_gone_with_its_sockets(bench: MpsBench) -> None:
    create(bench, "training")
    with cuda_program(bench.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=str(bench.pipe / "training")) as program:
        program.told()
        do(bench, "server delete training --force")
        wait_until(lambda: do(bench, f"server list {CSV}") == "")
        program.go_on()
        assert program.told() == CLIENT_TERMINATED
    assert not (bench.pipe / "training").exists()
    create(bench, "training")


def test_a_server_for_an_absent_gpu_leaves_its_clients_without_mps(bench: MpsBench) -> None:
    assert do(bench, "server create absent --allowed-devices=7") == "Server 'absent' created\n"
    wait_until(lambda: do(bench, f"server list {CSV}") == "")
    log = (bench.folder / "log" / "absent" / "server.log").read_text()
    assert "no CUDA-capable device is detected" in log
    assert run(bench, FREE, "absent")[0] > 10 * 1024


def test_a_server_that_is_killed_takes_its_namespaces_along(bench: MpsBench) -> None:
    create(bench, "training")
    do(bench, "namespace create eval --server=training")
    os.kill(int(do(bench, "server get training pid")), signal.SIGKILL)
    wait_until(lambda: do(bench, f"namespace list {CSV}") == "")
    assert not (bench.pipe / "training").exists()


def test_client_terminate(bench: MpsBench) -> None:
    create(bench, "training")
    with cuda_program(bench.machine, HOLD, CUDA_MPS_PIPE_DIRECTORY=str(bench.pipe / "training")) as program:
        program.told()
        assert do(bench, f"client terminate {program.pid}") == "0\n"
        program.go_on()
        assert program.told() == CLIENT_TERMINATED


def test_devices_of_a_server(bench: MpsBench) -> None:
    create(bench, "training", "--allowed-devices=1")
    assert bench.machine.gpus()[1].uuid in do(bench, "device list --server=training --format=csv")


@as_root
def test_tenants_read_everything_and_change_nothing_of_others() -> None:
    with readable_folder() as folder, mps_daemon(make(folder), start=False) as bench:
        start(bench)
        create(bench, "training", "--uid=1001")
        assert MpsCaller.connect(bench, leaf=("training",), uid=1002).join().error == NOT_PERMITTED
        assert MpsCaller.connect(bench, leaf=("training",), uid=1001).join().error == 0
        refused = "Insufficient privileges for UID 1002. 'NAMESPACE SET' requires server owner.\n"
        tenant = MpsCaller.terminal(bench, uid=1002)
        assert tenant("namespace set default --server=training --pinned-memory-limit=8G") == refused
        assert tenant(f"server list {CSV}").startswith("training,1001,")


@as_root
def test_a_multi_user_daemon_has_servers_of_root_alone() -> None:
    with readable_folder() as folder, mps_daemon(make(folder), start=False) as bench:
        start(bench, "-m")
        assert "not allowed" in do(bench, "server create other --uid=1001")
        create(bench, "training")
        callers = [MpsCaller.connect(bench, leaf=("training",), uid=uid).join() for uid in (0, 1001, 1002)]
        assert [caller.error for caller in callers] == [0, 0, 0]
        assert MpsCaller.connect(bench, uid=1003).join().server == int(do(bench, "server get uid_0 pid"))


def test_quit_ends_all_at_once(bench: MpsBench) -> None:
    create(bench, "one")
    caller = MpsCaller.connect(bench, leaf=("one",)).join()
    assert bench.program("-q").code == 0
    assert caller.connection.recv(1) == b""
    assert [file.name for file in bench.pipe.iterdir()] == ["control_lock"]
