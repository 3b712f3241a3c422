"""The news of a cluster: nobody's queue grows, whoever comes again goes on where he was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tranche.dashboard.cluster.live import ClusterPublisher, ClusterUpdate
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode


def played(play: Callable[[ClusterPublisher], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await play(ClusterPublisher(pace=0.0))

    asyncio.run(run())


def of(number: int) -> SeenNode:
    return SeenNode(f"n{number}", seen=1.0)


def names(news: ClusterUpdate) -> list[str]:
    assert news.change is not None
    return [each.name for each in news.change.nodes]


def test_who_is_slow_hears_at_once_what_has_changed_meanwhile() -> None:
    async def play(live: ClusterPublisher) -> None:
        snapshot = ClusterSnapshot().after([of(0)], 1.0)
        live.take(snapshot)
        heard = live.news(live.version(snapshot))
        assert names(await anext(heard)) == []
        for number in range(1, 500):
            live.take(snapshot := snapshot.after([of(number)], 1.0))
        assert len(names(await anext(heard))) == 499
        live.take(snapshot.after([], 1.0, gone=["n7"]))
        last = await anext(heard)
        assert last.change is not None
        assert last.change.gone == ("n7",)

    played(play)


def test_who_comes_again_goes_on_where_he_was_and_of_another_run_begins_anew() -> None:
    async def play(live: ClusterPublisher) -> None:
        live.take(first := ClusterSnapshot().after([of(0), of(1)], 1.0))
        known = (await anext(live.news(""))).version
        live.take(first.after([of(2)], 1.0))
        assert names(await anext(live.news(known))) == ["n2"]
        for other in ("", "x", f"{'0' * 8}.1", known.replace(".", ".-"), f"{known}99", known.rpartition(".")[0] + ".²"):
            assert (await anext(live.news(other))).change is None

    played(play)


def test_trouble_is_news_and_so_is_its_end() -> None:
    async def play(live: ClusterPublisher) -> None:
        live.take(ClusterSnapshot().after([of(0)], 1.0))
        heard = live.news("")
        await anext(heard)
        live.take(None, "the API server does not answer")
        assert (await anext(heard)).trouble == "the API server does not answer"
        live.take(live.newest)
        assert (await anext(heard)).trouble == ""

    played(play)


def test_the_end_of_the_server_ends_what_is_listened_to() -> None:
    async def play(live: ClusterPublisher) -> None:
        waiting = asyncio.ensure_future(anext(live.news(""), None))
        await asyncio.sleep(0)
        live.end()
        assert await waiting is None

    played(play)
