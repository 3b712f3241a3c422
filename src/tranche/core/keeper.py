"""Keepers of allocations, and the evidence that they are gone: only then is the share free.

Other packages gather the evidence; this module judges it. Unknown never counts as gone: a list from a source that just started,
or that cannot see everything, proves nothing by what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

_MOST_PODS = 512
"""Twice as many as can use a claim at once."""


class ProcessKeeper(NamedTuple):
    """A process with all its descendants; `pid` is 0 before it is known.

    `started` is in clock ticks since boot, and detects reused pids. `namespace` is the PID namespace of the pid, 0 if not
    recorded. `key_digest` is the SHA-256 of the share's key, which only its own processes know; "" without a key. `others` are
    the remains of the command that keep the share too, as (pid, started). `suspected` means that nothing has yet proved that the
    command left these processes. `uid` is the user who asked for the share, -1 if unknown. `begun` is when the command
    started, in the same ticks, also once its remains keep the share; 0 if unknown.
    """

    pid: int = 0
    started: int = 0
    namespace: int = 0
    key_digest: str = ""
    others: tuple[tuple[int, int], ...] = ()
    suspected: bool = False
    uid: int = -1
    begun: int = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process that keeps it; empty before one is known."""
        return (self.pid, *(pid for pid, _ in self.others)) if self.pid else ()

    def __str__(self) -> str:
        return f"pid {', '.join(map(str, self.pids))}" if self.pid else "a process that is about to start"


NOT_KNOWN_YET = ProcessKeeper()
"""The keeper of an allocation before its command starts."""


class PodKeeper(NamedTuple):
    """A container of a pod that the kubelet gave devices of `resource`.

    Empty names mean a pod in admission: the kubelet asks for devices without naming the pod. Empty names with a `uid` mean a pod
    found by its processes; `resource` is then empty too. `kubelet` is the kubelet run that last listed the container with these
    devices, or that asked for them.

    `lingers` means that the kubelet counts the devices as free while the pod may still use them. The kubelet forgets a pod
    deleted by force before its containers end, and after a restart a pod deleted meanwhile. `forgotten` means that the pod runs,
    but the kubelet lost its checkpoint and with it the pod's devices; the next kubelet start ends such a pod. `replicas` are the
    kubelet's ids for shared devices, `<uuid>::<number>`; no two holders have the same one.
    """

    resource: str
    namespace: str = ""
    name: str = ""
    container: str = ""
    uid: str = ""
    kubelet: str = ""
    lingers: bool = False
    forgotten: bool = False
    replicas: tuple[str, ...] = ()

    @property
    def admitted(self) -> bool:
        """Whether the pod is known."""
        return bool(self.name)

    def __str__(self) -> str:
        if self.admitted:
            return f"pod {self.namespace}/{self.name}"
        return f"a pod of uid {self.uid}" if self.uid else "a pod that is being admitted"


@dataclass(frozen=True, slots=True)
class ClaimKeeper:
    """A resource claim prepared on this node.

    `pods` are the uids of all pods known to have used it here. `others` means that it was also reserved for users other than
    pods, such as a group of pods, so unknown pods may use it. `boot` is the boot that last prepared it, "" if unknown. None of
    these is part of the claim's identity.
    """

    namespace: str
    name: str
    uid: str
    pods: tuple[str, ...] = field(default=(), compare=False)
    others: bool = field(default=False, compare=False)
    boot: str = field(default="", compare=False)

    def with_pods(self, pods: Iterable[str]) -> ClaimKeeper:
        """The keeper with these pods as the latest; beyond the limit it forgets the least recently seen."""
        latest = dict.fromkeys(pods)
        earlier = (each for each in self.pods if each not in latest)
        return replace(self, pods=(*earlier, *latest)[-_MOST_PODS:])

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


class PlacedPodKeeper(NamedTuple):
    """A pod that waited at a scheduling gate until a controller chose its share of this node."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"


ChosenFor = ClaimKeeper | PlacedPodKeeper
"""Keepers of shares chosen outside the node: by the scheduler or a controller."""

Keeper = ProcessKeeper | PodKeeper | ClaimKeeper | PlacedPodKeeper


class KeeperStatus(StrEnum):
    """ALIVE and UNKNOWN keep an allocation; GONE frees it."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class PodEvidence(NamedTuple):
    """What kubelet and API server say about one container's pod.

    `kubelet` is the present kubelet run, "" if the kubelet does not answer; `kubelet_age` is for how many seconds that run has
    answered; `listed` is whether it lists the container with any of these devices. `pod_exists` is the API server's answer for
    that uid: also False for a finished pod, None if the server does not answer. `waited` is the allocation's age in seconds.
    `processes` means that a process of the pod was seen on the machine, `replaced` that its container runs with other devices.
    """

    kubelet: str
    kubelet_age: float
    listed: bool
    pod_exists: bool | None
    waited: float
    processes: bool = False
    replaced: bool = False


ADMISSION_SECONDS = 30.0
SETTLED_SECONDS = 15.0
"""Long enough for a restarted kubelet to end the containers of deleted pods, which it does every two seconds."""


def judge_pod(keeper: PodKeeper, evidence: PodEvidence) -> KeeperStatus:
    """Whether a pod's container still holds its devices.

    A container that runs with other devices does not. Otherwise a listing or a living process of the pod keeps them. If the
    kubelet run that listed it no longer does, that settles it. A newer run learns of its pods only after a while, so the API
    server must confirm that the pod is over.
    """
    if evidence.replaced:
        return KeeperStatus.GONE
    if evidence.listed or evidence.processes:
        return KeeperStatus.ALIVE
    if not evidence.kubelet:
        return KeeperStatus.UNKNOWN
    same_run = keeper.kubelet == evidence.kubelet
    if not keeper.admitted:
        late = evidence.waited >= ADMISSION_SECONDS and evidence.kubelet_age >= ADMISSION_SECONDS
        return KeeperStatus.GONE if late and evidence.pod_exists is not None else KeeperStatus.UNKNOWN
    if same_run:
        return KeeperStatus.GONE
    if evidence.pod_exists is None:
        return KeeperStatus.UNKNOWN
    if evidence.pod_exists:
        return KeeperStatus.ALIVE
    return KeeperStatus.GONE if evidence.kubelet_age >= SETTLED_SECONDS else KeeperStatus.UNKNOWN


class ClaimEvidence(NamedTuple):
    """What is known of a prepared resource claim that the kubelet has not given back.

    `stands` is the API server's answer whether the claim with that uid exists and keeps its allocation; None if the server does
    not answer. `fallen_for` is for how many seconds it has said no. `processes` means that a process of the claim's pods, or on
    its devices, was seen on the machine. `listed` is whether the kubelet lists a pod with it; None if the kubelet does not
    answer.
    """

    stands: bool | None
    fallen_for: float = 0.0
    processes: bool = False
    listed: bool | None = False


FALLEN_SECONDS = 30.0
"""How long a container may still be about to start if its pod was deleted by force during preparation."""


def judge_claim(evidence: ClaimEvidence) -> KeeperStatus:
    """Judge whether a claim still holds its devices, although the kubelet did not give it back."""
    if evidence.processes or evidence.stands or evidence.listed:
        return KeeperStatus.ALIVE
    if evidence.stands is None or evidence.listed is None or evidence.fallen_for < FALLEN_SECONDS:
        return KeeperStatus.UNKNOWN
    return KeeperStatus.GONE


class OwnerKind(StrEnum):
    """A user of the machine, or a Kubernetes namespace."""

    USER = "user"
    NAMESPACE = "namespace"


class ShareOwner(NamedTuple):
    """A user by name, or a namespace."""

    kind: OwnerKind
    name: str


def owner_to_dict(owner: ShareOwner | None) -> dict[str, str] | None:
    """The owner as JSON data."""
    return None if owner is None else {"kind": str(owner.kind), "name": owner.name}


def owner_from_dict(data: Any) -> ShareOwner | None:
    """The owner that owner_to_dict wrote."""
    return None if data is None else ShareOwner(OwnerKind(data["kind"]), data["name"])


class Actor(NamedTuple):
    """Who made a change: `by` is the program, `user` the user it works as or the one who asked it."""

    by: str
    user: str

    def __str__(self) -> str:
        return f"{self.user}, by the {self.by}"


def actor_to_dict(actor: Actor | None) -> dict[str, Any] | None:
    """The actor as JSON data."""
    return None if actor is None else {"by": actor.by, "user": actor.user}


def actor_from_dict(data: Any) -> Actor | None:
    """The actor that actor_to_dict wrote."""
    return None if data is None else Actor(data["by"], data["user"])
