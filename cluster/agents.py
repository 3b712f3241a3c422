"""The agent on a node of the test cluster as users have it: the image, in the pod of the chart's DaemonSet, with its rights.

`agent_process_on` runs it as a process of the node, for tests of what a pod cannot show.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from release.chart import KubeObject, render
from release.image import make_image
from release.progress import say_beside

from cluster.chart_values import values_of
from cluster.cluster import Cluster
from cluster.errors import ClusterError, NotFound
from cluster.node import Node
from cluster.units import Unit, end_process
from cluster.waiting import wait_for
from release import chart
from tranche.hardware.process_stat import process_stat

NAMESPACE = chart.NAMESPACE
ACCOUNT = "tranche-agent"
_DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{ACCOUNT}"
_CONTAINER = "agent"
# The nodes that have an agent now; what makes a DaemonSet's pods new though nothing else of them is.
_CHOSEN, _ANEW = "tests.tranche.dev/agent", "tests.tranche.dev/start"
# Which pods are of the DaemonSet as it is now.
_GENERATION, _POD_GENERATION = "deprecated.daemonset.template.generation", "pod-template-generation"
_starts = itertools.count(1)
_CLASSES = ("burstable", "besteffort", "")
_HEALTH_PORT = 9440
_END_SECONDS = 30.0
# What containerd puts before a line of a container.
_PREFIX = re.compile(r"^\S+ (?:stdout|stderr) [FP] ", re.MULTILINE)
_TIMEOUT_SECONDS = 10.0
# An agent that is no pod is given its ConfigMaps by the tests, not by the chart's values.
_CONFIG_MAPS = ("plugin", "strategies", "competition-strategies")

_Identity = tuple[str, str, str]
_written: dict[Path, dict[_Identity, KubeObject]] = {}
"""What this process has written into which cluster."""


class AgentHealth(ABC):
    """An agent that can be asked, wherever it runs."""

    __slots__ = ()

    @property
    @abstractmethod
    def health_address(self) -> str:
        """Address and port of its health pages; ConnectionError while they are not known."""

    @property
    @abstractmethod
    def log(self) -> str:
        """What it has logged since this start."""

    def health(self, path: str = "/readyz") -> tuple[int, Mapping[str, object]]:
        """Status and body of one of its health pages; OSError while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://{self.health_address}{path}", timeout=_TIMEOUT_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_until_ready(self) -> None:
        """Wait until every component does its work."""
        wait_for("the agent is ready", lambda: self.health()[0] == 200, explain=lambda: f"{self._last()}\n{self.log}")

    def wait_until_not_ready(self, component: str, why: str) -> None:
        """Wait until that component says such a reason."""

        def says() -> bool:
            status, body = self.health()
            components = body["components"]
            assert isinstance(components, dict)
            return status == 503 and why in components[component]

        wait_for(f"{component} says: {why}", says, explain=lambda: f"{self._last()}\n{self.log}")

    def _last(self) -> str:
        try:
            return str(self.health())
        except OSError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class AgentPod(AgentHealth):
    """One agent in its pod, from one start of its container on: `attempt` counts those."""

    cluster: Cluster
    node: Node
    options: tuple[str, ...]
    name: str
    uid: str
    address: str
    attempt: int = 0

    @property
    def log(self) -> str:
        """What it has logged since this start, those of later starts included."""
        found = [file for number, file in self._logs() if number >= self.attempt]
        return "".join(_PREFIX.sub("", file.read_text(errors="replace")) for file in found)

    @property
    def running(self) -> int | None:
        """Its process id on the machine while it runs."""
        return _running(self.node, self.uid)

    @property
    def pid(self) -> int:
        """Its process id on the machine.

        Raises:
            ClusterError: it does not run.
        """
        pid = self.running
        if pid is None:
            raise ClusterError(f"the agent of {self.node.name} does not run:\n{self.log}")
        return pid

    @property
    def health_address(self) -> str:
        """In its pod's own network."""
        return f"{self.address}:{_HEALTH_PORT}"

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send its process a signal that ends it, and wait for the end. The kubelet starts the container again.

        Raises:
            ClusterError: it does not run, or does not end.
        """
        if not end_process(self.pid, number, _END_SECONDS):
            raise ClusterError(f"the agent of {self.node.name} does not end:\n{self.log}")

    def restarted(self) -> AgentPod:
        """The same pod from its next container on, once that runs."""

        def again() -> int | None:
            return self.running and next(
                (number for number, _ in reversed(self._logs()) if number > self.attempt), None
            )

        attempt = wait_for(f"the kubelet starts the agent of {self.node.name} again", again, explain=lambda: self.log)
        return replace(self, attempt=attempt)

    def ended_by_itself(self) -> bool:
        """Whether the kubelet has started its container again since this start."""
        return any(number > self.attempt for number, _ in self._logs())

    def with_options(self, *options: str) -> AgentPod:
        """Another agent in its place, as after a change of the chart's values."""
        generation = _write(self.cluster, options, anew=f"{os.getpid()}-{next(_starts)}")
        return _pod(self.cluster, self.node, options, generation)

    def _logs(self) -> list[tuple[int, Path]]:
        """Number and log of each start of the container, the oldest first; the kubelet keeps the last ones."""
        folder = self.node.paths.pod_logs / f"{NAMESPACE}_{self.name}_{self.uid}" / _CONTAINER
        files = folder.iterdir() if folder.is_dir() else ()
        return sorted((int(file.stem), file) for file in files if file.stem.isdecimal() and file.suffix == ".log")


@contextmanager
def agent_on(cluster: Cluster, node: Node, *options: str, wait: bool = True) -> Iterator[AgentPod]:
    """Run the agent on a node, ready unless it is not waited for; it is ended with the block.

    There is one DaemonSet for all nodes that have an agent now, as for users: their agents have the same options.
    """
    image = make_image(say_beside)
    node.import_image(image.archive, image.name, image.digest)
    _remove(cluster, node)
    try:
        generation = _write(cluster, options)
        _choose(cluster, node, "true")
        agent = _pod(cluster, node, options, generation)
        if wait:
            agent.wait_until_ready()
        yield agent
    finally:
        if cluster.folder.exists():  # a test may have removed the cluster, agents and all
            _remove(cluster, node)


def _write(cluster: Cluster, options: Sequence[str], *, anew: str = "") -> str:
    """Write what the chart makes of these options; the generation of pods from then on. `anew` is new where they must be."""
    values = values_of(cluster.folder, options) | {"nodeSelector": {_CHOSEN: "true"}}
    if anew:
        values["podAnnotations"] = {_ANEW: anew}
    objects = render({"namespace": {"create": True}, **values})
    write_rights(cluster, objects)
    (daemon_set,) = (item for item in objects if item["kind"] == "DaemonSet")
    cluster.apply(daemon_set)
    return str(cluster.api.get(_DAEMON_SET)["metadata"]["annotations"][_GENERATION])


def remove_agents(cluster: Cluster) -> None:
    """Remove the DaemonSet, and wait until nothing is left of its pods.

    While there is one, its controller takes it for a pod of the next DaemonSet of that name, and makes none.
    """
    cluster.api.delete(_DAEMON_SET)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/name={ACCOUNT}"
    wait_for("the agents' pods are gone", lambda: not cluster.api.get(pods)["items"])


def _choose(cluster: Cluster, node: Node, value: str | None) -> None:
    cluster.api.merge(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {_CHOSEN: value}}})


def _pod(cluster: Cluster, node: Node, options: Sequence[str], generation: str) -> AgentPod:
    """The pod of that generation on the node, once it has an address."""

    def found() -> AgentPod | None:
        for pod in _pods(cluster, node):
            meta, address = pod["metadata"], pod["status"].get("podIP")
            if address and meta["labels"].get(_POD_GENERATION) == generation:
                return AgentPod(cluster, node, tuple(options), meta["name"], meta["uid"], address)
        return None

    def described() -> str:
        return cluster.kubectl("describe", "daemonset,pod", "--namespace", NAMESPACE)

    return wait_for(f"the agent's pod on {node.name} has begun", found, explain=described)


def _remove(cluster: Cluster, node: Node) -> None:
    """Have the DaemonSet leave the node, and wait until the agent's process has ended."""
    pods = [pod["metadata"]["uid"] for pod in _pods(cluster, node)]
    _choose(cluster, node, None)
    wait_for(f"the agent of {node.name} has ended", lambda: all(_running(node, uid) is None for uid in pods))


def _pods(cluster: Cluster, node: Node) -> list[dict[str, Any]]:
    """The agent's pods on the node that nobody has deleted."""
    selector = f"labelSelector=app.kubernetes.io/name={ACCOUNT}&fieldSelector=spec.nodeName={node.name}"
    items = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


def _running(node: Node, pod: str) -> int | None:
    """The agent's process id in the pod of that uid."""
    groups = [node.cgroup.child("/".join(filter(None, ("kubepods", each, f"pod{pod}")))) for each in _CLASSES]
    found = [pid for group in groups for pid in group.running() if _is_agent(pid)]
    # What it has forked looks like it until it is another program.
    return min((pid for pid in found if (stat := process_stat(pid)) and stat.parent not in found), default=None)


def _is_agent(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"agent" in words and any(word.endswith(b"/tranche") for word in words)


@dataclass(frozen=True, slots=True)
class AgentProcess(AgentHealth):
    """One agent, from one start on."""

    node: Node
    command: tuple[str, ...]
    log_start: int

    @classmethod
    def start(cls, node: Node, command: tuple[str, ...]) -> AgentProcess:
        """Start it, in the place of one that an interrupted run has left."""
        node.unit("agent").kill()
        log = node.unit("agent").log
        log_start = log.stat().st_size if log.exists() else 0
        node.start_program("agent", command)
        return cls(node, command, log_start)

    def start_again(self) -> AgentProcess:
        """The same once more, after its end."""
        return AgentProcess.start(self.node, self.command)

    @property
    def unit(self) -> Unit:
        return self.node.unit("agent")

    @property
    def log(self) -> str:
        """What it has logged since this start."""
        return self.unit.log.read_bytes()[self.log_start :].decode()

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            ClusterError: it does not run.
        """
        pid = self.unit.pid
        if pid is None:
            raise ClusterError(f"the agent of {self.node.name} does not run:\n{self.log}")
        return pid

    @property
    def health_address(self) -> str:
        """On loopback; the agent chooses the port."""
        found = re.search(r'"health_port": (\d+)', self.log)
        if found is None:
            raise ConnectionError("it does not serve yet")
        return f"127.0.0.1:{found[1]}"


def agent_command(cluster: Cluster, node: Node, *options: str) -> tuple[str, ...]:
    """The command line of such an agent, with the rights of the agent's account on that node and no others."""
    install_rights(cluster)
    program = str(Path(sys.executable).with_name("tranche"))
    kubeconfig = cluster.account_kubeconfig(NAMESPACE, ACCOUNT, node.name)
    ports = ("--health-port=0", "--metrics-port=0")
    fixed = (f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", *ports, "--log-format=json")
    return (program, "agent", *fixed, *options)


@contextmanager
def agent_process_on(cluster: Cluster, node: Node, *options: str) -> Iterator[AgentProcess]:
    """Run it on a node, ready; it is ended with the block."""
    agent = AgentProcess.start(node, agent_command(cluster, node, *options))
    try:
        agent.wait_until_ready()
        yield agent
    finally:
        agent.unit.stop()


def install_rights(cluster: Cluster, **values: object) -> None:
    """The rights of an agent with these values of the chart, and to read every ConfigMap that tests use."""
    write_rights(cluster, _with_config_maps(render({"namespace": {"create": True}, **values})))


@contextmanager
def rights_to_drain(cluster: Cluster) -> Iterator[None]:
    """The rights that the policy drain needs, too, for the length of the block."""
    install_rights(cluster, migManager={"inUse": "drain"})
    try:
        yield
    finally:
        install_rights(cluster)


def write_rights(cluster: Cluster, objects: Sequence[KubeObject]) -> None:
    """Have the cluster hold these objects of the chart but for the DaemonSet, and none that it was given before beside them."""
    wanted = {_identity(item): item for item in objects if item["kind"] != "DaemonSet"}
    present = _written.get(cluster.folder, {})
    _written.pop(cluster.folder, None)
    changed = [item for identity, item in wanted.items() if present.get(identity) != item]
    if changed:
        cluster.apply(*changed)
    for kind, namespace, name in present.keys() - wanted.keys():
        where = [f"--namespace={namespace}"] if namespace else []
        cluster.kubectl("delete", kind, name, "--ignore-not-found", *where)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}"
    wait_for("the agent's service account is there", lambda: cluster.api.get(account))
    _written[cluster.folder] = wanted


def remove_device_classes(cluster: Cluster) -> None:
    """Have the cluster hold no DeviceClass; the next agent that serves claims brings its own again."""
    with suppress(NotFound):  # a cluster without claims
        cluster.api.delete_all("/apis/resource.k8s.io/v1/deviceclasses")
    forget_rights(cluster)


def forget_rights(cluster: Cluster) -> None:
    """Whoever has changed such objects in another way says so: the next agent gets all of them anew."""
    _written.pop(cluster.folder, None)


def _with_config_maps(objects: Sequence[KubeObject]) -> list[KubeObject]:
    widened = []
    for item in objects:
        rules = [
            {**rule, "resourceNames": [*rule["resourceNames"], *_CONFIG_MAPS]} if "resourceNames" in rule else rule
            for rule in item.get("rules") or ()
        ]
        widened.append({**item, "rules": rules} if rules else item)
    return widened


def _identity(item: KubeObject) -> _Identity:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
