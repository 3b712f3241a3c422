"""Making room for a layout: which pods in the way eviction helps with, and the cordon meanwhile. Pure.

`decision` says whether pods are evicted at all.

Only pods that hold what has to go are evicted, by the eviction API, which respects disruption budgets. The node is cordoned
while that goes on, so that what is evicted does not come straight back: until the kubelet has freed its devices, which may be
after the API server has forgotten the pod. An annotation remembers that it was cordoned here: a node that an admin has cordoned
stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tranche.core.allocation import Allocation
from tranche.core.keeper import PodKeeper
from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef
from tranche.planning.occupancy.layout_occupancy import User

CORDON_ANNOTATION = "tranche.dev/mig.config.cordoned"
RETRY_SECONDS = 5.0

_NAMED_AT_MOST = 5


class InUsePolicy(StrEnum):
    """What to do when a slice in use is in the way of a layout: wait for its end, refuse the layout, or evict its pod."""

    WAIT = "wait"
    REFUSE = "refuse"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class _Cordoning:
    """What is to be done about the cordon: `unschedulable` None leaves it; the annotations are part of a metadata patch."""

    unschedulable: bool | None
    annotations: Mapping[str, str | None]


def cordoning(node: KubeNode, *, wanted: bool | None) -> _Cordoning:
    """The next step from the node as it is to one that is cordoned by this manager, or is not any more; None leaves it.

    The annotation is set before the cordon and goes after it, so that whoever is killed in between leaves no cordon behind that
    nobody remembers.
    """
    if wanted is None:
        return _Cordoning(None, {})
    ours = CORDON_ANNOTATION in node.annotations
    if wanted:
        if node.unschedulable:
            return _Cordoning(None, {})
        return _Cordoning(True, {} if ours else {CORDON_ANNOTATION: "true"})
    if not ours:
        return _Cordoning(None, {})
    return _Cordoning(False, {}) if node.unschedulable else _Cordoning(None, {CORDON_ANNOTATION: None})


def pods_of(user: User) -> tuple[PodRef, ...]:
    """The pods that the user stands for; none for a process, nor for shares by claims, gates or commands: they are waited for."""
    return pods_having(user.allocations)


def pods_having(allocations: Iterable[Allocation]) -> tuple[PodRef, ...]:
    """The pods that the kubelet gave these, as far as it is known which pods they are."""
    keepers = (each.keeper for each in allocations)
    return tuple(
        PodRef(keeper.namespace, keeper.name) for keeper in keepers if isinstance(keeper, PodKeeper) and keeper.admitted
    )


def drainable(refs: Collection[PodRef], pods: Iterable[KubePod]) -> tuple[KubePod, ...]:
    """Those that eviction helps with: a pod of a DaemonSet would come back at once, a mirror pod cannot be evicted."""
    return tuple(
        pod for pod in pods if pod.ref in refs and pod.owner_kind != "DaemonSet" and not (pod.mirror or pod.finished)
    )


def between_words(refs: Collection[PodRef], pods: Iterable[KubePod]) -> bool:
    """Whether some of these pods, which have devices by the kubelet's word, are unknown or leaving by the API server's.

    Such a pod has only just come, or is on its way out. `pods` are the API server's, perhaps late.
    """
    known = {pod.ref: pod for pod in pods}
    return any(ref not in known or known[ref].terminating for ref in refs)


def describe_users(users: Iterable[User], answers: Mapping[PodRef, str] | None = None) -> str:
    """Who is in the way, for people; `answers` is what the API server said when a pod's eviction was refused."""
    named = [_describe(user, answers or {}) for user in users]
    more = len(named) - _NAMED_AT_MOST
    return "; ".join(named[:_NAMED_AT_MOST]) + (f"; and {more} more" if more > 0 else "")


def _describe(user: User, answers: Mapping[PodRef, str]) -> str:
    text = str(user)
    for ref in pods_of(user):
        if ref in answers:
            text = text.replace(f"pod {ref}", f"pod {ref} ({answers[ref]})")
    return text
