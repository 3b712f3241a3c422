"""Lists the pods that still have GPUs by claims when the agents leave for good: no agent can take these back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import find_api_server
from tranche.kubernetes.api.reader import ClusterReader
from tranche.kubernetes.fleet.objects import FleetClaim, decode_fleet_claim

_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_NAMED = 20


def say_claims_left(kubeconfig: str | None, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Name the pods that cannot end until an agent runs again. Says nothing where the cluster has no claims.

    Raises KubeconfigInvalid when no API server is known, and KubernetesUnavailable when it does not answer.
    """

    async def read() -> tuple[ClusterReader, tuple[FleetClaim, ...] | None]:
        connection = ApiConnection(find_api_server(kubeconfig, environ))
        try:
            reader = ClusterReader(connection)
            return reader, await reader.decoded("claims", _CLAIMS, decode_fleet_claim)
        finally:
            await connection.close()

    reader, found = asyncio.run(read())
    if reader.unread:
        say("cannot tell which pods have GPUs through claims: this account may not read claims")
    if pods := pods_left(found or ()):
        more = f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
        say(
            f"{len(pods)} pods have GPUs through claims and keep running. If you delete one, it stays Terminating "
            f"until an agent runs on its node again: {', '.join(pods[:_NAMED])}{more}"
        )


def pods_left(claims: tuple[FleetClaim, ...]) -> tuple[str, ...]:
    """The pods of claims that have devices of Tranche's driver."""
    return tuple(sorted({f"{each.namespace}/{name}" for each in claims if each.given for name in each.pods}))
