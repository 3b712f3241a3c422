"""Everything Tranche asks of a Kubernetes API server: a narrow protocol, and the values that pass through it.

Values hold only what Tranche reads. So a test's stand-in is a page long, and a new client library touches one module
(`tranche.kubernetes.api.client`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from tranche.kubernetes.api.node_rules import Taint, Toleration

MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"


class ConditionStatus(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class KubeEventType(StrEnum):
    """The two types of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """One condition of a node. `reason` is one CamelCase word; `message` is for people. `since` is when its status last changed,
    None where unknown.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str
    since: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node object. `capacity` and `allocatable` hold quantities as the API server prints them.

    `os_image` is the operating system's name as the kubelet reports it; `container_runtime` is like `containerd://2.3.7`.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    conditions: tuple[NodeCondition, ...] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    os_image: str = ""
    container_runtime: str = ""
    kubelet_version: str = ""
    kernel_version: str = ""
    architecture: str = ""
    taints: tuple[Taint, ...] = ()

    def condition(self, type_: str) -> NodeCondition | None:
        """The condition of that type."""
        return next((condition for condition in self.conditions if condition.type == type_), None)


@dataclass(frozen=True, slots=True, order=True)
class PodRef:
    """Names a pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class KubePod:
    """A pod. `owner_kind` is the kind of its controller: "" for a bare pod, "DaemonSet", "Node" for a mirror pod.

    `resources` are the resources that its containers have limits for, except those that a claim serves; `claims` are the names of
    its resource claims, in its namespace.
    """

    ref: PodRef
    uid: str = ""
    phase: str = "Running"
    owner_kind: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    terminating: bool = False
    resources: frozenset[str] = frozenset()
    claims: frozenset[str] = frozenset()

    @property
    def finished(self) -> bool:
        """Whether it no longer runs: what it held is free, or about to be."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def mirror(self) -> bool:
        """Whether the kubelet runs it from a file: the API server cannot evict it."""
        return MIRROR_POD_ANNOTATION in self.annotations

    @property
    def uid_on_node(self) -> str:
        """The uid in the names of its control groups: for a mirror pod, the uid of the file's pod instead of its own."""
        return self.annotations.get(MIRROR_POD_ANNOTATION) or self.uid


@dataclass(frozen=True, slots=True)
class DaemonSet:
    """A DaemonSet. `selector` picks its pods. `command` and `arguments` are those of the container that runs `tranche agent`,
    else of its first; its environment is left out.
    """

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
    deleting: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def words(self) -> tuple[str, ...]:
        """How that container is started."""
        return (*self.command, *self.arguments)

    @property
    def runs_agents(self) -> bool:
        """Whether it runs `tranche agent`, by those words, else by the image."""
        if self.command:
            return runs_agent(self.words)
        return image_name(self.images[0] if self.images else "") == "tranche-agent"

    def option(self, name: str, default: str) -> str:
        """The value of an option given as `--name=value`; the last one counts."""
        given = [each.partition("=")[2] for each in self.words if each.startswith(f"{name}=")]
        return given[-1] if given else default

    def has_option(self, name: str) -> bool:
        """Whether it is started with that option, such as `--verbose` or `--layouts=sizes`."""
        return any(each.partition("=")[0] == name for each in self.words)

    @property
    def left_out(self) -> frozenset[str]:
        """The parts that this agent runs without."""
        return frozenset(each.partition("=")[2] for each in self.words if each.startswith("--without="))


@dataclass(frozen=True, slots=True)
class RbacPermission:
    """One verb on one kind of object, in its API `group`; fields that do not matter are empty."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    group: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        which = f" {self.name}" if self.name else ""
        return f"{self.verb} {kind}{which}" + (f" in {self.namespace}" if self.namespace else "")

    def review(self, user: Mapping[str, Any]) -> Mapping[str, Any]:
        """The question whether the user, as `SubjectAccessReview` names one, has the right; asking it stores nothing."""
        wanted = {key: value for key, value in asdict(self).items() if value}
        spec = {**user, "resourceAttributes": wanted}
        return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def runs_agent(words: Sequence[str]) -> bool:
    """Whether a container with these words runs `tranche agent`, itself or by a program before it."""
    return any(program.rpartition("/")[2] == "tranche" and command == "agent" for program, command in pairwise(words))


def image_name(image: str) -> str:
    """The last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


class EvictionStatus(StrEnum):
    """ACCEPTED: the pod is being deleted. BLOCKED: a disruption budget forbids it now. GONE: the pod no longer exists."""

    ACCEPTED = "accepted"
    BLOCKED = "blocked"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The API server's answer to an eviction request; `message` is its own, and names the blocking budget."""

    outcome: EvictionStatus
    message: str = ""
