"""The facts of a cluster that concern Tranche, what a survey saw, and what checks find in them, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tranche.kubernetes.api.objects import DaemonSet, KubeNode
from tranche.kubernetes.claims.allocation_backend import DryRunResult
from tranche.kubernetes.rollout.ticket import RolloutTicket
from tranche.node.health.checkup import Status


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of a DaemonSet. `waiting` is why its container does not run; `ready_page` is what its /readyz says, by component, or
    None without an answer.
    """

    namespace: str
    name: str
    node: str
    phase: str = "Running"
    ready: bool = True
    waiting: str = ""
    restarts: int = 0
    image: str = ""
    image_id: str = ""
    terminating: bool = False
    unschedulable: str = ""
    ready_page: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AgentSetFacts:
    """An agent's DaemonSet with its pods. `lacking` are the rights that its account lacks, None if the caller may not ask."""

    daemon_set: DaemonSet
    pods: tuple[PodFacts, ...] = ()
    lacking: tuple[str, ...] | None = ()
    layouts: str | None = None
    """The text of its ConfigMap of layouts; None without one."""
    turns: tuple[RolloutTicket, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """A Deployment that runs the controller. `wanted` is how many replicas are wanted, `ready` how many serve."""

    namespace: str
    name: str
    wanted: int = 0
    ready: int = 0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class OtherProgramFacts:
    """A DaemonSet that does a part of the agent's work, and its nodes."""

    daemon_set: DaemonSet
    product: str
    part: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What a survey saw.

    `policies` and `bindings` are the names of Tranche's admission policies, None if the API server has no such kind; `unread`
    says why something could not be read, by its name.
    """

    server_version: str
    nodes: tuple[KubeNode, ...] = ()
    agents: tuple[AgentSetFacts, ...] = ()
    others: tuple[OtherProgramFacts, ...] = ()
    controllers: tuple[ControllerFacts, ...] = ()
    policies: frozenset[str] | None = frozenset()
    bindings: frozenset[str] | None = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    claims: DryRunResult | None = None
    """What the API server made of a resource slice in a dry run; None if it was not tried."""


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One finding about these nodes and pods. `check` is a stable word; `pods` are `namespace/name`."""

    check: str
    status: Status
    text: str
    hint: str = ""
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
