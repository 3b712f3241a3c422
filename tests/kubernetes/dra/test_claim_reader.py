"""Claims of a backlog are read over few connections."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kubernetes.fake_api_server import api_server
from tranche.kubernetes.api.connection import ApiConnection, ApiResponse
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.claims.claim import ClaimRef
from tranche.kubernetes.dra.driver import ClaimReader

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"


class CountingConnection(ApiConnection):
    """One that knows how many requests were under way at the same time at the most."""

    under_way = most = 0

    async def ask(self, *words: Any, **more: Any) -> ApiResponse:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await super().ask(*words, **more)
        finally:
            self.under_way -= 1


def test_a_backlog_of_claims_is_read_over_a_few_connections() -> None:
    async def test() -> None:
        async with api_server() as server:
            for number in range(56):
                server.put(f"{CLAIMS}/c{number}", {"metadata": {"uid": f"u{number}"}})
            connection = CountingConnection(ApiServer(server.url))
            reader = ClaimReader(connection)
            refs = [ClaimRef("team", f"c{number}", f"u{number}") for number in range(60)]
            found = await asyncio.gather(*map(reader.read, refs))
            await connection.aclose()
            assert [each and each.ref.uid for each in found] == [f"u{number}" for number in range(56)] + [None] * 4
            assert connection.most == 20

    asyncio.run(test())
