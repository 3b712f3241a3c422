"""Whoever shows no token takes neither the server's places nor its time, and writes nothing in its owner's log."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import signal
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import served_cluster_page
from tests.dashboard.cluster.test_cluster_server import wait_until
from tests.dashboard.served import ServedDashboard
from tests.kubernetes.fleet.clusters import node as node_object
from tranche.dashboard.connection_limit import ConnectionLimit, let_in
from tranche.dashboard.server import GuardedServer, guarded, guarded_config, listening

GARBAGE = (
    b"\x16\x03\x01\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\x00\r\n\r\n",
    b"GET /%ff HTTP/1.0\r\n\r\n",
)


def send_garbage(port: int, times: int) -> None:
    for _ in range(times):
        for content in GARBAGE:
            with socket.create_connection(("127.0.0.1", port)) as stranger, suppress(ConnectionError):
                stranger.sendall(content)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(65536):
                    pass


def test_garbage_is_not_written_to_a_pipe_that_nobody_reads(dashboard: ServedDashboard) -> None:
    assert dashboard.process.stderr is not None
    fcntl.fcntl(dashboard.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
    send_garbage(dashboard.port, 100)
    assert dashboard.ask("/").status == 200
    dashboard.process.send_signal(signal.SIGTERM)
    assert dashboard.process.wait(60) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert dashboard.process.stderr.read() == ""


def test_garbage_is_not_written_to_the_log_of_a_clusters_page() -> None:
    people = People({"t-olga": "olga"})
    people.let("olga", "list pods", "list nodes")
    with served_cluster_page(people) as page:
        assert page.process.stderr is not None
        fcntl.fcntl(page.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        send_garbage(page.port, 60)
        assert page.ask("/", "t-olga").status in (200, 503)
        page.process.send_signal(signal.SIGTERM)
        page.process.wait(60)
        assert "HTTP" not in page.process.stderr.read()


def test_silent_strangers_do_not_lock_the_owner_out(dashboard: ServedDashboard) -> None:
    with dashboard.news() as news, ExitStack() as strangers:
        next(news)
        for _ in range(400):
            strangers.enter_context(socket.create_connection(("127.0.0.1", dashboard.port)))
        assert dashboard.ask("/").status == 200
        assert next(news)["trouble"] == ""


def test_silent_strangers_do_not_lock_viewers_of_a_cluster_out() -> None:
    people = People({"t-olga": "olga"})
    people.let("olga", "list pods", "list nodes")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, hard))  # the server keeps a quarter of that
    try:
        with served_cluster_page(people) as page, ExitStack() as strangers:
            wait_until(page, lambda: page.ask("/", "t-olga").status == 200)
            with page.news("t-olga") as news:
                next(news)
                for _ in range(300):
                    strangers.enter_context(socket.create_connection(("127.0.0.1", page.port)))
                assert page.ask("/", "t-olga").status == 200
                page.api.change(lambda server: server.put("/api/v1/nodes/n1", gpu_node("n1")))
                wait_until(page, lambda: page.ask("/nodes/n1", "t-olga").status == 200)
                assert next(news)["trouble"] == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def gpu_node(name: str) -> dict[str, object]:
    return node_object(name, labels={"tranche.dev/gpu": "true"})


def status_of(port: int, *headers: str) -> int:
    """Of the answer to a request with these headers."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        lines = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", *headers, "", ""]
        client.sendall("\r\n".join(lines).encode())
        return int(client.makefile().readline().split()[1])


def test_a_request_that_says_twice_who_asks_is_refused_by_both_servers(dashboard: ServedDashboard) -> None:
    token = f"Authorization: Bearer {dashboard.token}"
    assert status_of(dashboard.port, token) == 200
    assert status_of(dashboard.port, token, "Authorization: Bearer x") == 400
    assert status_of(dashboard.port, token, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none") == 400
    people = People({"t-olga": "olga"})
    people.let("olga", "list pods", "list nodes")
    with served_cluster_page(people) as page:
        token, origin = "Authorization: Bearer t-olga", f"Origin: http://{page.host}"
        assert status_of(page.port, token, origin) != 400
        assert status_of(page.port, token, origin, origin) == 400
        assert status_of(page.port, token, "Cookie: a=b", "Cookie: c=d") == 400


def test_a_head_that_is_too_long_is_answered_and_its_connection_is_not_reset(dashboard: ServedDashboard) -> None:
    with socket.create_connection(("127.0.0.1", dashboard.port)) as client:
        sender = threading.Thread(target=client.sendall, args=(b"GET / HTTP/1.1\r\nX: " + b"a" * 4_000_000,))
        sender.start()
        answer = b""
        while piece := client.recv(65536):  # a reset would raise
            answer += piece
        sender.join(60)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert dashboard.ask("/").status == 200


@asynccontextmanager
async def served(most: int, seconds: float) -> AsyncIterator[int]:
    """A server whose pages at /own last, for whoever is let in, until he goes; the port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ("/own", "/once"):
            let_in(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] in ("/refused", "/once"):
            await send({"type": "http.response.body", "body": b"no"})
            return
        while True:
            await send({"type": "http.response.body", "body": b"word\n", "more_body": True})
            await asyncio.sleep(0.05)

    with listening("127.0.0.1", 0) as listener:
        config = guarded_config(app, most, lifespan="off")
        config.http = guarded(most, seconds=seconds)
        server = GuardedServer(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the server ended the connection."""
    content = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            content += piece
    return content


ASKED = b"GET /own HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /own HTTP/1.1\r\nHost:",
        b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nabc",
        b"GET /once HTTP/1.1\r\nHost: x\r\n\r\nGET /own HTTP/1.1\r\nHost:",
    ],
    ids=["nothing", "half a request", "half a body", "half of the next request"],
)
def test_without_a_whole_request_a_connection_ends_and_an_open_page_goes_on(sent: bytes) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while sent:
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.05)

    async def scene() -> None:
        async with asyncio.timeout(60), served(5, 0.5) as port:
            page, asking = await asyncio.open_connection("127.0.0.1", port)
            asking.write(ASKED)
            await page.readuntil(b"word")
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                dripping = asyncio.create_task(drip(writer))
                await ended(reader)
                dripping.cancel()
                writer.close()
                await page.readuntil(b"word")
            asking.close()

    asyncio.run(scene())


def test_strangers_push_one_another_out_and_not_whoever_was_let_in() -> None:
    async def scene() -> None:
        async with asyncio.timeout(60), served(3, 600) as port:
            page, asking = await asyncio.open_connection("127.0.0.1", port)
            asking.write(ASKED)
            await page.readuntil(b"word")
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            for reader, _ in strangers[:8]:
                assert await ended(reader) == b""
            for _, writer in strangers[8:]:
                writer.write(b"GET /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            for reader, _ in strangers[8:]:
                assert (await ended(reader)).endswith(b"no\r\n0\r\n\r\n")
            # One that asks, and does not take the answer, has no right to stay either.
            reader, stalled = await asyncio.open_connection("127.0.0.1", port)
            stalled.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"word")
            later = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await ended(reader)
            await page.readuntil(b"word")
            for _, writer in (*strangers, *later, (page, asking), (page, stalled)):
                writer.close()

    asyncio.run(scene())


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "ana", "eve"]), st.integers(0, 9))), st.integers(1, 4))
def test_the_doorway_gives_up_whoever_came_first_and_of_those_inside_only_whoever_has_most(
    acts: list[tuple[str, int]], most: int
) -> None:
    strangers: ConnectionLimit[int] = ConnectionLimit(most)
    waiting: list[int] = []
    inside: dict[int, str] = {}
    for act, connection in acts:
        if connection in waiting:
            waiting.remove(connection)
        inside.pop(connection, None)
        if act == "leave":
            strangers.leave(connection)
        elif act == "enter":
            gone = strangers.enter(connection, len(waiting) + len(inside) + 1)
            assert (gone is None) == (len(waiting) + len(inside) < most)
            if gone is not None and waiting:
                assert gone == waiting.pop(0)
            elif gone is not None:
                counted = Counter(inside.values())
                assert counted[inside.pop(gone)] == max(counted.values())
            waiting.append(connection)
        else:
            strangers.let_in(connection, act)
            inside[connection] = act
        assert [each for each in range(10) if each in strangers] == sorted(waiting)


def test_one_viewer_does_not_take_all_places_of_the_others() -> None:
    strangers: ConnectionLimit[int] = ConnectionLimit(3)
    strangers.let_in(1, "ana")
    for connection in (2, 3):
        strangers.let_in(connection, "eve")
    assert strangers.enter(4, 4) == 2
