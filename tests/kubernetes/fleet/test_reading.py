"""A fleet is read piece by piece, with the caller's rights, and is what its objects say together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.fleet.clusters import a100s, cluster, node, published
from tranche.core.errors import ClaimsUnavailable
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.claims.vocabulary import DRIVER
from tranche.kubernetes.fleet.devices import decode_fleet_slice
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.reading import read_fleet

GROUP = "/apis/resource.k8s.io/v1"
SLICES = [each for name in ("n1", "n2") for each in published(name, a100s(2))]
NODES = [node("n1", mode="mixed"), node("n2", mode="mixed")]


def read(prepare: Callable[[FakeApiServer], None]) -> Fleet:
    """The fleet of a server that has the slices and nodes, after `prepare`."""

    async def ask() -> Fleet:
        async with api_server() as server:
            for each in SLICES:
                server.put(f"{GROUP}/resourceslices/{each['metadata']['name']}", each)
            for each in NODES:
                server.put(f"/api/v1/nodes/{each['metadata']['name']}", each)
            prepare(server)
            connection = ApiConnection(ApiServer(server.url))
            try:
                return await read_fleet(connection, "team-a")
            finally:
                await connection.aclose()

    return asyncio.run(ask())


def in_pieces(server: FakeApiServer) -> None:
    """The slices in two pieces, of which the first begins in the middle of a pool."""
    for piece, more in ((SLICES[3:], "rest"), (SLICES[:3], "")):
        server.failures.append((200, {"items": piece, "metadata": {"continue": more}}))


@pytest.mark.parametrize("prepare", [lambda server: None, in_pieces])
def test_it_is_what_its_objects_say_together(prepare: Callable[[FakeApiServer], None]) -> None:
    def classed(server: FakeApiServer) -> None:
        server.put(f"{GROUP}/deviceclasses/gpu.tranche.dev", {"metadata": {"name": "gpu.tranche.dev"}})
        prepare(server)

    assert read(classed) == replace(cluster(NODES, SLICES), classes=frozenset({"gpu.tranche.dev"}))


def test_who_may_not_read_device_classes_is_told_everything_else() -> None:
    found = read(lambda server: server.refusals.update({("GET", "/deviceclasses"): (403, {"message": "no"})}))
    assert found.classes is None
    assert not found.unread


def test_what_may_not_be_read_is_said_and_a_cluster_without_claims_refused() -> None:
    def forbid(server: FakeApiServer) -> None:
        server.refusals["GET", "/nodes"] = (403, {"message": "no"})
        server.refusals["GET", "v1/resourceclaims"] = (403, {"message": "no"})

    found = read(forbid)
    assert found.nodes == ()
    assert found.pools.keys() == {"n1", "n2"}
    assert found.unread.keys() == {"nodes", "claims in all namespaces"}
    assert found.knows_claims_of("team-a")
    assert not found.knows_claims_of("team-b")
    with pytest.raises(ClaimsUnavailable):
        read(lambda server: server.refusals.update({("GET", "/resourceslices"): (404, {"message": "no"})}))
    assert gc.isenabled(), "the collector of cycles works on, also after an error"


def test_another_drivers_slice_is_no_pool_of_ours_and_its_devices_are_not_decoded() -> None:
    mine = next(each for each in SLICES if each["spec"].get("devices"))
    assert mine["spec"]["driver"] == DRIVER
    assert decode_fleet_slice(mine).devices
    assert decode_fleet_slice({**mine, "spec": {**mine["spec"], "driver": "gpu.example.com"}}).devices == ()
