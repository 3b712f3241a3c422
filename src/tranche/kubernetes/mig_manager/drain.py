"""Makes room for a layout: which pods in the way can be evicted, and the cordon meanwhile. Pure.

`decision` decides whether pods are evicted at all.

Only pods that hold what the layout takes are evicted, through the eviction API, which respects disruption budgets. The node stays
cordoned so that evicted pods do not come straight back: until the kubelet has freed their devices, possibly after the API server
has forgotten the pods. An annotation remembers that this manager set the cordon: a node that an admin has cordoned stays
cordoned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from tranche.core.allocation import Allocation, NodeView, devices, overlap
from tranche.core.keeper import PodKeeper
from tranche.kubernetes.api.objects import KubeNode, KubePod, PodRef
from tranche.planning.occupancy.layout_occupancy import User

CORDON_ANNOTATION = "tranche.dev/mig.config.cordoned"
RETRY_SECONDS = 5.0

_NAMED_AT_MOST = 5


class InUsePolicy(StrEnum):
    """What to do about a slice in use that is in a layout's way: wait for its end, refuse the layout, or evict its pod."""

    WAIT = "wait"
    REFUSE = "refuse"
    DRAIN = "drain"


def cordoning(node: KubeNode, *, wanted: bool | None) -> tuple[bool | None, Mapping[str, str | None]]:
    """The next step towards a node that this manager has cordoned, or has uncordoned; with `wanted` None no step.

    It is whether to make the node unschedulable, None to leave that, and the annotations for a patch of its metadata.

    The annotation is set before the cordon and removed after it, so that a manager killed in between leaves no forgotten cordon
    behind.
    """
    if wanted is None:
        return None, {}
    ours = CORDON_ANNOTATION in node.annotations
    if wanted:
        if node.unschedulable:
            return None, {}
        return True, ({} if ours else {CORDON_ANNOTATION: "true"})
    if not ours:
        return None, {}
    return (False, {}) if node.unschedulable else (None, {CORDON_ANNOTATION: None})


def pods_of(user: User) -> tuple[PodRef, ...]:
    """The pods of the user; none for a process, nor for shares by claims, gates or commands: these are waited for."""
    return pods_having(user.allocations)


def pods_having(allocations: Iterable[Allocation]) -> tuple[PodRef, ...]:
    """The pods that the kubelet gave these, as far as the pods are known."""
    keepers = (each.keeper for each in allocations)
    return tuple(
        PodRef(keeper.namespace, keeper.name) for keeper in keepers if isinstance(keeper, PodKeeper) and keeper.admitted
    )


def drainable(refs: Collection[PodRef], pods: Iterable[KubePod]) -> tuple[KubePod, ...]:
    """The pods that eviction helps with: a pod of a DaemonSet would come back at once, a mirror pod cannot be evicted."""
    return tuple(
        pod for pod in pods if pod.ref in refs and pod.owner_kind != "DaemonSet" and not (pod.mirror or pod.finished)
    )


def between_words(refs: Collection[PodRef], pods: Iterable[KubePod]) -> bool:
    """Whether any of these pods, which have devices according to the kubelet, is unknown to the API server or terminating.

    Such a pod has only just come, or is on its way out. `pods` are the API server's, perhaps out of date.
    """
    known = {pod.ref: pod for pod in pods}
    return any(ref not in known or known[ref].terminating for ref in refs)


def describe_users(users: Iterable[User], answers: Mapping[PodRef, str] | None = None) -> str:
    """The users in the way, in words; `answers` is what the API server said when it refused a pod's eviction."""
    named = [_describe(user, answers or {}) for user in users]
    more = len(named) - _NAMED_AT_MOST
    return "; ".join(named[:_NAMED_AT_MOST]) + (f"; and {more} more" if more > 0 else "")


def _describe(user: User, answers: Mapping[PodRef, str]) -> str:
    text = str(user)
    for ref in pods_of(user):
        if ref in answers:
            text = text.replace(f"pod {ref}", f"pod {ref} ({answers[ref]})")
    return text


class NewPodTracker:
    """The pods and commands that came while a layout waits, and were given what the layout was to leave alone; a change of the
    wanted layout starts over.

    Several cuts can give one layout, and which of them ends the fewest users changes with every pod that ends. What was given an
    unmarked slice must not stand in the way of the next such choice: a backlog would keep the layout waiting.
    """

    def __init__(self) -> None:
        self._layout = ""
        self._known: frozenset[str] | None = None
        self._protected: frozenset[str] = frozenset()

    def after(self, layout: str, view: NodeView, marked: Collection[str]) -> frozenset[str]:
        """The ids of the allocations to leave where they are. `marked` are the devices closed to everyone since the last look.

        While nothing is marked there are no newcomers: what a pod is given then may be what the layout takes first.
        """
        present = frozenset(each.id for each in view.allocations)
        if layout != self._layout or not marked:
            self._layout, self._known, self._protected = layout, None, frozenset()
        if not marked:
            return self._protected
        known = present if self._known is None else self._known
        new = {each.id for each in view.allocations if each.id not in known and not _is_marked(each, view, marked)}
        self._known = known | present
        self._protected = (self._protected | new) & present
        return self._protected


def _is_marked(allocation: Allocation, view: NodeView, marked: Collection[str]) -> bool:
    by_uuid = devices(view.node)
    gone = [by_uuid[uuid] for uuid in marked if uuid in by_uuid]
    return any(overlap(grant, each) for grant in allocation.grants for each in gone)
