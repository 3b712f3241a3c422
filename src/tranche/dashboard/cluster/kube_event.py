"""Events of Kubernetes that programs of Tranche have written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tranche.dashboard.cluster.sight import ViewerSight
from tranche.dashboard.cluster.veil import veiled_text

COMPONENTS = ("tranche", "tranche-controller", "tranche-dashboard")
"""What our programs call themselves in events: the agent, the controller, and this page."""


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """An event about an object. `namespace` is that of the object, "" for a node. `last` is RFC 3339, "" where it is not said."""

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

    def veiled(self, sight: ViewerSight) -> KubeEvent | None:
        """The event as the viewer may see it; None where he may not see that there is one.

        One about a node may tell of anybody's pods, and is for those who see all namespaces.
        """
        if not sight.sees(self.namespace):
            return None
        message = veiled_text(self.message, sight)
        return self if message == self.message else replace(self, message=message)


def decode_kube_event(raw: Mapping[str, Any]) -> KubeEvent:
    """A `v1.Event`."""
    meta, about, source = raw.get("metadata") or {}, raw.get("involvedObject") or {}, raw.get("source") or {}
    kind = str(about.get("kind") or "")
    return KubeEvent(
        uid=str(meta.get("uid") or f"{meta.get('namespace')}/{meta.get('name')}"),
        kind=kind,
        namespace=str(about.get("namespace") or ("" if kind == "Node" else meta.get("namespace") or "")),
        name=str(about.get("name") or ""),
        reason=str(raw.get("reason") or ""),
        message=str(raw.get("message") or ""),
        warning=raw.get("type") == "Warning",
        last=str(raw.get("lastTimestamp") or raw.get("eventTime") or raw.get("firstTimestamp") or ""),
        count=int(raw.get("count") or 1),
        component=str(source.get("component") or raw.get("reportingComponent") or ""),
    )


def newest_first(events: Iterable[KubeEvent], most: int) -> Sequence[KubeEvent]:
    """The newest of them."""
    return sorted(events, key=lambda each: (each.last, each.uid), reverse=True)[:most]


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
    }
