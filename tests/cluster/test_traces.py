"""What a cluster leaves behind on the machine: nothing, however its making or its removal was cut short."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.agents import agent_on
from cluster.cluster import Cluster, owned_by, remove_cluster, remove_leftovers, this_process
from cluster.errors import ClusterError
from cluster.host import SYSCTLS, has_address, host_lock, node_address, prepare_host, read_sysctl
from cluster.node_layouts import label, wait_for_slices
from cluster.record import ClusterRecord
from cluster.waiting import wait_for
from cluster.workloads import phase, phases, pod
from release.image import MadeImage

from tests.cluster.machine_state import MachineState, assert_left_as
from tests.support.length import some_of

pytestmark = pytest.mark.cluster

_REPOSITORY = Path(__file__).parents[2]
_OWN_NAME = f"own-{os.getpid()}"


@pytest.fixture
def own_root(suitable_machine: None, own_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for clusters that no other test uses, so that the last one of them leaves within the test."""
    # A process that was killed has left its folder and, with it, a cluster that runs.
    for left in Path("/var/lib").glob("tranche-own-*"):
        monkeypatch.setenv("TRANCHE_CLUSTER_ROOT", str(left))
        remove_leftovers()
    root = Path(f"/var/lib/tranche-{_OWN_NAME}")
    monkeypatch.setenv("TRANCHE_CLUSTER_ROOT", str(root))
    monkeypatch.setenv("TRANCHE_CLUSTER_OWNER", str(os.getpid()))
    yield root
    remove_cluster(_OWN_NAME)
    assert not root.exists()


def test_the_machine_is_left_as_it_was_found(own_root: Path) -> None:
    with _sysctl("kernel/panic", "7"):
        parameters = {name: read_sysctl(name) for name in SYSCTLS}
        before = MachineState.now(_OWN_NAME)
        made = Cluster.create(_OWN_NAME, {"n1": "a30-server", "bare": ""}, owner=this_process(), say=print)
        made.apply(pod("one", "default", node="n1"))
        wait_for("the pod runs", lambda: phase(made, "default", "one") == "Running")
        during = MachineState.now(_OWN_NAME)
        assert {"cgroups", "interfaces", "addresses", "sysctls", "folders", "programs"} <= before.changes(during).keys()
        assert read_sysctl("kernel/panic") == "10"
        assert int(read_sysctl("fs/inotify/max_user_instances") or 0) >= 1024

        assert remove_cluster(_OWN_NAME)

        assert {name: read_sysctl(name) for name in SYSCTLS} == parameters
        assert_left_as(before, _OWN_NAME)
    assert not remove_cluster(_OWN_NAME)


@pytest.mark.long
def test_two_nodes_with_agents_at_work_leave_nothing(own_root: Path, agent_image: MadeImage) -> None:
    before = MachineState.now(_OWN_NAME)
    made = Cluster.create(
        _OWN_NAME, {"n1": "a30-server", "n2": "g4dn.xlarge"}, time_scale=0.1, owner=this_process(), say=print
    )
    with ExitStack() as agents:
        for node in made.nodes:
            agents.enter_context(agent_on(made, node, "--mig-strategy=mixed"))
        label(made, made.node("n1"), "all-1g.6gb")
        wait_for_slices(made, made.node("n1"), mig_1g_6gb=4 * len(made.node("n1").machine.gpus()))
        limits = {"nvidia.com/mig-1g.6gb": 1}
        made.apply(pod("one", "default", limits=limits), pod("two", "default", limits={"nvidia.com/gpu": 1}))
        wait_for("the pods run", lambda: phases(made, "default") == {"Running": 2})

        assert remove_cluster(_OWN_NAME)

    assert_left_as(before, _OWN_NAME)


@pytest.mark.long
@pytest.mark.parametrize(
    "last_seen", some_of(["kubeconfig", "cluster.json", "control/etcd.pid", "nodes/n1/units/kubelet.pid"], 1)
)
def test_a_bring_up_that_was_killed_is_finished_or_removed(own_root: Path, last_seen: str) -> None:
    before = MachineState.now(_OWN_NAME)
    with _command("up", "n1=g4dn.xlarge") as process:
        wait_for(f"{last_seen} is there", (own_root / _OWN_NAME / last_seen).exists, period=0.005)
        process.send_signal(signal.SIGKILL)

    if last_seen == "kubeconfig":
        with _command("up") as process:
            assert process.wait() == 0
        nodes = Cluster.open(_OWN_NAME).api.get("/api/v1/nodes")["items"]
        assert [node["metadata"]["name"] for node in nodes] == ["n1"]
    assert remove_cluster(_OWN_NAME)

    assert_left_as(before, _OWN_NAME)


def test_an_address_that_comes_after_the_kill_is_removed(own_root: Path, tmp_path: Path) -> None:
    real, begun, go = shutil.which("ip"), tmp_path / "begun", tmp_path / "go"
    os.mkfifo(go)
    slow = tmp_path / "bin" / "ip"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in "address add"*) echo $$ > {begun}; read -r word < {go};; esac\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)
    record = ClusterRecord(_OWN_NAME, 80, node_address())
    with host_lock():
        (own_root / _OWN_NAME).mkdir()
        record.save(own_root / _OWN_NAME)
    adding = (
        "import sys; from cluster.host import add_address; from cluster.host import host_lock\n"
        "with host_lock() as lock: add_address(sys.argv[1], lock)"
    )
    environment = {**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", adding, record.service_address]
    with subprocess.Popen(command, cwd=_REPOSITORY, env=environment) as process:
        adder = wait_for("the address is about to be added", lambda: begun.exists() and begun.read_text(), period=0.005)
        process.send_signal(signal.SIGKILL)

    removal = threading.Thread(target=remove_cluster, args=(_OWN_NAME,))
    removal.start()
    lock = (own_root / "lock").stat().st_ino
    wait_for("the removal waits, or has ended", lambda: _has_waiter(lock) or not removal.is_alive(), period=0.005)
    go.write_text("on\n")
    removal.join()
    wait_for("the program has ended", lambda: not Path("/proc", str(adder).strip()).exists(), period=0.005)

    assert not has_address(record.service_address)
    assert not (own_root / _OWN_NAME).exists()


def _has_waiter(inode: int) -> bool:
    """Whether somebody waits for the lock on that file."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


def test_a_cluster_that_cannot_be_made_as_wanted_leaves_no_trace(own_root: Path) -> None:
    with pytest.raises(ClusterError, match="no machine type"):
        Cluster.create(_OWN_NAME, {"n1": "p9.colossal"}, say=print)

    assert not remove_cluster(_OWN_NAME)
    assert not own_root.exists()


def test_a_host_that_was_prepared_for_a_cluster_that_never_came_is_restored(own_root: Path) -> None:
    before = MachineState.now(_OWN_NAME)
    with host_lock():
        prepare_host()

    assert not remove_cluster(_OWN_NAME)

    assert_left_as(before, _OWN_NAME)


@pytest.mark.long
def test_a_removal_that_was_killed_is_finished(own_root: Path) -> None:
    before = MachineState.now(_OWN_NAME)
    Cluster.create(_OWN_NAME, {"n1": "g4dn.xlarge"}, owner=this_process(), say=print)
    with _command("down") as process:
        etcd = Cluster.open(_OWN_NAME).control_plane.unit("etcd")
        wait_for("the first processes are gone", lambda: etcd.pid is None, period=0.001)
        process.send_signal(signal.SIGKILL)

    remove_cluster(_OWN_NAME)

    assert_left_as(before, _OWN_NAME)


@pytest.mark.long
def test_a_cluster_does_not_outlive_its_owner_for_long(own_root: Path) -> None:
    made = Cluster.create(_OWN_NAME, {}, owner=this_process(), say=print)
    assert remove_leftovers() == []
    with pytest.raises(ClusterError, match="there is a cluster"):
        Cluster.create(_OWN_NAME, {}, say=print)

    with subprocess.Popen(["true"]) as ended:
        replace(made.record, owner=(ended.pid, 1)).save(made.folder)
    assert remove_leftovers() == [_OWN_NAME]

    assert not own_root.exists()


def test_a_process_that_is_not_there_owns_no_cluster(own_root: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(ClusterError, match=f"no process {ended.pid}"):
        owned_by(ended.pid)


@contextmanager
def _command(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m cluster` on the test's own cluster."""
    command = [sys.executable, "-m", "cluster", arguments[0], "--name", _OWN_NAME, *arguments[1:]]
    with subprocess.Popen(command, cwd=_REPOSITORY) as process:
        yield process


@contextmanager
def _sysctl(name: str, value: str) -> Iterator[None]:
    path = Path("/proc/sys") / name
    before = path.read_text()
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(before)
