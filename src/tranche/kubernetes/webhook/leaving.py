"""Taking what the controller has written off a cluster for good: the templates of claims that no pod needs any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from tranche.core.errors import KubernetesForbidden, KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.webhook.template_store import TemplateStore


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
