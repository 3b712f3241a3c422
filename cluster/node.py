"""One node: a mount namespace with containerd and kubelet in it, and a simulated GPU machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.image import made_image
from release.one_at_a_time import one_at_a_time

from cluster.binaries import Binaries
from cluster.client import ApiClient, answers
from cluster.errors import ClusterError
from cluster.host import cni_folder
from cluster.image_store import image_store, keep_store, use_store
from cluster.images import BUSYBOX, PAUSE
from cluster.node_files import NodePaths, containerd_config, kubelet_config, network_config
from cluster.pki import Pki
from cluster.record import ClusterRecord, NodeRecord
from cluster.units import Cgroup, Unit
from cluster.waiting import wait_for
from tranche_simulator import SimulatedMachine

COMPONENTS = ("containerd", "kubelet")
# Mounts below / are made shared inside the namespace alone: pods may then ask for mount propagation.
_MOUNT_SCRIPT = """
mount --make-rshared / || exit 1
while [ "$#" -gt 0 ]; do mount --bind "$1" "$2" || exit 1; shift 2; done
: > "$READY"
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster. `folder` is the cluster's."""

    folder: Path
    cluster: ClusterRecord
    record: NodeRecord
    binaries: Binaries

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def paths(self) -> NodePaths:
        return NodePaths(self.folder / "nodes" / self.name)

    @property
    def machine(self) -> SimulatedMachine:
        """Its simulated machine.

        Raises:
            ClusterError: it is a node without GPUs.
        """
        if not self.record.machine:
            raise ClusterError(f"node {self.name} has no GPUs")
        return SimulatedMachine.open(self.name, root=self.folder / "machines")

    @property
    def cgroup(self) -> Cgroup:
        """What the node's programs and its pods run in."""
        return Cgroup(f"{self.cluster.cgroup}/{self.name}")

    def unit(self, name: str) -> Unit:
        """A process of the node by name: containerd, kubelet, or what `start_program` started."""
        return Unit(name, self.paths.units, self.cgroup.child("system"))

    def is_created(self) -> bool:
        return self.paths.kubeconfig.exists()

    def create(self, pki: Pki) -> None:
        """Make its files, its machine and its credentials, these last; what an interrupted run made is made again."""
        paths = self.paths
        for folder in (*paths.mounts.values(), *paths.lost_at_reboot, paths.folder / "cni", paths.units):
            folder.mkdir(parents=True, exist_ok=True)
        plugins = cni_folder()
        if plugins is None:
            raise ClusterError("there are no CNI plugins", hint="install containernetworking-plugins")
        paths.containerd_config.write_text(containerd_config(paths, plugins))
        network = network_config(
            self.name, self.cluster.bridge(self.record), self.cluster.subnet(self.record), paths.folder / "addresses"
        )
        (paths.folder / "cni" / "10-bridge.conflist").write_text(network)
        paths.kubelet_config.write_text(
            kubelet_config(
                paths,
                authority=pki.authority,
                cgroup=f"/{self.cgroup.path}",
                address=self.cluster.node_address,
                port=self._port,
                health_port=self._port + 1,
                older=bool(self.cluster.programs),
                gates=self.cluster.gates,
            )
        )
        self._create_machine()
        pki.issue_client(f"node-{self.name}", f"system:node:{self.name}", "system:nodes")
        pki.write_kubeconfig(paths.kubeconfig, pki.user(f"node-{self.name}"), self.cluster.server)

    def start(self, api: ApiClient) -> Node:
        """Start what does not run, and wait until the node is Ready.

        Raises:
            ClusterError: containerd or the kubelet does not come up.
        """
        self.cgroup.child("system").create()
        self._enter_namespace()
        for component in COMPONENTS:
            self.start_component(component)
        self.wait_until_ready(api)
        return self

    def start_component(self, component: str) -> None:
        """Start containerd or the kubelet unless it runs, and wait until it answers."""
        unit = self.unit(component)
        if component == "containerd":
            if self.paths.containerd_root.exists():
                self._start_containerd()
            else:
                self._start_containerd_with_images()
        elif component == "kubelet":
            self._start_service(component, self._kubelet_command())
            url = f"http://127.0.0.1:{self._port + 1}/healthz"
            wait_for(f"kubelet of {self.name} answers", lambda: answers(url), explain=unit.log_end)
        else:
            raise ClusterError(f"{component} is no part of a node: {', '.join(COMPONENTS)}")

    def wait_until_ready(self, api: ApiClient, timeout: float = 120.0) -> None:
        """Wait until Kubernetes calls it Ready and its kubelet is the one that runs now."""
        wait_for(
            f"node {self.name} is Ready",
            lambda: self.is_ready(api),
            timeout=timeout,
            explain=self.unit("kubelet").log_end,
        )

    def is_ready(self, api: ApiClient) -> bool:
        status = api.get(f"/api/v1/nodes/{self.name}")["status"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))

    def kill9(self, component: str) -> None:
        """SIGKILL containerd, the kubelet, or a program that was started by `start_program`; it stays down."""
        self.unit(component).kill()

    def restart_kubelet(self) -> None:
        """End the kubelet as a service manager does, and start it again; pods run on."""
        self.unit("kubelet").stop()
        self.start_component("kubelet")

    def power_off(self) -> None:
        """SIGKILL everything on the node at once, pods included. `start` boots it again."""
        self.cgroup.kill()

    def reboot(self, api: ApiClient) -> None:
        self.power_off()
        if self.record.machine:
            self.machine.reboot()
        self.start(api)

    def renew_machine(self) -> None:
        """Put a new simulated machine in the place of the node's, with the same UUIDs, no instances and MIG mode off."""
        self.machine.destroy()
        self._create_machine()

    def command(self, command: Sequence[str]) -> list[str]:
        """A command line that runs `command` inside the node, where its kubelet is at /var/lib/kubelet.

        Raises:
            ClusterError: the node does not run.
        """
        pid = self.unit("namespace").pid
        if pid is None:
            raise ClusterError(f"node {self.name} does not run")
        return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *command]

    def environment(self) -> dict[str, str]:
        """What a program inside the node has in its environment.

        This process's own, the node's name, an administrator's KUBECONFIG, what makes a program meet the simulated machine, and a
        PATH that leads to this interpreter's programs and to kubectl.
        """
        machine = self.machine.environment() if self.record.machine else {}
        folders = (Path(sys.executable).parent, Path(self.binaries["kubectl"]).parent)
        path = machine.get("PATH") or os.environ.get("PATH", os.defpath)
        return {
            **os.environ,
            **machine,
            "PATH": ":".join((*map(str, folders), path)),
            "NODE_NAME": self.name,
            "KUBECONFIG": str(self.folder / "kubeconfig"),
        }

    def run(self, *command: str) -> str:
        """What a command prints that is run inside the node, with its simulated machine.

        Raises:
            ClusterError: it fails; the message is what it said.
        """
        done = subprocess.run(
            self.command(command), env=self.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)} on {self.name}: {done.stderr.strip()}")
        return done.stdout

    def start_program(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Unit:
        """Start a program inside the node unless it runs; it is ended with the node at the latest."""
        unit = self.unit(name)
        unit.start(self.command(command), self.environment() if environment is None else environment)
        return unit

    def _start_containerd(self) -> None:
        """Start it, and let it have the images that it lacks."""
        self._start_service("containerd", [self.binaries["containerd"], f"--config={self.paths.containerd_config}"])
        explain = self.unit("containerd").log_end
        wait_for(f"containerd of {self.name} answers", lambda: self._control("version"), explain=explain)
        if not {PAUSE, BUSYBOX} <= set(self._control("images", "list", "--quiet").split()):
            for archive in self._archives:
                self._control("images", "import", str(archive))

    def _start_containerd_with_images(self) -> None:
        """Start a new one. To unpack the agent's image takes seconds, so it is unpacked once, if it was made."""
        image = made_image()
        store = image_store(self.binaries["containerd"], self._archives, [image.digest] if image else [])
        with one_at_a_time("unpacked images"):
            if store.exists():
                use_store(store, self.paths.containerd_root)
            else:
                self._start_containerd()
                if image is not None:
                    self.import_image(image.archive, image.name, image.digest)
                self.unit("containerd").stop()
                keep_store(self.paths.containerd_root, store)
        self._start_containerd()

    @property
    def _archives(self) -> list[Path]:
        return sorted((self.folder / "images").iterdir())

    def _start_service(self, component: str, command: Sequence[str]) -> None:
        """Start a part of the node, with its own programs first on PATH: containerd looks there for its shim."""
        folder = Path(self.binaries["containerd"]).parent
        path = f"{folder}:{os.environ.get('PATH', os.defpath)}"
        self.start_program(component, command, {**os.environ, "PATH": path})

    @property
    def _port(self) -> int:
        return self.cluster.port(10 + 3 * self.record.index)

    def _create_machine(self) -> None:
        if self.record.machine and not (self.folder / "machines" / self.name / "state").exists():
            SimulatedMachine.create(
                self.name,
                machine_type=self.record.machine,
                root=self.folder / "machines",
                time_scale=self.cluster.time_scale,
            )

    def _enter_namespace(self) -> None:
        """Start the process that holds the mount namespace; after a boot the folders in memory are empty."""
        unit = self.unit("namespace")
        if unit.pid is not None:
            return
        for folder in self.paths.lost_at_reboot:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        ready = self.paths.units / "namespace.ready"
        ready.unlink(missing_ok=True)
        binds = [str(part) for target, source in self.paths.mounts.items() for part in (source, target)]
        script = ["sh", "-c", _MOUNT_SCRIPT, "namespace", *binds]
        unit.start(["unshare", "--mount", "--propagation", "private", *script], {**os.environ, "READY": str(ready)})
        wait_for(f"the mounts of {self.name} are made", ready.exists, timeout=30, explain=unit.log_end)

    def _control(self, *arguments: str) -> str:
        """What `ctr` prints.

        Raises:
            ClusterError: it fails.
        """
        command = [self.binaries["ctr"], "--address", str(self.paths.containerd_socket), "--namespace", "k8s.io"]
        done = subprocess.run(self.command([*command, *arguments]), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"ctr {arguments[0]} on {self.name}: {done.stderr.strip()}")
        return done.stdout

    def import_image(self, archive: Path, name: str, digest: str) -> None:
        """Have the node hold the image of an OCI archive as if it had been pulled, unless it has it: by name and digest."""
        if digest not in self._control("images", "list", f"name=={name}"):
            self._control("images", "import", str(archive))

    def _kubelet_command(self) -> list[str]:
        return [
            self.binaries["kubelet"],
            f"--config={self.paths.kubelet_config}",
            f"--kubeconfig={self.paths.kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.cluster.node_address}",
            # The kubelet takes it from the cloud; the machine's type is that of a cloud's instance here.
            *([f"--node-labels=node.kubernetes.io/instance-type={self.record.machine}"] if self.record.machine else []),
            "--v=2",
        ]
