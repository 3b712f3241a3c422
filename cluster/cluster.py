"""A cluster from its first folder to the last trace of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from release.one_at_a_time import one_at_a_time
from release.progress import Say

from cluster.binaries import Binaries, ensure_binaries, find_binaries, replaced
from cluster.client import ApiClient
from cluster.control_plane import ControlPlane
from cluster.errors import ClusterError, UnsuitableMachine
from cluster.host import (
    add_address,
    cluster_directories,
    clusters_directory,
    host_lock,
    install_missing,
    node_address,
    prepare_host,
    remove_address,
    restore_host,
    routes_and_addresses,
    why_not,
)
from cluster.images import write_images
from cluster.node import Node
from cluster.record import NAME, ClusterRecord, free_slot, load_record, port_is_free
from cluster.units import Cgroup
from cluster.waiting import wait_for
from tranche.hardware.process_stat import process_stat


@dataclass(slots=True)
class Cluster:
    """A cluster that exists. Its parts may run or not: `start` starts those that do not."""

    folder: Path
    record: ClusterRecord
    binaries: Binaries

    @classmethod
    def create(
        cls,
        name: str,
        nodes: Mapping[str, str],
        *,
        time_scale: float = 1.0,
        owner: tuple[int, int] | None = None,
        emulates: str = "",
        programs: Path | None = None,
        gates: Sequence[str] = (),
        say: Say,
    ) -> Cluster:
        """Make a cluster and start it. `nodes` maps a node's name to its machine type, empty for a node without GPUs.

        `time_scale` is that of the simulated machines. `emulates` is an older minor release as which API server, controllers and
        scheduler behave: they serve what that served, with its feature gates. `programs` is a folder with programs of an older
        release in the place of the pinned ones. `gates` are alpha feature gates to switch on. The cluster
        counts as left over once `owner` (pid, start time) has ended.

        Raises:
            UnsuitableMachine: no cluster can run here.
            ClusterError: there is one of that name, or a part of it does not start.
        """
        if not NAME.fullmatch(name):
            raise ClusterError(f"{name!r} is no name for a cluster", hint="use lower-case letters, digits and dashes")
        binaries = prepare_machine(say)
        folder = clusters_directory() / name
        with host_lock() as lock:
            if folder.exists():
                raise ClusterError(f"there is a cluster {name!r} already", hint="`make cluster-down` removes it")
            record = _claimed(
                ClusterRecord(
                    name,
                    0,
                    node_address(),
                    time_scale,
                    owner,
                    emulates=emulates,
                    programs=str(programs or ""),
                    gates=tuple(gates),
                )
            )
            for node, machine in nodes.items():
                record = record.with_node(node, machine)
            prepare_host()
            folder.mkdir()
            record.save(folder)
            # Clusters below another root know nothing of this one's slot but its address.
            while not add_address(record.service_address, lock):
                record = _claimed(record)
                record.save(folder)
        cluster = cls(folder, record, replaced(binaries, record.programs))
        cluster.start(say)
        return cluster

    @classmethod
    def open(cls, name: str) -> Cluster:
        """A cluster that exists.

        Raises:
            ClusterError: there is none of that name.
        """
        folder = clusters_directory() / name
        record = load_record(folder)
        binaries = find_binaries()
        if record is None or binaries is None:
            raise ClusterError(f"there is no cluster {name!r}", hint="`make cluster` makes one")
        return cls(folder, record, replaced(binaries, record.programs))

    @property
    def control_plane(self) -> ControlPlane:
        return ControlPlane(self.folder, self.record, self.binaries)

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.admin_kubeconfig

    def account_kubeconfig(self, namespace: str, account: str, node: str = "") -> Path:
        """A kubeconfig with the rights of a service account alone, as in a pod on `node`; ClusterError where there is none."""
        return self.control_plane.account_kubeconfig(namespace, account, node)

    @property
    def api(self) -> ApiClient:
        return self.control_plane.api()

    @property
    def nodes(self) -> list[Node]:
        return [self.node(node.name) for node in self.record.nodes]

    def node(self, name: str) -> Node:
        return Node(self.folder, self.record, self.record.node(name), self.binaries)

    def start(self, say: Say) -> None:
        """Make what is not there and start what does not run, until every node is Ready."""
        self._make_files()
        with host_lock() as lock:
            add_address(self.record.service_address, lock)
        self.control_plane.start()
        api = self.api
        self._wait_for_account("default")
        say("the control plane answers")
        with ThreadPoolExecutor() as pool:
            for node in pool.map(lambda node: node.start(api), self.nodes):
                say(f"node {node.name} is Ready")

    def add_node(self, name: str, machine: str) -> Node:
        """Add a node and wait until it is Ready. `machine` is its machine type, empty for a node without GPUs."""
        self.record = self.record.with_node(name, machine)
        self.record.save(self.folder)
        self._make_files()
        return self.node(name).start(self.api)

    def make_namespace(self, name: str) -> None:
        """Make a namespace, and wait until pods can be made in it."""
        self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self._wait_for_account(name)

    def kill9(self, component: str) -> None:
        """SIGKILL a component of the control plane; it stays down until `start_component`."""
        self.control_plane.unit(component).kill()

    def start_component(self, component: str) -> None:
        """Start a component of the control plane unless it runs, and wait until it answers.

        After the API server, those that follow it are started anew: with each outage within two minutes they wait longer before
        they watch again, up to a minute, and meanwhile decide by what was. A deployment then gets its pods twice.
        """
        self.control_plane.start_component(component)
        if component == "kube-apiserver":
            for follower in ("kube-controller-manager", "kube-scheduler"):
                self.kill9(follower)
                self.control_plane.start_component(follower)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What `kubectl` prints.

        Raises:
            ClusterError: it fails; the message is what it said.
        """
        done = subprocess.run(
            [
                self.binaries["kubectl"],
                f"--kubeconfig={self.kubeconfig}",
                f"--cache-dir={self.folder}/kubectl",
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects, one after the other.

        Raises:
            ClusterError: one is refused.
            OSError: the API server does not answer.
        """
        for item in objects:
            self.api.apply(item)

    def _wait_for_account(self, namespace: str) -> None:
        """No pod can be made before the controller manager has made this."""
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        wait_for(f"namespace {namespace} has its service account", lambda: self.api.get(account))

    def _make_files(self) -> None:
        """Make the certificates, images, nodes' files and machines that are not there yet."""
        images = self.folder / "images"
        if not images.exists():
            unfinished = self.folder / "images.new"
            unfinished.mkdir(exist_ok=True)
            write_images(unfinished)
            unfinished.rename(images)
        if not self.kubeconfig.exists():
            self.control_plane.create_certificates()
        for node in self.nodes:
            if not node.is_created():
                node.create(self.control_plane.pki)


def prepare_machine(say: Say) -> Binaries:
    """Install the packages that a cluster needs, and find, download or build its programs.

    Raises:
        UnsuitableMachine: no cluster can run here.
        ReleaseError: a program cannot be got.
    """
    if reason := why_not():
        raise UnsuitableMachine(f"no cluster can run here: {reason}")
    install_missing(say)
    node_address()
    trial = Cgroup(f"tranche-trial-{os.getpid()}")
    try:
        trial.child("inner").create()
    finally:
        trial.remove()
    return ensure_binaries(say)


def remove_cluster(name: str) -> bool:
    """Remove a cluster, also one that was left half made or half removed; whether there was one.

    Raises:
        ClusterError: a process or a cgroup does not go.
    """
    folder = clusters_directory() / name
    existed = folder.exists()
    if existed:
        _remove_parts(name, folder)
    if clusters_directory().exists():
        with host_lock():
            restore_host()
    return existed


def remove_leftovers() -> list[str]:
    """Remove the clusters whose owner has ended; their names. One process of this user does so at a time."""
    with one_at_a_time("leftover clusters"):
        names = [
            folder.name
            for folder in cluster_directories()
            if (record := load_record(folder)) is not None and record.owner is not None and not _lives(record.owner)
        ]
        for name in names:
            remove_cluster(name)
        return names


def this_process() -> tuple[int, int]:
    return owned_by(os.getpid())


def owned_by(pid: int) -> tuple[int, int]:
    """Pid and start time of a process, as an owner.

    Raises:
        ClusterError: there is no such process.
    """
    stat = process_stat(pid)
    if stat is None:
        raise ClusterError(f"no process {pid} that could own a cluster", hint="name one that runs")
    return pid, stat.started


def _remove_parts(name: str, folder: Path) -> None:
    """End a cluster's processes, and remove its cgroups, bridges and files."""
    record = load_record(folder)
    cgroup = Cgroup(ClusterRecord(name, 0, "").cgroup)
    cgroup.kill()
    cgroup.remove()
    if record is not None:
        for bridge in map(record.bridge, record.nodes):
            _delete_interface(bridge)
        with host_lock():
            remove_address(record.service_address)
    _remove_folder(folder)


def _claimed(record: ClusterRecord) -> ClusterRecord:
    taken = [other for other in map(load_record, cluster_directories()) if other is not None]
    return replace(record, slot=free_slot(taken, routes_and_addresses(), port_is_free))


def _delete_interface(name: str) -> None:
    if Path(f"/sys/class/net/{name}").exists():
        subprocess.run(["ip", "link", "delete", name], check=True, capture_output=True)


def _remove_folder(folder: Path) -> None:
    """Remove a cluster's folder. Its record goes last, so that a removal that was cut short can be repeated."""
    for mount in _mounts_below(folder):
        subprocess.run(["umount", mount], check=True, capture_output=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == "cluster.json"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


def _mounts_below(folder: Path) -> list[str]:
    """Mount points below a folder, innermost first. Nodes mount in namespaces of their own: normally there is none."""
    points = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return sorted((point for point in points if point.startswith(f"{folder}/")), key=len, reverse=True)


def _lives(owner: tuple[int, int]) -> bool:
    stat = process_stat(owner[0])
    return stat is not None and stat.started == owner[1]
