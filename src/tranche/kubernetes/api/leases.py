"""Leases of a namespace: small objects that programs share, replaced only by whoever saw their latest version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json
from tranche.kubernetes.api.informer import Backoff, Informer
from tranche.kubernetes.api.selection import ObjectSource, named


@dataclass(frozen=True, slots=True)
class Lease:
    """A `coordination.k8s.io/v1` Lease.

    `holder` is its holderIdentity, `seconds` its leaseDurationSeconds. `renewed` is the API server's text of the last renewal:
    compare it for a change and for nothing else, since it was written by another machine's clock. `created` sorts by time.
    `owner_node` is name and uid of the node with which it goes. `version` and `created` come from the API server.
    """

    name: str
    holder: str = ""
    seconds: int = 60
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_node: tuple[str, str] | None = None
    renewed: str = ""
    created: str = ""
    version: str = ""


class LeaseClient:
    """The leases of one namespace. `random` gives numbers from 0 to 1; `now` gives the time in UTC.

    Errors are those of `KubeClient`.
    """

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        *,
        now: Callable[[], datetime],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connection = connection
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._now = now
        self._random = random
        self._sleep = sleep

    async def get(self, name: str) -> Lease | None:
        """The lease now; None when there is none."""
        answer = await self._connection.ask(f"read lease {name}", "GET", f"{self._path}/{name}")
        return None if answer.status == 404 else decode_lease(answer.accepted())

    async def create(self, lease: Lease) -> Lease | None:
        """Make it, renewed now; None when there is one of that name."""
        answer = await self._connection.ask(f"make lease {lease.name}", "POST", self._path, self._encode(lease))
        return None if answer.status == 409 else decode_lease(answer.accepted())

    async def replace(self, lease: Lease, *, renew: bool = True) -> Lease | None:
        """Write it in the place of its own `version`, renewed now or as before.

        None when that is not the latest any more, or it is gone.
        """
        path = f"{self._path}/{lease.name}"
        answer = await self._connection.ask(f"write lease {lease.name}", "PUT", path, self._encode(lease, renew=renew))
        return None if answer.status in (404, 409) else decode_lease(answer.accepted())

    async def delete(self, lease: Lease) -> bool:
        """Remove it as it is in its `version`; False when it is another one now. There may be none."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": lease.version}}
        path = f"{self._path}/{lease.name}"
        answer = await self._connection.ask(f"remove lease {lease.name}", "DELETE", path, body)
        if answer.status not in (404, 409):
            answer.accepted()
        return answer.status != 409

    async def watch(self, name: str) -> AsyncGenerator[Lease | None, None]:
        """The lease now, then after each change; None while there is none."""
        async with aclosing(self._followed(f"lease {name}", named(name))) as snapshots:
            async for leases in snapshots:
                yield next(iter(leases), None)

    def watch_all(self, label: str, value: str) -> AsyncGenerator[tuple[Lease, ...], None]:
        """Those with that label now, then after each change."""
        return self._followed(f"leases with {label}={value}", {"labelSelector": f"{label}={value}"})

    async def _followed(self, what: str, selector: Mapping[str, str]) -> AsyncGenerator[tuple[Lease, ...], None]:
        source = ObjectSource(self._connection, what, self._path, selector, decode_lease)
        informer = Informer(source, Backoff(self._random), sleep=self._sleep)
        async with aclosing(informer.snapshots()) as snapshots:
            async for leases in snapshots:
                yield tuple(leases.values())

    def _encode(self, lease: Lease, *, renew: bool = True) -> Json:
        owners = []
        if lease.owner_node is not None:
            name, uid = lease.owner_node
            owners.append({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid})
        meta = {
            "name": lease.name,
            "labels": dict(lease.labels),
            "annotations": dict(lease.annotations),
            "ownerReferences": owners,
            **({"resourceVersion": lease.version} if lease.version else {}),
        }
        renewed = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ") if renew else lease.renewed
        spec = {"holderIdentity": lease.holder, "leaseDurationSeconds": lease.seconds, "renewTime": renewed}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def decode_lease(raw: Json) -> Lease:
    """A `coordination.k8s.io/v1.Lease`."""
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("kind") == "Node"), None)
    return Lease(
        name=meta.get("name", ""),
        holder=spec.get("holderIdentity") or "",
        seconds=spec.get("leaseDurationSeconds") or 0,
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        owner_node=(owner.get("name", ""), owner.get("uid", "")) if owner else None,
        renewed=spec.get("renewTime") or "",
        created=meta.get("creationTimestamp") or "",
        version=meta.get("resourceVersion") or "",
    )
