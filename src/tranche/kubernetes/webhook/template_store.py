"""The templates of claims that pods were given by annotations: made when one is needed, removed when none needs it any more.

Name and content go together, so it does not matter who makes one, nor how often. Each use is noted on the template every few
minutes. It is removed an hour after its last use, in the version that was seen unused; a use in between is a newer version.

Whoever reaches the webhook's port can ask as the API server asks. So no more than a hundred templates are made in a minute:
with the hour after which they go, nobody fills the cluster with them.

When the controller goes for good, what it has written goes too: the templates that no pod needs any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound, KubernetesUnavailable, TrancheError
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.decoding import Json, timestamp
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.webhook.injection import (
    TEMPLATE_LABEL,
    USED_ANNOTATION,
    claim_template,
    names_used,
    template_name,
)

NOTE_SECONDS = 300.0
"""For so long after a use was noted, others are not."""

KEPT = timedelta(hours=1)
MOST_MADE, MADE_SECONDS = 100, 60.0
"""So many are made at most in so many seconds. Those that are there already do not count."""
_MOST_KNOWN = 10_000
_PAGE = "500"
_GROUP = "/apis/resource.k8s.io/v1"

_log = logging.getLogger(__name__)


class TemplateStore:
    """A cluster's templates. `now` gives the time in UTC, `clock` is monotonic, in seconds. Errors are those of `KubeClient`."""

    def __init__(self, connection: ApiConnection, *, now: Callable[[], datetime], clock: Callable[[], float]) -> None:
        self._connection = connection
        self._now = now
        self._clock = clock
        self._noted: dict[tuple[str, str], float] = {}
        self._made: deque[float] = deque(maxlen=MOST_MADE)

    async def ensure(self, namespace: str, devices: Mapping[str, Any], request: str) -> str:
        """The name of the template of such claims, which is there and was used now."""
        name = template_name(devices)
        noted = self._noted.get((namespace, name))
        if noted is not None and self._clock() - noted < NOTE_SECONDS:
            return name
        began = self._clock()
        path = f"{_GROUP}/namespaces/{namespace}/resourceclaimtemplates"
        made = claim_template(namespace, devices, request, timestamp(self._now()))
        what = f"make the claim template {namespace}/{name}"
        for _ in range(3):
            self._refuse_too_many(what)
            answer = await self._connection.ask(what, "POST", path, made)
            if answer.status != 409:
                answer.accepted()
                self._made.append(self._clock())
                break
            # In whole, not by a patch: the API server compares the config in a claim byte by byte, and a patch writes it anew.
            answer = await self._connection.ask(what, "PUT", f"{path}/{name}", made)
            if answer.status != 404:  # else it was removed in between
                answer.accepted()
                break
        else:
            raise KubernetesUnavailable(f"cannot {what}: somebody removes it again and again")
        if len(self._noted) >= _MOST_KNOWN:
            self._noted.clear()
        self._noted[namespace, name] = began
        return name

    def _refuse_too_many(self, what: str) -> None:
        if len(self._made) == MOST_MADE and self._clock() - self._made[0] < MADE_SECONDS:
            raise KubernetesUnavailable(
                f"cannot {what}: {MOST_MADE} templates were made in the last minute",
                hint="pods that ask for the same share have one template; try again in a minute",
            )

    async def sweep(self, unused_for: timedelta = KEPT) -> int:
        """Remove what no pod needs and nobody has used for so long; how many were removed."""
        removed = 0
        templates = await self._list(f"{_GROUP}/resourceclaimtemplates", "claim templates")
        unused = ((each, _unused_since(each, self._now())) for each in templates)
        old = [each for each, since in unused if since is not None and since >= unused_for]
        if not old:
            return 0
        needed = names_used(await self._list("/api/v1/pods", "pods with claim templates"))
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
        answer = await self._connection.ask(f"remove the claim template {namespace}/{name}", "DELETE", path, body)
        if answer.status in (404, 409):
            return False
        answer.accepted()
        _log.info("claim template removed", extra={"namespace": namespace, "template": name})
        return True

    async def _list(self, path: str, what: str) -> list[Json]:
        found: list[Json] = []
        query = {"labelSelector": TEMPLATE_LABEL, "limit": _PAGE}
        while True:
            body = (await self._connection.ask(f"list {what}", "GET", path, query=query)).accepted()
            found += body.get("items") or ()
            following = (body.get("metadata") or {}).get("continue")
            if not following:
                return found
            query = {**query, "continue": str(following)}


def _unused_since(template: Json, now: datetime) -> timedelta | None:
    """For how long nobody has used it; None where that cannot be read, so that it is kept."""
    text = ((template.get("metadata") or {}).get("annotations") or {}).get(USED_ANNOTATION, "")
    try:
        return now - datetime.fromisoformat(str(text))
    except (ValueError, TypeError):
        return None


_SWEEP_SECONDS = 600.0


class TemplateCleanupTask:
    """Each replica sweeps: what one has removed is gone for the others. `random` gives numbers from 0 to 1."""

    name = "sweeper"

    def __init__(
        self,
        store: TemplateStore,
        *,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._random = random
        self._sleep = sleep

    def ready(self) -> Readiness:
        """Always: what is left lying is only untidy."""
        return Readiness(True)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self._sleep(_SWEEP_SECONDS * (0.5 + self._random()))
            try:
                await self._store.sweep()
            except TrancheError as error:
                _log.warning("templates not swept", extra={"reason": error.reason, "error": error.message})


def remove_templates(kubeconfig: str | None, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Remove the templates that no pod needs, and say how many. Nothing happens on a cluster that knows no claims.

    A caller who may not is told so, and nothing is removed. Raises KubeconfigInvalid when no API server is known, and what
    `KubeClient` says.
    """

    async def run() -> int:
        connection = ApiConnection(find_api_server(kubeconfig, environ))
        try:
            store = TemplateStore(connection, now=lambda: datetime.now(UTC), clock=time.monotonic)
            # One that was used a moment ago has its pod, or is not needed: whoever used it goes as well.
            return await store.sweep(timedelta.min)
        finally:
            await connection.close()

    try:
        removed = asyncio.run(run())
    except KubernetesNotFound:
        return
    except KubernetesForbidden as error:
        say(f"claim templates stay: {error.message}")
        return
    if removed:
        say(f"{removed} claim template{'s' if removed > 1 else ''} removed")
