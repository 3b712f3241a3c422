"""Who keeps an allocation alive. Only a keeper that is gone frees a share; `tranche.core.evidence` judges whether it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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
