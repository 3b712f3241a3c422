"""The news of a cluster: nobody's queue grows, whoever comes again goes on where he was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tranche.dashboard.cluster.nodes_page import change_of
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode
from tranche.dashboard.live import PageUpdate, Publisher


def played(play: Callable[[Publisher[ClusterSnapshot]], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await play(Publisher())

    asyncio.run(run())


def of(number: int) -> SeenNode:
    return SeenNode(f"n{number}", seen=1.0)


def names(news: PageUpdate[ClusterSnapshot]) -> list[str]:
    change = change_of(news)
    assert change is not None
    return [each.name for each in change.nodes]


def test_who_is_slow_hears_at_once_what_has_changed_meanwhile() -> None:
    async def play(live: Publisher[ClusterSnapshot]) -> None:
        snapshot = ClusterSnapshot().after([of(0)], 1.0)
        live.take(snapshot)
        heard = live.news(live.version(snapshot))
        assert names(await anext(heard)) == []
        for number in range(1, 500):
            live.take(snapshot := snapshot.after([of(number)], 1.0))
        assert len(names(await anext(heard))) == 499
        live.take(snapshot.after([], 1.0, gone=["n7"]))
        last = change_of(await anext(heard))
        assert last is not None
        assert last.gone == ("n7",)

    played(play)


def test_who_comes_again_goes_on_where_he_was_and_of_another_run_begins_anew() -> None:
    async def play(live: Publisher[ClusterSnapshot]) -> None:
        live.take(first := ClusterSnapshot().after([of(0), of(1)], 1.0))
        known = (await anext(live.news(""))).version
        live.take(first.after([of(2)], 1.0))
        assert names(await anext(live.news(known))) == ["n2"]
        for other in ("", "x", f"{'0' * 8}.1", known.replace(".", ".-"), f"{known}99", known.rpartition(".")[0] + ".²"):
            assert change_of(await anext(live.news(other))) is None

    played(play)


def test_trouble_is_news_and_so_is_its_end() -> None:
    async def play(live: Publisher[ClusterSnapshot]) -> None:
        live.take(ClusterSnapshot().after([of(0)], 1.0))
        heard = live.news("")
        await anext(heard)
        live.take(None, "the API server does not answer")
        assert (await anext(heard)).trouble == "the API server does not answer"
        live.take(live.newest)
        assert (await anext(heard)).trouble == ""

    played(play)


def test_the_end_of_the_server_ends_what_is_listened_to() -> None:
    async def play(live: Publisher[ClusterSnapshot]) -> None:
        waiting = asyncio.ensure_future(anext(live.news(""), None))
        await asyncio.sleep(0)
        live.end()
        assert await waiting is None

    played(play)
