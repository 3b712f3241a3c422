"""A pod that waits at our gate in a cluster with claims is told once, and again only when it is another pod."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kubernetes.fake_api_server import api_server
from tests.kubernetes.waiting import patiently, until
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.gated.left_at_gate import StrandedPodWatch
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod

PODS = "/api/v1/namespaces/team/pods"


def pod(uid: str, gate: str = "tranche.dev/share") -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"name": gate}]}, "status": {"phase": "Pending"}}


def test_pods_at_the_gate_are_told_once_that_nobody_chooses_for_them() -> None:
    async def run() -> None:
        said: list[tuple[str, str, str]] = []
        looks = 0

        async def say(about: ClusterPod, reason: str, message: str) -> None:
            said.append((about.uid, reason, message))

        async def sleep(_: float) -> None:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0.001)

        async with api_server() as server:
            server.put(f"{PODS}/left", pod("u1"))
            server.put(f"{PODS}/other", pod("u2", "kueue"))
            server.refusals["GET", "/pods"] = (503, {"message": "not now"})
            connection = ApiConnection(ApiServer(server.url), sleep=sleep)
            running = asyncio.create_task(StrandedPodWatch(connection, say).run())
            await until(lambda: looks >= 2)
            server.refusals.clear()
            before = looks
            await until(lambda: looks >= before + 3)
            assert [(uid, reason) for uid, reason, _ in said] == [("u1", "WaitsForNobody")]
            assert "through claims, so no controller will choose one; delete the pod" in said[0][2]
            server.put(f"{PODS}/left", pod("u3"))
            await until(lambda: [uid for uid, _, _ in said] == ["u1", "u3"])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await connection.aclose()

    asyncio.run(patiently(run()))
