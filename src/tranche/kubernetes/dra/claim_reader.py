"""ResourceClaims, asked of the API server one at a time: the kubelet names a claim, and its allocation is in the object alone."""

from __future__ import annotations

import asyncio

from tranche.core.errors import KubernetesNotFound
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.claims.claim import ClaimRef, KubeClaim, decode_claim

_VERSIONS = ("v1", "v1beta2", "v1beta1")
_AT_ONCE = 20
"""As many connections as are kept. With more, each request opens another, whose handshake takes longer than the answer; with
fewer, a backlog waits for an API server that is slow to answer.
"""
_NO_SUCH_API = "the server could not find the requested resource"


class ClaimReader:
    """Reads claims in the newest version of their API that the server has: v1 from Kubernetes 1.34 on."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._version = 0
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def read(self, ref: ClaimRef) -> KubeClaim | None:
        """The claim of that namespace and name, whatever its uid; None when there is none.

        KubernetesUnavailable when the server does not answer, and its siblings.
        """
        async with self._places:
            return await self._read(ref)

    async def _read(self, ref: ClaimRef) -> KubeClaim | None:
        while True:
            version = _VERSIONS[self._version]
            path = f"/apis/resource.k8s.io/{version}/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
            answer = await self._connection.ask(f"read {ref}", "GET", path)
            if answer.status == 404 and _NO_SUCH_API in answer.message and self._version + 1 < len(_VERSIONS):
                self._version += 1
                continue
            try:
                return decode_claim(answer.accepted())
            except KubernetesNotFound:
                return None
