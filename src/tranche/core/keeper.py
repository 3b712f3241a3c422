"""Who keeps an allocation alive, and what can be said of whether it still does. Only a keeper that is gone frees a share.

Evidence is gathered at the edges and judged here. What is not known is never taken for gone: a list from somebody who has just
started, or who cannot see everything, says nothing about what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Life(StrEnum):
    """ALIVE and UNKNOWN keep an allocation; GONE frees it."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


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
    containers have ended, and after a restart one that was deleted meanwhile.
    """

    resource: str
    namespace: str = ""
    name: str = ""
    container: str = ""
    uid: str = ""
    kubelet: str = ""
    lingers: bool = False

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
    """A resource claim that was prepared on this node."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


Keeper = ProcessKeeper | PodKeeper | ClaimKeeper


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """What kubelet and API server say of one container's pod.

    `kubelet` is the present run of the kubelet, "" when it does not answer; `kubelet_age` for how many seconds that run is known
    to answer; `listed` whether it lists the container with any of these devices. `pod_exists` is the API server's word for that
    uid: False also for a pod that has finished, None when the server does not answer. `waited` is for how many seconds the
    allocation is there. `processes` says that a process of the pod was seen on the machine.
    """

    kubelet: str
    kubelet_age: float
    listed: bool
    pod_exists: bool | None
    waited: float
    processes: bool = False


ADMISSION_SECONDS = 30.0
SETTLED_SECONDS = 15.0
"""After this time a kubelet that has started has ended the containers of pods that are deleted: it does so every two seconds."""


def judge_pod(keeper: PodKeeper, evidence: PodEvidence) -> Life:
    """Whether a pod's container still holds its devices.

    While a process of the pod lives, it does. The run of the kubelet that listed it and lists it no more is believed otherwise.
    One that started since knows its pods only after a while: there the API server must say that the pod is over as well.
    """
    if evidence.listed or evidence.processes:
        return Life.ALIVE
    if not evidence.kubelet:
        return Life.UNKNOWN
    same_run = keeper.kubelet == evidence.kubelet
    if not keeper.admitted:
        late = evidence.waited >= ADMISSION_SECONDS and evidence.kubelet_age >= ADMISSION_SECONDS
        return Life.GONE if late and evidence.pod_exists is not None else Life.UNKNOWN
    if same_run:
        return Life.GONE
    if evidence.pod_exists is None:
        return Life.UNKNOWN
    if evidence.pod_exists:
        return Life.ALIVE
    return Life.GONE if evidence.kubelet_age >= SETTLED_SECONDS else Life.UNKNOWN


@dataclass(frozen=True, slots=True)
class ProcessEvidence:
    """What the machine shows of one process keeper.

    `locked`: some process holds the allocation's lock, which children inherit. `runs`: the recorded process lives. `inherited`
    are processes that carry the allocation's id in their environment, or are known to come of the process; `hidden` may have
    inherited it, and cannot be looked at.
    """

    locked: bool
    runs: bool = False
    inherited: Collection[int] = ()
    hidden: Collection[int] = ()


def judge_process(evidence: ProcessEvidence) -> Life:
    """Whether anything of the process and its descendants is left."""
    if evidence.locked or evidence.runs or evidence.inherited:
        return Life.ALIVE
    return Life.UNKNOWN if evidence.hidden else Life.GONE
