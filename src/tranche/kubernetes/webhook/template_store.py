"""The templates of claims that pods got by annotations: made on demand, removed when no longer needed.

Name and content go together, so it does not matter which replica makes one, nor how often. Each use is noted on the template
every few minutes. It is removed an hour after its last use, in the version that was seen unused; a use in between is a newer
version.

Anyone who reaches the webhook's port can send the API server's requests. So at most a hundred templates are made in a minute:
because they go after an hour, they cannot fill the cluster.

When the controller is removed for good, so are its templates that nothing needs any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, KubernetesUnavailable, TrancheError
from tranche.kubernetes.api.client import listed
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json, part, timestamp
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.claims.vocabulary import KUEUE
from tranche.kubernetes.component import Component
from tranche.kubernetes.webhook.injection import (
    REQUEST_ANNOTATION,
    TEMPLATE_LABEL,
    USED_ANNOTATION,
    claim_template,
    names_used,
    template_name,
)

NOTE_SECONDS = 300.0
"""How long after a noted use further ones are not noted."""

KEPT = timedelta(hours=1)
MOST_MADE, MADE_SECONDS = 100, 60.0
"""At most so many are made in so many seconds. Existing ones do not count."""
_MOST_KNOWN = 10_000
_SWEEP_SECONDS = 600.0
_GROUP = "/apis/resource.k8s.io/v1"

_log = logging.getLogger(__name__)


class TemplateStore(Component):
    """A cluster's templates, and a component that removes those out of use. It is always ready: leftovers are merely untidy.
    `clock` is monotonic, in seconds. Errors are those of `KubeClient`.
    """

    name = "sweeper"

    def __init__(self, connection: ApiConnection, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._noted: dict[tuple[str, str], float] = {}
        self._made: deque[float] = deque(maxlen=MOST_MADE)

    async def ensure(self, namespace: str, devices: Mapping[str, Any], request: str) -> str:
        """Make sure of the template of such claims, note its use, and return its name."""
        name = template_name(devices)
        began = self._clock()
        noted = began - self._noted.get((namespace, name), -NOTE_SECONDS) < NOTE_SECONDS
        path = f"{_GROUP}/namespaces/{namespace}/resourceclaimtemplates"
        made = claim_template(namespace, devices, request, timestamp(self._connection.now()))
        what = f"create claim template {namespace}/{name}"
        for _ in range(3):
            if self._many_made():
                answer = await self._connection.ask(what, "PUT", f"{path}/{name}", made)
                if answer.unless(404) is not None:
                    break
                raise KubernetesUnavailable(
                    f"cannot {what}: the limit of {MOST_MADE} new templates per minute is reached",
                    hint="try again in a minute; pods with the same request share one template",
                )
            # Asked even where it was there a moment ago: someone may have removed it, or its namespace.
            answer = await self._connection.ask(what, "POST", path, made)
            if answer.unless(409) is not None:
                self._made.append(self._clock())
                break
            if noted:
                return name
            # As a whole, not by a patch: the API server compares the config in a claim byte by byte, and a patch rewrites it.
            answer = await self._connection.ask(what, "PUT", f"{path}/{name}", made)
            if answer.unless(404) is not None:  # otherwise it was removed in between
                break
        else:
            raise KubernetesUnavailable(f"cannot {what}: another program keeps deleting it")
        if len(self._noted) >= _MOST_KNOWN:
            self._noted.clear()
        self._noted[namespace, name] = began
        return name

    async def request_of(self, namespace: str, name: str) -> str:
        """What the template of that name was made for, as options; "" if there is none."""
        path = f"{_GROUP}/namespaces/{namespace}/resourceclaimtemplates"
        found = await self._list(path, "claim templates", labelSelector=f"{TEMPLATE_LABEL}={name}")
        return next(
            (str(part(part(each, "metadata"), "annotations").get(REQUEST_ANNOTATION, "")) for each in found), ""
        )

    async def run(self) -> None:
        """Sweep until cancelled. Each replica does: what one has removed is gone for the others."""
        while True:
            await self._connection.sleep(_SWEEP_SECONDS * (0.5 + self._connection.random()))
            try:
                await self.sweep()
            except TrancheError as error:
                _log.warning("cannot delete unused templates", extra={"reason": error.reason, "error": error.message})

    def _many_made(self) -> bool:
        return len(self._made) == MOST_MADE and self._clock() - self._made[0] < MADE_SECONDS

    async def sweep(self, unused_for: timedelta = KEPT) -> int:
        """Remove templates that were unused for so long. Returns how many."""
        removed = 0
        path = f"{_GROUP}/resourceclaimtemplates"
        templates = await self._list(path, "claim templates", labelSelector=TEMPLATE_LABEL)
        unused = ((each, _unused_since(each, self._connection.now())) for each in templates)
        old = [each for each, since in unused if since is not None and since >= unused_for]
        if not old:
            return 0
        pods = await self._list("/api/v1/pods", "pods with claim templates", labelSelector=TEMPLATE_LABEL)
        needed = names_used(pods, await self._workloads())
        for each in old:
            meta = each["metadata"]
            key = (str(meta["namespace"]), str(meta["name"]))
            if key not in needed and await self._remove(*key, str(meta["resourceVersion"])):
                self._noted.pop(key, None)
                removed += 1
        return removed

    async def _remove(self, namespace: str, name: str, version: str) -> bool:
        path = f"{_GROUP}/namespaces/{namespace}/resourceclaimtemplates/{name}"
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version}}
        answer = await self._connection.ask(f"delete claim template {namespace}/{name}", "DELETE", path, body)
        if answer.unless(404, 409) is None:
            return False
        _log.info("deleted a claim template", extra={"namespace": namespace, "template": name})
        return True

    async def _workloads(self) -> list[Json]:
        """Kueue's, of everything that may wait in a queue for days before it has pods; none without Kueue."""
        try:
            return await self._list(f"{KUEUE}/workloads", "Kueue's workloads")
        except KubernetesNotFound:
            return []

    async def _list(self, path: str, what: str, **query: str) -> list[Json]:
        return [each async for each in listed(self._connection, what, path, **query)]


def _unused_since(template: Json, now: datetime) -> timedelta | None:
    """How long it has been unused; None if unreadable, so that it is kept."""
    text = ((template.get("metadata") or {}).get("annotations") or {}).get(USED_ANNOTATION, "")
    try:
        return now - datetime.fromisoformat(str(text))
    except (ValueError, TypeError):
        return None


def remove_templates(kubeconfig: str | None, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Remove the templates that no pod needs, and say how many. Does nothing on a cluster without claims.

    A caller without the right is told so, and nothing is removed. Raises KubeconfigInvalid when no API server is known, and the
    errors of `KubeClient`.
    """

    async def run() -> int:
        async with aclosing(ApiConnection(find_api_server(kubeconfig, environ))) as connection:
            # A template used a moment ago has its pod, or is not needed: its user goes as well.
            return await TemplateStore(connection).sweep(timedelta.min)

    try:
        removed = asyncio.run(run())
    except KubernetesNotFound:
        return
    except KubernetesForbidden as error:
        say(f"cannot delete claim templates: {error.message}")
        return
    if removed:
        say(f"deleted {removed} claim template{'s' if removed > 1 else ''}")
