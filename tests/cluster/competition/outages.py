"""What hits the node's parts: SIGKILL, with a start now or later, and SIGSTOP, with SIGCONT later."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cluster.agents import AgentPod
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.units import Unit
from cluster.waiting import wait_for

AGENT, API_SERVER = "agent", "kube-apiserver"
PARTS = (AGENT, "kubelet", "containerd", API_SERVER)
# While one of them is out, the other does not come up.
_NEEDS = {"kubelet": ("containerd",)}


@dataclass(slots=True)
class Outages:
    """The parts that are down or stopped now, each with how to end that."""

    cluster: Cluster
    node: Node
    agent: AgentPod
    out: dict[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def api_answers(self) -> bool:
        """Whether the API server is neither down nor stopped."""
        return API_SERVER not in self.out

    def kill(self, part: str) -> None:
        """SIGKILL it; it stays down until its outage ends, or until the kubelet starts the agent again."""
        self.end(part)
        for needed in _NEEDS.get(part, ()):
            self.end(needed)
        if part == AGENT:
            self._kill_agent()
        else:
            self._unit(part).kill()
        self.out[part] = lambda: self._start(part)

    def stop(self, part: str) -> None:
        """SIGSTOP it until its outage ends."""
        self.end(part)
        if part == AGENT:
            pid = self.agent.running
            self._signal(pid, signal.SIGSTOP)
            self.out[part] = lambda: self._signal(pid, signal.SIGCONT)
        else:
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

    def restart_agent(self, *options: str) -> None:
        """Have the DaemonSet put an agent with other options in the agent's place. That takes every other part."""
        self.end_all()
        self.agent = self.agent.with_options(*options)

    def agent_ended_by_itself(self) -> bool:
        """Whether the kubelet has started the agent again, though nobody had killed it."""
        if AGENT in self.out or not self.agent.ended_by_itself():
            return False
        self.agent = self.agent.restarted()
        return True

    def _kill_agent(self) -> None:
        """SIGKILL it; it may be down already, where the kubelet could not start it again."""
        if self.agent.running is not None:
            self.agent.end()

    def _signal(self, pid: int | None, number: signal.Signals) -> None:
        """To a process that may have ended."""
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)

    def _unit(self, part: str) -> Unit:
        return self.cluster.control_plane.unit(part) if part == API_SERVER else self.node.unit(part)

    def _start(self, part: str) -> None:
        if part == AGENT:
            # Only they can start it.
            self.end("kubelet")
            self.end("containerd")
            self.agent = self.agent.restarted()
        elif part == API_SERVER:
            self.cluster.start_component(part)
            wait_for("the API server answers", lambda: bool(self.cluster.api.get("/api/v1/nodes")["items"]))
        else:
            self.node.start_component(part)
