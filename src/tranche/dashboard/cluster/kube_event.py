"""Kubernetes events written by programs of Tranche, as far as can be told. Pure.

Anyone who may write events in a namespace can write any event about its objects, in our programs' names and with any time. So
only an event from the namespace where the API server puts it counts, a time in the future does not, and no writer's events push
out those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tranche.dashboard.cluster.redaction import redacted_text
from tranche.dashboard.cluster.snapshot import NameVisibility, seconds_told

COMPONENTS = ("tranche", "tranche-controller", "tranche-dashboard")
"""The names of our programs in events: the agent, the controller, and this page."""


_OF_NODES = "default"
"""The namespace of events about objects without a namespace."""


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """An event about an object. `namespace` is that of the object, "" for a node; `written_in` that of the event itself.

    `last` is its writer's RFC 3339 time, "" if missing, and `created` the API server's. `at` is the time that counts, in seconds
    since the epoch.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    reason: str
    message: str
    warning: bool = False
    last: str = ""
    count: int = 1
    component: str = ""
    written_in: str = ""
    created: str = ""
    at: float = 0.0

    def believed(self, now: float) -> KubeEvent | None:
        """The event with the time that counts at `now`; None if its object belongs to another namespace than the event."""
        about_node = self.kind == "Node"
        if (about_node and (self.namespace or self.written_in != _OF_NODES)) or self.namespace not in (
            "",
            self.written_in,
        ):
            return None
        said, created = seconds_told(self.last), seconds_told(self.created)
        if said is None or said > now:
            at, last = created or 0.0, self.created
        else:
            at, last = said, self.last
        namespace = "" if about_node else self.written_in
        return replace(self, namespace=namespace, last=last, at=at)

    def redacted(self, sight: NameVisibility, named: Collection[str]) -> KubeEvent:
        """The event with the words that the viewer may read; `named` are namespaces whose names are known."""
        message = redacted_text(self.message, sight, named)
        return self if message == self.message else replace(self, message=message)


def decode_kube_event(raw: Mapping[str, Any]) -> KubeEvent:
    """A `v1.Event`."""
    meta, about, source = raw.get("metadata") or {}, raw.get("involvedObject") or {}, raw.get("source") or {}
    return KubeEvent(
        uid=str(meta.get("uid") or f"{meta.get('namespace')}/{meta.get('name')}"),
        kind=str(about.get("kind") or ""),
        namespace=str(about.get("namespace") or ""),
        name=str(about.get("name") or ""),
        reason=str(raw.get("reason") or ""),
        message=str(raw.get("message") or ""),
        warning=raw.get("type") == "Warning",
        last=str(raw.get("lastTimestamp") or raw.get("eventTime") or raw.get("firstTimestamp") or ""),
        count=int(raw.get("count") or 1),
        component=str(source.get("component") or raw.get("reportingComponent") or ""),
        written_in=str(meta.get("namespace") or ""),
        created=str(meta.get("creationTimestamp") or ""),
    )


def newest_fairly(events: Iterable[KubeEvent], most: int) -> Sequence[KubeEvent]:
    """The newest events, at most `most`, shared fairly: in turns one about a node and one about something else, there one of each
    namespace, and there one of each component. Room that some leave goes to the others.
    """
    groups = (lambda each: each.kind == "Node", lambda each: each.written_in, lambda each: each.component)
    return sorted(_in_turns(events, groups)[:most], key=_age)


def _in_turns(events: Iterable[KubeEvent], groups: Sequence[Callable[[KubeEvent], object]]) -> list[KubeEvent]:
    if not groups:
        return sorted(events, key=_age)
    found: dict[object, list[KubeEvent]] = {}
    for each in events:
        found.setdefault(groups[0](each), []).append(each)
    turns = chain.from_iterable(enumerate(_in_turns(some, groups[1:])) for some in found.values())
    return [each for _, each in sorted(turns, key=lambda turn: (turn[0], _age(turn[1])))]


def _age(event: KubeEvent) -> tuple[float, str]:
    return (-event.at, event.uid)


def event_data(event: KubeEvent) -> dict[str, Any]:
    """As JSON data."""
    return {
        "kind": event.kind,
        "namespace": event.namespace or None,
        "name": event.name,
        "reason": event.reason,
        "message": event.message,
        "warning": event.warning,
        "last": event.last or None,
        "count": event.count,
        "component": event.component,
        "writtenIn": event.written_in,
    }
