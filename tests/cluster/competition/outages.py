"""What hits the node's parts: SIGKILL, with a start now or later, and SIGSTOP, with SIGCONT later."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.agents import RunningAgent
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.units import Unit
from cluster.waiting import wait_for

API_SERVER = "kube-apiserver"
PARTS = ("agent", "kubelet", "containerd", API_SERVER)
# While one of them is out, the other does not come up.
_NEEDS = {"kubelet": ("containerd",)}


@dataclass(slots=True)
class Outages:
    """The parts that are down or stopped now, each with how to end that."""

    cluster: Cluster
    node: Node
    agent: RunningAgent
    out: dict[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def api_answers(self) -> bool:
        """Whether the API server is neither down nor stopped."""
        return API_SERVER not in self.out

    def kill(self, part: str) -> None:
        """SIGKILL it; it stays down until its outage ends."""
        self.end(part)
        for needed in _NEEDS.get(part, ()):
            self.end(needed)
        self._unit(part).kill()
        self.out[part] = lambda: self._start(part)

    def stop(self, part: str) -> None:
        """SIGSTOP it until its outage ends."""
        self.end(part)
        unit = self._unit(part)
        unit.send(signal.SIGSTOP)
        self.out[part] = lambda: unit.send(signal.SIGCONT)

    def end(self, part: str) -> None:
        """Have that part run again; nothing happens when it does."""
        if part not in self.out:
            return
        for needed in _NEEDS.get(part, ()):
            self.end(needed)
        self.out.pop(part)()

    def end_all(self) -> None:
        """Have every part run again."""
        for part in tuple(self.out):
            self.end(part)

    def restart_agent(self, command: tuple[str, ...]) -> None:
        """End the agent as a DaemonSet does, and start it with other options."""
        self.end("agent")
        self.agent.unit.stop()
        self.agent = RunningAgent.start(self.node, command)

    def revive_agent(self) -> bool:
        """Start the agent, as a DaemonSet does, when it has ended by itself; whether it had."""
        if "agent" in self.out or self.agent.unit.pid is not None:
            return False
        self._start("agent")
        return True

    def _unit(self, part: str) -> Unit:
        return self.cluster.control_plane.unit(part) if part == API_SERVER else self.node.unit(part)

    def _start(self, part: str) -> None:
        if part == "agent":
            self.agent = self.agent.start_again()
        elif part == API_SERVER:
            self.cluster.start_component(part)
            wait_for("the API server answers", lambda: bool(self.cluster.api.get("/api/v1/nodes")["items"]))
        else:
            self.node.start_component(part)
