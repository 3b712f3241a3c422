"""Many nodes roll out against one API server on loopback: within the budget, in order, through lost leaders and failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from tests.kubernetes import idle_clock
from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import until
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import LeaseClient
from tranche.kubernetes.api.objects import DaemonSet, KubeNode
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.rollout.leadership import LEADER_LEASE
from tranche.kubernetes.rollout.rollout import Rollout
from tranche.kubernetes.rollout.ticket import (
    GO_ON_ANNOTATION,
    LayoutChangeState,
    RolloutStatus,
    parse_budget,
    ticket_name,
)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/tranche/leases"
WANTED = RolloutStatus(LayoutChangeState.WANTED, "all-1g", "d1")
DONE = RolloutStatus(LayoutChangeState.DONE)
SPEED = 200.0  # how much faster these clocks go than the loop's, which goes on only while nothing is to be done


class Fleet:
    """Rollouts of several nodes, each with its own connection, and a clock that goes faster than the loop's."""

    def __init__(self, server: FakeApiServer, budget: str, nodes: int) -> None:
        self.server = server
        self.budget = parse_budget(budget)
        self.nodes = nodes
        self.most_changing = 0
        self.members: dict[str, tuple[Rollout, asyncio.Task[None]]] = {}
        self._connections: list[ApiConnection] = []

    def start(self, node: str) -> Rollout:
        loop = asyncio.get_running_loop()

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds / SPEED)

        connection = ApiConnection(ApiServer(self.server.url), sleep=lambda _: sleep(0.2))
        self._connections.append(connection)

        async def daemon_set(namespace: str, name: str) -> DaemonSet:
            return DaemonSet(namespace, name, desired=self.nodes)

        seen: LatestValue[KubeNode | None] = LatestValue()
        seen.publish(KubeNode(node, f"uid-of-{node}"))
        services = SimpleNamespace(
            api=SimpleNamespace(daemon_set=daemon_set),
            leases=LeaseClient(connection, "tranche"),
            namespace="tranche",
            node=seen,
            node_name=node,
        )
        rollout = Rollout(
            cast(NodeContext, services),
            self.budget,
            "agent",
            clock=lambda: loop.time() * SPEED,
            random=random.random,
            sleep=sleep,
        )
        self.members[node] = (rollout, asyncio.create_task(rollout.run()))
        return rollout

    async def kill(self, node: str) -> None:
        _, task = self.members.pop(node)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def states(self) -> dict[str, str]:
        """What the tickets say, by node."""
        found = {
            each["metadata"]["annotations"]["tranche.dev/node"]: each["spec"]["holderIdentity"]
            for path, each in self.server.objects.items()
            if "tranche-layout." in path
        }
        self.most_changing = max(self.most_changing, sum(state != "waiting" for state in found.values()))
        return found

    def leader(self) -> str:
        lease = self.server.objects.get(f"{LEASES}/{LEADER_LEASE}")
        return "" if lease is None else str(lease["spec"]["holderIdentity"])

    async def end(self) -> None:
        for node in list(self.members):
            await self.kill(node)
        for connection in self._connections:
            await connection.aclose()


@asynccontextmanager
async def fleet_of(nodes: int, budget: str) -> AsyncIterator[Fleet]:
    async with api_server() as server:
        fleet = Fleet(server, budget, nodes)
        for index in range(nodes):
            fleet.start(f"n{index}")
        try:
            yield fleet
        finally:
            await fleet.end()


def rolled_out(nodes: int, budget: str, test: Callable[[Fleet], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with fleet_of(nodes, budget) as fleet, asyncio.timeout(120):
            await test(fleet)

    idle_clock.run(run())


async def until_allowed(fleet: Fleet, node: str) -> None:
    def allowed() -> bool:
        fleet.states()
        return fleet.members[node][0].turn.value.allows("d1")

    await until(allowed)


async def change(fleet: Fleet, node: str) -> None:
    """One node's whole change."""
    rollout = fleet.members[node][0]
    rollout.wish(WANTED)
    await until_allowed(fleet, node)
    await asyncio.sleep(0.002)
    fleet.states()
    rollout.wish(DONE)
    await until(lambda: node not in fleet.states())


def test_every_node_has_its_turn_within_the_budget_and_nothing_is_left_behind() -> None:
    async def test(fleet: Fleet) -> None:
        await asyncio.gather(*(change(fleet, node) for node in fleet.members))
        assert 1 <= fleet.most_changing <= 3
        await until(lambda: not [path for path in fleet.server.objects if "/leases/" in path])

    rolled_out(12, "25%", test)


def test_one_node_alone_need_not_wait() -> None:
    async def test(fleet: Fleet) -> None:
        await change(fleet, "n0")
        assert len(fleet.server.requests) < 20

    rolled_out(1, "10%", test)


def test_a_leader_that_is_killed_is_replaced_and_the_budget_holds() -> None:
    async def test(fleet: Fleet) -> None:
        changes = {node: asyncio.create_task(change(fleet, node)) for node in fleet.members}
        daemon_set = asyncio.create_task(start_again(fleet, changes))
        victims = [""]
        for _ in range(3):
            await until(lambda: fleet.leader() not in ("", victims[-1]))
            victims.append(fleet.leader())
            changes[victims[-1]].cancel()
            await fleet.kill(victims[-1])
        await until(lambda: all(changes[node].done() for node in fleet.members))
        daemon_set.cancel()
        await asyncio.gather(*(changes[node] for node in fleet.members))
        assert fleet.most_changing <= 2

    rolled_out(10, "2", test)


async def start_again(fleet: Fleet, changes: dict[str, asyncio.Task[None]]) -> None:
    """What a DaemonSet does, for whoever is killed and has a place, be it given only afterwards; once somebody else leads."""
    while True:
        for node, state in fleet.states().items():
            if node not in fleet.members and state != "waiting" and fleet.leader() != node:
                fleet.start(node)
                changes[node] = asyncio.create_task(change(fleet, node))
        await asyncio.sleep(0.001)


def test_a_failed_node_stops_the_others_by_name_until_somebody_says_go_on() -> None:
    async def test(fleet: Fleet) -> None:
        first, second = fleet.members["n0"][0], fleet.members["n1"][0]
        first.wish(WANTED)
        await until_allowed(fleet, "n0")
        first.wish(RolloutStatus(LayoutChangeState.FAILED, "all-1g", "d1", "GPU 3 is lost"))
        await until(lambda: fleet.states() == {"n0": "failed"})
        second.wish(WANTED)
        await until(lambda: second.turn.value.why_not == "the rollout is held up: node n0 failed: GPU 3 is lost")
        assert fleet.states() == {"n0": "failed", "n1": "waiting"}
        path = f"{LEASES}/{ticket_name('n0')}"
        held_up = fleet.server.objects[path]
        held_up["metadata"]["annotations"][GO_ON_ANNOTATION] = "yes"
        fleet.server.put(path, held_up)
        await until_allowed(fleet, "n1")
        assert fleet.states() == {"n0": "failed", "n1": "changing"}

    rolled_out(2, "1", test)


def test_a_failed_node_that_succeeds_later_lets_the_others_go_on() -> None:
    async def test(fleet: Fleet) -> None:
        first, second = fleet.members["n0"][0], fleet.members["n1"][0]
        first.wish(WANTED)
        await until_allowed(fleet, "n0")
        first.wish(RolloutStatus(LayoutChangeState.FAILED, "all-1g", "d1", "GPU 3 is lost"))
        second.wish(WANTED)
        await until(lambda: fleet.states() == {"n0": "failed", "n1": "waiting"})
        first.wish(DONE)
        await until_allowed(fleet, "n1")

    rolled_out(2, "1", test)


def test_nobody_begins_while_the_budget_is_zero() -> None:
    async def test(fleet: Fleet) -> None:
        rollout = fleet.members["n0"][0]
        rollout.wish(WANTED)
        await until(lambda: fleet.states() == {"n0": "waiting"} and fleet.leader() == "n0")
        assert not rollout.turn.value.allows("d1")
        assert rollout.turn.value.why_not == "the rollout is paused: no node may start a change"
        rollout.wish(DONE)
        await until(lambda: not fleet.states())

    rolled_out(1, "0", test)


def test_where_all_may_change_at_once_nobody_waits_for_others_nor_says_so() -> None:
    """However few nodes the DaemonSet counts yet: these have joined since."""

    async def test(fleet: Fleet) -> None:
        fleet.nodes = 1
        said: dict[str, set[str]] = {node: set() for node in fleet.members}

        async def listen(node: str, rollout: Rollout) -> None:
            async for turn in rollout.turn.changes():
                if not turn.allows("d1"):
                    said[node].add(turn.why_not)

        listening = [asyncio.create_task(listen(node, rollout)) for node, (rollout, _) in fleet.members.items()]
        for rollout, _ in fleet.members.values():
            rollout.wish(WANTED)
        await until(lambda: all(rollout.turn.value.allows("d1") for rollout, _ in fleet.members.values()))
        for task in listening:
            task.cancel()
        assert not [each for node in said.values() for each in node if "at most" in each]

    rolled_out(4, "100%", test)


def test_nodes_that_joined_since_the_daemon_set_was_counted_count_for_the_budget() -> None:
    async def test(fleet: Fleet) -> None:
        fleet.nodes = 1
        for rollout, _ in fleet.members.values():
            rollout.wish(WANTED)
        await until(lambda: list(fleet.states().values()).count("changing") == 2)

    rolled_out(4, "50%", test)


def test_who_waits_names_the_node_that_changes_once_a_leader_has_said_so() -> None:
    async def test(fleet: Fleet) -> None:
        first, second = fleet.members["n0"][0], fleet.members["n1"][0]
        first.wish(WANTED)
        await until_allowed(fleet, "n0")
        assert "at most" not in second.turn.value.why_not
        second.wish(WANTED)
        said = "at most 1 of the nodes may change at once; node n0 may change now"
        await until(lambda: second.turn.value.why_not == said)

    rolled_out(2, "1", test)


def test_an_agent_that_starts_again_keeps_its_turn() -> None:
    async def test(fleet: Fleet) -> None:
        fleet.members["n0"][0].wish(WANTED)
        await until_allowed(fleet, "n0")
        await fleet.kill("n0")
        again = fleet.start("n0")
        await until(lambda: again.turn.value.allows("d1"))
        again.wish(DONE)
        await until(lambda: not fleet.states())

    rolled_out(1, "1", test)
