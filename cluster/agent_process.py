"""The agent as a process of a node, without a pod: for tests of what a pod cannot show. `cluster.agents` runs it as users do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.agent_health import AgentHealth
from cluster.agent_rights import ACCOUNT, NAMESPACE, install_rights
from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.units import Unit


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
