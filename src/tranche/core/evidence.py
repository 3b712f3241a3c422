"""Whether a keeper still lives: what was seen of it, and what that says.

Evidence is gathered at the edges and judged here. What is not known is never taken for gone: a list from somebody who has just
started, or who cannot see everything, says nothing about what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from tranche.core.keeper import PodKeeper


class KeeperStatus(StrEnum):
    """ALIVE and UNKNOWN keep an allocation; GONE frees it."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PodEvidence:
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


def judge_process(evidence: ProcessEvidence) -> KeeperStatus:
    """Whether anything of the process and its descendants is left."""
    if evidence.locked or evidence.runs or evidence.inherited:
        return KeeperStatus.ALIVE
    return KeeperStatus.UNKNOWN if evidence.hidden else KeeperStatus.GONE


@dataclass(frozen=True, slots=True)
class ClaimEvidence:
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
