"""A cluster as far as Tranche is concerned: what a survey saw, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tranche.kubernetes.api.node_rules import Taint, Toleration
from tranche.kubernetes.claims.allocation_backend import DryRunResult


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """A node's condition; `since` is when its status last changed, None where the API server does not say."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class SurveyedNode:
    """A node. `capacity` and `allocatable` have the resources of GPUs only, as numbers; `annotations` only those of Tranche."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    conditions: tuple[ConditionFacts, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    unschedulable: bool = False
    kubelet_version: str = ""
    kernel_version: str = ""
    os_image: str = ""
    container_runtime: str = ""
    architecture: str = ""

    def condition(self, type_: str) -> ConditionFacts | None:
        """The condition of that type."""
        return next((each for each in self.conditions if each.type == type_), None)


@dataclass(frozen=True, slots=True)
class DaemonSetFacts:
    """A DaemonSet. `selector` picks its pods; `arguments` are those of its first container, without its environment."""

    namespace: str
    name: str
    images: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    service_account: str = "default"
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    version: str = ""
    desired: int = 0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def option(self, name: str, default: str) -> str:
        """The value of an option that is given as `--name=value`, the last one."""
        given = [each.partition("=")[2] for each in self.arguments if each.startswith(f"{name}=")]
        return given[-1] if given else default

    @property
    def left_out(self) -> frozenset[str]:
        """The parts that this agent runs without."""
        return frozenset(each.partition("=")[2] for each in self.arguments if each.startswith("--without="))


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of a DaemonSet. `waiting` is the reason why its container does not run, `ready_page` what its /readyz says, by
    component; None where nobody asked or nobody answered.
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
class RolloutPlace:
    """A node's place among those that change their layout; `go_on` when somebody lets the others go on after its failure."""

    node: str
    state: str
    go_on: bool = False


@dataclass(frozen=True, slots=True)
class AgentSetFacts:
    """An agent's DaemonSet with its pods. `lacking` are the rights that its account has not, None where nobody may ask."""

    daemon_set: DaemonSetFacts
    pods: tuple[PodFacts, ...] = ()
    lacking: tuple[str, ...] | None = ()
    layouts: str | None = None
    """The text of its ConfigMap of layouts; None where there is none."""
    turns: tuple[RolloutPlace, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """A Deployment that runs the controller. `wanted` is how many of it are asked for, `ready` how many serve."""

    namespace: str
    name: str
    wanted: int = 0
    ready: int = 0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class OtherProgramFacts:
    """A DaemonSet that does a part of the agent's work, and the nodes that it runs on."""

    daemon_set: DaemonSetFacts
    product: str
    part: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What a survey saw.

    `policies` and `bindings` are the names of Tranche's admission policies, None where the API server has no such objects;
    `unread` says what the caller may not read, by what was to be read.
    """

    server_version: str
    nodes: tuple[SurveyedNode, ...] = ()
    agents: tuple[AgentSetFacts, ...] = ()
    others: tuple[OtherProgramFacts, ...] = ()
    controllers: tuple[ControllerFacts, ...] = ()
    policies: frozenset[str] | None = frozenset()
    bindings: frozenset[str] | None = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    claims: DryRunResult | None = None
    """What the API server made of a resource slice as a dry run; None when nobody tried."""
