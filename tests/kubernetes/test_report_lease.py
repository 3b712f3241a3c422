"""A lease that is kept says in the end what it shall, whatever becomes of lease, API server and agent meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import patiently, until
from tests.support.length import cases
from tranche.kubernetes.agent.node_reporter import NodeReporter
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.object_client import Lease, LeaseClient
from tranche.kubernetes.api.objects import KubeNode
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.latest_value import LatestValue
from tranche.kubernetes.node.services import NodeContext
from tranche.kubernetes.telling.told_view import NOT_MANAGED, REPORT, lease_name

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tranche/leases/tranche-report-n1"
NEVER = 1e9
_LOG = logging.getLogger("tranche.kubernetes.agent.node_reporter")


async def at_once() -> None:
    return


class HeldLeases(LeaseClient):
    """`written` is awaited between each write and its answer."""

    written: Callable[[], Awaitable[None]] = staticmethod(at_once)

    async def create(self, lease: Lease) -> Lease | None:
        answer = await super().create(lease)
        await self.written()
        return answer

    async def replace(self, lease: Lease, *, renew: bool = True) -> Lease | None:
        answer = await super().replace(lease, renew=renew)
        await self.written()
        return answer


class Agent(NodeReporter):
    """Says the latest of its words in a lease."""

    def __init__(
        self,
        server: FakeApiServer,
        connection: ApiConnection,
        *,
        renew: bool = False,
        every: float = NEVER,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.server = server
        self.words: LatestValue[str] = LatestValue()
        self.prompts: LatestValue[Any] = LatestValue()
        self.known = self.fresh = True
        self.complaints: list[str] = []
        self.begun = self.ended = self.lookings = 0
        self.now_is = 0.0
        self.leases = HeldLeases(connection, "tranche")
        services = SimpleNamespace(
            leases=self.leases,
            inventory=SimpleNamespace(latest=self.words, ready=lambda: Readiness(self.fresh)),
            node=self.words,
            backend=self.words,
            device_health=SimpleNamespace(faults=self.prompts),
            refused=self.prompts,
        )
        super().__init__(
            cast(NodeContext, services),
            NOT_MANAGED,
            self.prompts,
            LatestValue(),
            to_people=renew,
            clock=clock or (lambda: self.now_is),
            sleep=self._sleep,
        )
        self._every = every
        self._numbers = itertools.count()
        self._hears = logging.Handler()
        self._hears.emit = lambda record: self.complaints.append(vars(record)["error"])  # type: ignore[method-assign]
        self._running: asyncio.Task[None] | None = None

    async def _sleep(self, seconds: float) -> None:
        self.ended = self.begun
        await asyncio.sleep(0.001)

    def about(self) -> KubeNode | None:
        self.begun += 1
        return KubeNode("n1", "uid-n1", {}) if self.known else None

    def read(self, lease: Lease) -> Any:
        return lease.annotations.get("word")

    async def now(self, node: KubeNode, before: Any) -> Any:
        self.lookings += 1
        return self.words.value

    async def to_lease(self, node: KubeNode, said: Any, before: Lease | None, *, changed: bool) -> Lease:
        return Lease(lease_name(REPORT, "n1"), node.name, annotations={"word": said}, owner_node=(node.name, node.uid))

    def start(self) -> None:
        _LOG.addHandler(self._hears)
        self._running = asyncio.create_task(self.run())

    async def end(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        _LOG.removeHandler(self._hears)

    @property
    def said(self) -> str | None:
        lease: Mapping[str, Any] = self.server.objects.get(LEASE, {"metadata": {"annotations": {}}})
        word: str | None = lease["metadata"]["annotations"].get("word")
        return word

    def asked(self, method: str) -> int:
        return sum(seen.method == method for seen in self.server.requests)

    async def say(self, word: str) -> None:
        """Have it said, and wait until the lease says so and the agent knows it."""
        self.words.publish(word)
        await until(lambda: self.said == word and not self.trouble and self.ended == self.begun)

    async def look(self) -> None:
        """Have it look once more, though nothing is new, and wait until it has."""
        before = self.begun
        self.prompts.publish(next(self._numbers))
        await until(lambda: self.ended > before)

    def somebody_writes(self, word: str) -> None:
        before = self.server.objects.get(LEASE, {"metadata": {}})["metadata"]
        self.server.put(LEASE, {"metadata": {**before, "annotations": {"word": word}}, "spec": {}})


@asynccontextmanager
async def agents(**how: Any) -> AsyncIterator[Agent]:
    async with api_server() as server:
        connection = ApiConnection(ApiServer(server.url))
        agent = Agent(server, connection, **how)
        agent.start()
        try:
            yield agent
        finally:
            await agent.end()
            await connection.aclose()


def keeping(act: Callable[[Agent], Coroutine[Any, Any, None]], **how: Any) -> None:
    async def run() -> None:
        async with agents(**how) as agent:
            await patiently(act(agent))

    asyncio.run(run())


def test_each_word_is_written_once_and_one_that_the_lease_says_already_is_not() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        await agent.look()
        await agent.say("two")
        assert (agent.asked("GET"), agent.asked("POST"), agent.asked("PUT")) == (1, 1, 1)
        assert agent.server.objects[LEASE]["metadata"]["ownerReferences"][0]["uid"] == "uid-n1"
        await agent.end()
        agent.start()
        await agent.look()
        assert (agent.asked("GET"), agent.asked("POST"), agent.asked("PUT")) == (2, 1, 1)

    keeping(act)


def test_one_that_is_renewed_is_written_by_an_agent_that_starts_whatever_it_says() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        await agent.end()
        agent.start()
        await until(lambda: agent.asked("PUT") == 1)
        assert agent.said == "one"

    keeping(act, renew=True)


def test_while_what_is_said_is_not_of_now_news_is_written_and_the_lease_is_not_renewed() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        renewed = agent.server.objects[LEASE]["spec"]["renewTime"]
        agent.fresh = False
        agent.now_is = 60.0
        await agent.look()
        assert agent.asked("PUT") == 0
        await agent.say("two")
        assert agent.server.objects[LEASE]["spec"]["renewTime"] == renewed
        agent.fresh = True
        agent.now_is = 120.0
        await agent.look()
        assert agent.server.objects[LEASE]["spec"]["renewTime"] > renewed

    keeping(act, renew=True, every=60.0)


def test_after_somebody_elses_write_the_lease_is_read_anew_and_then_written() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        agent.somebody_writes("something else")
        await agent.say("two")
        assert (agent.asked("GET"), agent.asked("PUT")) == (2, 2), "refused, read, and written in the place of that"
        agent.server.delete(LEASE)
        await agent.say("three")
        assert agent.asked("POST") == 2
        assert agent.complaints == [], "nothing of it is a failure"

    keeping(act)


def test_when_two_make_the_lease_at_once_the_second_reads_what_the_first_has_said() -> None:
    async def act(agent: Agent) -> None:
        agent.server.failures.append((404, {"message": "there is none"}))
        agent.somebody_writes("something else")
        await agent.say("one")
        assert (agent.asked("POST"), agent.asked("PUT")) == (1, 1)

    keeping(act)


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_a_write_whose_answer_is_lost_is_found_done_and_not_made_twice(lost: int) -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        version = int(agent.server.objects[LEASE]["metadata"]["resourceVersion"])
        agent.server.lost = lost
        before = agent.ended
        agent.words.publish("two")
        await until(lambda: not agent.server.lost and agent.ended >= before + 2 and not agent.trouble)
        assert agent.said == "two"
        assert int(agent.server.objects[LEASE]["metadata"]["resourceVersion"]) == version + 1
        assert len(agent.complaints) == lost // 2, "one lost answer is asked for again without a word"

    keeping(act)


def test_while_the_api_server_is_down_it_is_said_once_and_afterwards_the_latest_word_is_written() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        await agent.server.stop()
        agent.words.publish("two")
        await until(lambda: agent.trouble != "")
        before = agent.ended
        agent.words.publish("three")
        await until(lambda: agent.ended > before + 2)
        assert agent.said == "one"
        write, read = agent.complaints
        assert (write[:13], read) == ("cannot update", agent.trouble), "tried again and again, and each said once"
        await agent.server.start()
        await agent.say("three")
        for word in ("four", "five"):
            agent.server.failures.append((500, {"message": "not now"}))
            await agent.say(word)
            await until(lambda: agent.trouble == "" and not agent.server.failures)
        await until(lambda: len(agent.complaints) == 4)  # one that comes again after it was over is said again

    keeping(act)


def test_a_word_that_changes_during_a_write_is_written_next() -> None:
    async def act(agent: Agent) -> None:
        seen: list[str | None] = []

        async def written() -> None:
            seen.append(agent.said)
            if len(seen) < 4:
                agent.words.publish(f"{len(seen)}")
                await asyncio.sleep(0.01)

        agent.leases.written = written
        agent.words.publish("0")
        await until(lambda: agent.said == "3")
        await agent.look()
        assert seen == ["0", "1", "2", "3"]
        agent.words.publish("4")
        await until(lambda: agent.said == "4")

    keeping(act)


def test_cancelled_during_a_write_it_leaves_nothing_running_and_the_next_one_begins_by_reading() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        held = asyncio.Event()

        async def for_ever() -> None:
            held.set()
            await asyncio.Event().wait()

        agent.leases.written = for_ever
        tasks = len(asyncio.all_tasks())
        agent.words.publish("two")
        await held.wait()
        await agent.end()
        await until(lambda: len(asyncio.all_tasks()) < tasks)
        assert agent.said == "two", "it stays"
        agent.leases.written = at_once
        agent.somebody_writes("something else")
        agent.start()
        await until(lambda: agent.said == "two")
        assert agent.complaints == []

    keeping(act)


def test_a_deleted_lease_comes_back_when_it_is_due_although_there_is_always_something_to_look_at() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        agent.server.delete(LEASE)
        for moment in (100.0, 200.0, 299.0):
            agent.now_is = moment
            await agent.look()
        assert agent.said is None
        agent.now_is = 300.0
        await agent.look()
        await until(lambda: agent.said == "one")

    keeping(act, every=300.0)


def test_one_that_is_renewed_is_written_when_it_is_due_without_being_read() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        agent.now_is = 59.0
        await agent.look()
        assert agent.asked("PUT") == 0
        agent.now_is = 60.0
        await agent.look()
        assert (agent.asked("GET"), agent.asked("PUT")) == (1, 1)
        agent.now_is = 119.0
        await agent.look()
        assert agent.asked("PUT") == 1, "from its last write on"
        agent.now_is = 120.0
        agent.server.delete(LEASE)
        await agent.look()
        await until(lambda: agent.said == "one")

    keeping(act, renew=True, every=60.0)


def test_it_is_renewed_without_any_news() -> None:
    async def act(agent: Agent) -> None:
        await agent.say("one")
        await until(lambda: agent.asked("PUT") > 2)

    keeping(act, renew=True, every=0.01, clock=time.monotonic)


def test_while_there_is_nothing_to_say_nothing_is_asked() -> None:
    async def act(agent: Agent) -> None:
        agent.known = False
        agent.words.publish("one")
        await until(lambda: not agent.trouble)
        assert agent.server.requests == []
        agent.known = True
        agent.prompts.publish(1)
        await until(lambda: agent.said == "one")

    keeping(act)


HAPPENINGS = ("word", "same", "foreign", "deleted", "fails", "lost", "down", "up", "killed", "looked")


@settings(max_examples=cases(60), deadline=None)
@given(
    happenings=st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 12)), max_size=14),
    renew=st.booleans(),
)
def test_whatever_happens_the_lease_says_the_last_word_in_the_end(
    happenings: list[tuple[str, int]], renew: bool
) -> None:
    """Each happening, and how many turns the event loop has afterwards."""

    async def act(agent: Agent) -> None:
        up = True
        agent.words.publish("word 0")
        for number, (what, turns) in enumerate(happenings, 1):
            if what == "word":
                agent.words.publish(f"word {number}")
            elif what == "same":
                agent.prompts.publish(number)
            elif what == "foreign":
                agent.somebody_writes(f"foreign {number}")
            elif what == "deleted" and LEASE in agent.server.objects:
                agent.server.delete(LEASE)
            elif what == "fails":
                agent.server.failures += [(500, {"message": "not now"})] * (1 + number % 3)
            elif what == "lost":
                agent.server.lost += 1 + number % 3
            elif what == "down" and up:
                await agent.server.stop()
                up = False
            elif what == "up" and not up:
                await agent.server.start()
                up = True
            elif what == "killed":
                await agent.end()
                agent.start()
            elif what == "looked" and up:
                await until(lambda: agent.trouble == "")
            for _ in range(turns):
                await asyncio.sleep(0)
        if not up:
            await agent.server.start()
        agent.words.publish("the last word")
        await until(lambda: agent.said == "the last word" and not agent.trouble)
        agent.server.failures.clear()
        agent.server.lost = 0
        before = agent.lookings
        await until(lambda: agent.lookings > before + 2)
        assert (agent.said, agent.trouble) == ("the last word", "")

    keeping(act, renew=renew, every=0.005, clock=time.monotonic)
