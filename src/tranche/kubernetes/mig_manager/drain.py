"""Making room for a layout: who is in the way, who of them may be evicted, and whether the node is cordoned meanwhile.

Only pods that hold what has to go are evicted, by the eviction API, which respects disruption budgets. The node is cordoned
while that goes on, so that what is evicted does not come straight back, and an annotation remembers that it was cordoned here:
a node that an admin has cordoned stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef
from tranche.kubernetes.observation.inventory import BEING_ADMITTED
from tranche.planning.gpu_users import User

CORDON_ANNOTATION = "tranche.dev/mig.config.cordoned"
RETRY_SECONDS = 5.0

_POD_PREFIX = "pod/"
_NAMED_AT_MOST = 5


class InUsePolicy(StrEnum):
    """What to do when a slice in use is in the way of a layout: wait for its end, refuse the layout, or evict its pod."""

    WAIT = "wait"
    REFUSE = "refuse"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Cordoning:
    """What is to be done about the cordon: `unschedulable` None leaves it; the annotations are part of a metadata patch."""

    unschedulable: bool | None
    annotations: Mapping[str, str | None]


def cordoning(node: KubeNode, *, wanted: bool) -> Cordoning:
    """The next step from the node as it is to one that is cordoned by this manager, or is not any more.

    The annotation is set before the cordon and goes after it, so that whoever is killed in between leaves no cordon behind that
    nobody remembers.
    """
    ours = CORDON_ANNOTATION in node.annotations
    if wanted:
        if node.unschedulable:
            return Cordoning(None, {})
        return Cordoning(True, {} if ours else {CORDON_ANNOTATION: "true"})
    if not ours:
        return Cordoning(None, {})
    return Cordoning(False, {}) if node.unschedulable else Cordoning(None, {CORDON_ANNOTATION: None})


def pod_of(user: User) -> PodRef | None:
    """The pod that the user is; None for a process, or for a share that was not given to a pod."""
    if user.allocation is None or not user.allocation.id.startswith(_POD_PREFIX):
        return None
    namespace, _, name = user.allocation.id.removeprefix(_POD_PREFIX).partition("/")
    return PodRef(namespace, name) if namespace and name else None


def drainable(refs: Collection[PodRef], pods: Iterable[KubePod]) -> tuple[KubePod, ...]:
    """Those that eviction helps with: a pod of a DaemonSet would come back at once, a mirror pod cannot be evicted."""
    return tuple(
        pod for pod in pods if pod.ref in refs and pod.owner_kind != "DaemonSet" and not (pod.mirror or pod.finished)
    )


def describe_users(users: Iterable[User], answers: Mapping[PodRef, str] | None = None) -> str:
    """Who is in the way, for people; `answers` is what the API server said when a pod's eviction was refused."""
    named = [_describe(user, answers or {}) for user in users]
    more = len(named) - _NAMED_AT_MOST
    return "; ".join(named[:_NAMED_AT_MOST]) + (f"; and {more} more" if more > 0 else "")


def _describe(user: User, answers: Mapping[PodRef, str]) -> str:
    if user.allocation is not None and user.allocation.id == f"{_POD_PREFIX}{BEING_ADMITTED}":
        return f"{user.place} is in use by a pod that is being admitted"
    ref = pod_of(user)
    if ref is None:
        return str(user)
    text = f"{user.place} is in use by pod {ref}"
    return f"{text} ({answers[ref]})" if ref in answers else text
