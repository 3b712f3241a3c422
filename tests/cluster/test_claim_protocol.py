"""The kubelet's side of claims: its older API, and two agents of one node of which the older leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for
from cluster.workloads import FOREVER, log, pods_in

from tests.cluster.test_claim_defects import Planter
from tests.node.processes import isolated
from tranche.core.allocation import WholeGpu
from tranche.hardware.cdi import CdiDevice, CdiSpec, spec_file_name, write_spec
from tranche.hardware.nodes import ContainerEdits
from tranche.kubernetes.claims.claim import AllocatedDevice, ClaimRef
from tranche.kubernetes.claims.vocabulary import CDI_KIND, DRIVER
from tranche.kubernetes.dra.given import GivenDevice
from tranche.kubernetes.dra.plugin_server import PluginServer
from tranche.kubernetes.dra.preparer import ClaimPreparer
from tranche.kubernetes.dra.registration import PluginSocketFiles, RegistrationServer
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.share_edits import cdi_name

pytestmark = pytest.mark.cluster

SERVED_BY = f"echo $SERVED_BY; {FOREVER}"
_PATIENCE_SECONDS = 30.0


@dataclass
class Servant:
    """Gives each claim a variable that names the servant, and remembers what it was asked."""

    name: str
    node: Node
    given_back: list[str] = field(default_factory=list)

    async def prepare(self, ref: ClaimRef) -> tuple[GivenDevice, ...]:
        edits = ContainerEdits(environment=(("SERVED_BY", self.name),))
        spec = CdiSpec(CDI_KIND, (CdiDevice(cdi_name(ref.uid, 0), edits),), ContainerEdits(), ref.uid)
        write_spec(spec, self.node.paths.cdi)
        return (GivenDevice(AllocatedDevice("gpu", DRIVER, self.node.name, "gpu-0"), WholeGpu("GPU-0")),)

    async def unprepare(self, ref: ClaimRef) -> None:
        (self.node.paths.cdi / spec_file_name(CDI_KIND, ref.uid)).unlink(missing_ok=True)
        self.given_back.append(ref.name)


@contextmanager
def serving(node: Node, name: str) -> Iterator[Servant]:
    """A driver on the node's kubelet, registered."""
    servant, registered = Servant(name, node), LatestValue[bool]()
    sockets = PluginSocketFiles(node.paths.kubelet, name)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def now(work: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(_awaited(work), loop).result(_PATIENCE_SECONDS)

    server = PluginServer(sockets.plugin, node.name, cast(ClaimPreparer, servant), LatestValue(), now=lambda: 0.0)
    registration = RegistrationServer(sockets, server, registered)
    try:
        now(registration.start)
        wait_for(f"the kubelet has {name}", lambda: registered.synced and registered.value)
        yield servant
    finally:
        now(registration.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _awaited(work: Callable[[], object]) -> None:
    outcome = work()
    assert asyncio.iscoroutine(outcome)
    await outcome


@isolated
def test_the_older_api_and_two_agents_at_once_of_which_the_older_leaves(
    cluster: Cluster, p4d: Node, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planter = Planter(cluster, p4d, namespace, SERVED_BY)

    def served(name: str) -> str:
        planter.plant(name, "gpu-0")
        return str(wait_for(f"{name} runs", lambda: log(cluster, namespace, name).strip()))

    with ExitStack() as newer:
        with monkeypatch.context() as older, ExitStack() as leaving:
            older.setattr("tranche.kubernetes.dra.registration.SERVICES", ("v1beta1.DRAPlugin",))
            first = leaving.enter_context(serving(p4d, "first"))
            assert served("a") == "first"
            older.undo()
            second = newer.enter_context(serving(p4d, "second"))
            assert served("b") == "second", "the kubelet asks the one that registered last"
        assert served("c") == "second", "nothing was lost with the older one"
        planter.delete("a", "b", "c")
        wait_for("the pods are gone", lambda: not pods_in(cluster, namespace))
        wait_for("all was given back", lambda: sorted(second.given_back) == ["a", "b", "c"])
        assert not first.given_back
