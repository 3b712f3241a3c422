"""The agent as a process on a node of the test cluster, with no more rights than its chart gives it."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from release.chart import KubeObject, render

from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.units import Unit
from cluster.waiting import wait_for
from release import chart

NAMESPACE = chart.NAMESPACE
ACCOUNT = "tranche-agent"
# Tests start agents on other ConfigMaps than the chart's default ones.
_CONFIG_MAPS = ("plugin", "strategies", "competition-strategies")


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """One agent, from one start on."""

    node: Node
    command: tuple[str, ...]
    log_start: int

    @classmethod
    def start(cls, node: Node, command: tuple[str, ...]) -> RunningAgent:
        """Start it, in the place of one that an interrupted run has left."""
        node.unit("agent").kill()
        log = node.unit("agent").log
        log_start = log.stat().st_size if log.exists() else 0
        node.start_program("agent", command)
        return cls(node, command, log_start)

    def start_again(self) -> RunningAgent:
        """The same once more, after its end."""
        return RunningAgent.start(self.node, self.command)

    @property
    def unit(self) -> Unit:
        """Its process."""
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

    def health(self, path: str = "/readyz") -> tuple[int, Mapping[str, object]]:
        """Status and body of one of its health pages; OSError while it does not listen."""
        found = re.search(r'"health_port": (\d+)', self.log)
        if found is None:
            raise ConnectionError("it does not serve yet")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=10) as answer:
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


def install_rights(cluster: Cluster) -> None:
    """Apply what the chart makes, except the DaemonSet: the agent is a process of the node here."""
    cluster.apply(*_rights())
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}"
    wait_for("the agent's service account is there", lambda: cluster.api.get(account))


@contextmanager
def rights_to_drain(cluster: Cluster) -> Iterator[None]:
    """The rights that the policy drain needs beside the others, for the length of the block."""
    present = [_identity(item) for item in _rights()]
    objects = [item for item in _rights(migManager={"inUse": "drain"}) if _identity(item) not in present]
    cluster.apply(*objects)
    try:
        yield
    finally:
        for item in objects:
            cluster.kubectl("delete", item["kind"], item["metadata"]["name"])


def _rights(**values: object) -> list[KubeObject]:
    objects = render({"namespace": {"create": True}, **values})
    for item in objects:
        for rule in item.get("rules", ()):
            if "resourceNames" in rule:
                rule["resourceNames"] = [*rule["resourceNames"], *_CONFIG_MAPS]
    return [item for item in objects if item["kind"] != "DaemonSet"]


def _identity(item: KubeObject) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


@contextmanager
def agent_on(cluster: Cluster, node: Node, *options: str, wait: bool = True) -> Iterator[RunningAgent]:
    """Run the agent on a node, ready unless it is not waited for; it is ended with the block."""
    install_rights(cluster)
    program = str(Path(sys.executable).with_name("tranche"))
    kubeconfig = cluster.account_kubeconfig(NAMESPACE, ACCOUNT, node.name)
    ports = ("--health-port=0", "--metrics-port=0")
    fixed = (f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", *ports, "--log-format=json")
    agent = RunningAgent.start(node, (program, "agent", *fixed, *options))
    try:
        if wait:
            agent.wait_until_ready()
        yield agent
    finally:
        agent.unit.stop()
