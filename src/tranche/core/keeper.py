"""Who keeps an allocation alive, and whether that keeper is gone: only then is the share free.

Evidence is gathered at the edges and judged here. What is not known is never taken for gone: a list from somebody who has just
started, or who cannot see everything, says nothing about what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

_MOST_PODS = 512
"""Twice as many as can use a claim at once."""


@dataclass(frozen=True, slots=True)
class ProcessKeeper:
    """A process with all its descendants; `pid` is 0 before it is known.

    `started` is in clock ticks since boot, against pids that are used again. `namespace` is the PID namespace in which the pid is
    meant, 0 when it was not recorded. `key_digest` is the SHA-256 of the share's key, which only its own processes know; "" when
    it has none. `others` keep the share beside it, as (pid, started): what a command left running. `suspected` says that nobody
    who could tell has looked whether these processes came of the command.
    """

    pid: int = 0
    started: int = 0
    namespace: int = 0
    key_digest: str = ""
    others: tuple[tuple[int, int], ...] = ()
    suspected: bool = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process that keeps it; none before one is known."""
        return (self.pid, *(pid for pid, _ in self.others)) if self.pid else ()

    def __str__(self) -> str:
        return f"pid {', '.join(map(str, self.pids))}" if self.pid else "a process that is about to start"


NOT_KNOWN_YET = ProcessKeeper()
"""The keeper of an allocation whose command has not started."""


@dataclass(frozen=True, slots=True)
class PodKeeper:
    """A container of a pod that the kubelet gave devices of `resource`.

    Empty names stand for a pod that is being admitted: the kubelet asks for devices without saying for whom. With a `uid` they
    stand for one that was found by its processes, and `resource` is empty as well. `kubelet` is the run of the kubelet that last
    listed the container with these devices, or that asked for them. `lingers` says that
    the kubelet counts the devices as free while the pod may still use them: it forgets one that is deleted by force before its
    containers have ended, and after a restart one that was deleted meanwhile. `forgotten` says that the pod runs and that the
    kubelet, which lost its checkpoint, does not know that it has anything: the next start of the kubelet ends such a pod.
    `replicas` are the kubelet's ids of what it has of devices that are shared, `<uuid>::<number>`; no two holders have one.
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
        """Whether it is known which pod this is."""
        return bool(self.name)

    def __str__(self) -> str:
        if self.admitted:
            return f"pod {self.namespace}/{self.name}"
        return f"a pod of uid {self.uid}" if self.uid else "a pod that is being admitted"


@dataclass(frozen=True, slots=True)
class ClaimKeeper:
    """A resource claim that was prepared on this node.

    `pods` are the uids of all pods that are known to have used it here. `others` says that it was also reserved for users that
    are no pods, such as a group of pods: pods beside the known ones may use it. `boot` is the start of the machine in which it
    was last prepared, "" where that is not known. Who it is depends on none of these.
    """

    namespace: str
    name: str
    uid: str
    pods: tuple[str, ...] = field(default=(), compare=False)
    others: bool = field(default=False, compare=False)
    boot: str = field(default="", compare=False)

    def with_pods(self, pods: Iterable[str]) -> ClaimKeeper:
        """The keeper that knows these pods as the latest; of very many, it forgets those that it has not heard of for longest."""
        latest = dict.fromkeys(pods)
        earlier = (each for each in self.pods if each not in latest)
        return replace(self, pods=(*earlier, *latest)[-_MOST_PODS:])

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PlacedPodKeeper:
    """A pod that waited at a scheduling gate until a controller chose its share of this node."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"


ChosenFor = ClaimKeeper | PlacedPodKeeper
"""Who has what somebody else chose: the scheduler, or a controller."""

Keeper = ProcessKeeper | PodKeeper | ClaimKeeper | PlacedPodKeeper


class KeeperStatus(StrEnum):
    """ALIVE and UNKNOWN keep an allocation; GONE frees it."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class PodEvidence(NamedTuple):
    """What kubelet and API server say of one container's pod.

    `kubelet` is the present run of the kubelet, "" when it does not answer; `kubelet_age` for how many seconds that run is known
    to answer; `listed` whether it lists the container with any of these devices. `pod_exists` is the API server's word for that
    uid: False also for a pod that has finished, None when the server does not answer. `waited` is for how many seconds the
    allocation is there. `processes` says that a process of the pod was seen on the machine, `replaced` that its container runs
    with other devices.
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
"""After this time a kubelet that has started has ended the containers of pods that are deleted: it does so every two seconds."""


def judge_pod(keeper: PodKeeper, evidence: PodEvidence) -> KeeperStatus:
    """Whether a pod's container still holds its devices.

    A container that runs with others does not. While a process of the pod lives, it does otherwise. The run of the kubelet that
    listed it and lists it no more is believed then. One that started since knows its pods only after a while: there the API
    server must say that the pod is over as well.
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


class ProcessEvidence(NamedTuple):
    """What the machine shows of one process keeper.

    `locked`: some process holds the allocation's lock, which children inherit. `runs`: the recorded process lives. `inherited`
    are processes that carry the allocation's id in their environment, or are known to come of the process; `hidden` may have
    inherited it, and cannot be looked at.
    """

    locked: bool
    runs: bool = False
    inherited: Collection[int] = ()
    hidden: Collection[int] = ()


def judge_process(evidence: ProcessEvidence) -> KeeperStatus:
    """Whether anything of the process and its descendants is left."""
    if evidence.locked or evidence.runs or evidence.inherited:
        return KeeperStatus.ALIVE
    return KeeperStatus.UNKNOWN if evidence.hidden else KeeperStatus.GONE


class ClaimEvidence(NamedTuple):
    """What is known of one resource claim that was prepared and that the kubelet has not given back.

    `stands` is the API server's word whether the claim of that uid is there and still allocated to what it was given; None when
    the server does not answer. `fallen_for` is for how many seconds it has said that it is not. `processes` says that a process
    of the claim's pods, or on its devices, was seen on the machine. `listed` is whether the kubelet lists a pod with it; None
    when the kubelet does not answer.
    """

    stands: bool | None
    fallen_for: float = 0.0
    processes: bool = False
    listed: bool | None = False


FALLEN_SECONDS = 30.0
"""For so long a container may still be about to start, of a pod that was deleted by force while it was prepared."""


def judge_claim(evidence: ClaimEvidence) -> KeeperStatus:
    """Whether a claim still has what was prepared for it, although nobody gave it back."""
    if evidence.processes or evidence.stands or evidence.listed:
        return KeeperStatus.ALIVE
    if evidence.stands is None or evidence.listed is None or evidence.fallen_for < FALLEN_SECONDS:
        return KeeperStatus.UNKNOWN
    return KeeperStatus.GONE


class OwnerKind(StrEnum):
    """A user of the machine, or a namespace of Kubernetes."""

    USER = "user"
    NAMESPACE = "namespace"


class ShareOwner(NamedTuple):
    """A user by his name, or a namespace."""

    kind: OwnerKind
    name: str


def owner_to_dict(owner: ShareOwner | None) -> dict[str, str] | None:
    """The owner as JSON data."""
    return None if owner is None else {"kind": str(owner.kind), "name": owner.name}


def owner_from_dict(data: Any) -> ShareOwner | None:
    """The owner that owner_to_dict wrote; earlier versions wrote none."""
    return None if data is None else ShareOwner(OwnerKind(data["kind"]), data["name"])


class Actor(NamedTuple):
    """`by` is the program that was asked to, `user` the name of whoever it works as, or of whoever asked it."""

    by: str
    user: str

    def __str__(self) -> str:
        return f"{self.user}, by the {self.by}"


def actor_to_dict(actor: Actor | None) -> dict[str, Any] | None:
    """The actor as JSON data."""
    return None if actor is None else {"by": actor.by, "user": actor.user}


def actor_from_dict(data: Any) -> Actor | None:
    """The actor that actor_to_dict wrote; earlier versions wrote none."""
    return None if data is None else Actor(data["by"], data["user"])
