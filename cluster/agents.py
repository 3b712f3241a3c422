"""The agent on a node of the test cluster as users have it: the image, in the pod of the chart's DaemonSet, with its rights."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from release.chart import render
from release.image import make_image

from cluster.agent_health import AgentHealth
from cluster.agent_rights import ACCOUNT, NAMESPACE, install_rights, rights_to_drain, write_rights
from cluster.chart_values import values_of
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.units import end_process
from cluster.waiting import wait_for

__all__ = ["ACCOUNT", "NAMESPACE", "AgentPod", "agent_on", "install_rights", "remove_agents", "rights_to_drain"]

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

    def send(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        os.kill(self.pid, number)

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
    image = make_image(lambda line: print(line, file=sys.stderr))
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
    return min((pid for pid in found if _parent(pid) not in found), default=None)


def _is_agent(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"agent" in words and any(word.endswith(b"/tranche") for word in words)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
