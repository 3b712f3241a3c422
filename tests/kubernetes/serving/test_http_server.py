"""The agent's small HTTP server: who opens many connections keeps nobody out, and takes no memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from http import HTTPStatus

import pytest

from tests.kubernetes.agent.measured_node import scrape
from tests.kubernetes.waiting import until
from tranche.kubernetes.component import Readiness
from tranche.kubernetes.serving.http_server import HttpResponse, HttpServer, serve_health


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_an_answer_is_sent_at_once(host: str) -> None:
    waits: list[bool] = []

    async def answer(path: str, headers: Mapping[str, str]) -> HttpResponse:
        (writer,) = server._open
        waits.append(not writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return HttpResponse(HTTPStatus.OK)

    async def check() -> None:
        await server.start(host, 0, option="--port")
        await scrape(server.port)
        server.stop()

    server = HttpServer(answer)
    asyncio.run(asyncio.wait_for(check(), 30))
    assert waits == [False]


def test_of_too_many_connections_the_oldest_goes_and_the_next_request_is_answered() -> None:
    async def answer(path: str, headers: Mapping[str, str]) -> HttpResponse:
        return HttpResponse(HTTPStatus.OK, path.encode())

    async def check() -> None:
        server = HttpServer(answer)
        await server.start("127.0.0.1", 0, option="--port")
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        assert await scrape(server.port, path="/here") == (200, "/here")
        await until(lambda: sum(reader.at_eof() for reader, _ in silent) >= 200 - 63)
        assert not silent[-1][0].at_eof()
        for _, writer in silent:
            writer.close()
        server.stop()

    asyncio.run(asyncio.wait_for(check(), 30))


def silent_stranger(port: int) -> socket.socket:
    """Somebody who connects and says nothing; whether it succeeds he does not ask."""
    stranger = socket.socket()
    stranger.setblocking(False)
    with suppress(BlockingIOError):
        stranger.connect(("127.0.0.1", port))
    return stranger


def test_a_probe_among_many_silent_connections_that_come_with_it_is_answered() -> None:
    async def check() -> None:
        server = await serve_health("127.0.0.1", 0, lambda: {"part": Readiness(True)})
        with ExitStack() as strangers:
            # The server's event loop is this one, and has no turn until all are there.
            for _ in range(150):
                strangers.enter_context(silent_stranger(server.port))
            probe = strangers.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=0.5))
            probe.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
            for _ in range(150):
                strangers.enter_context(silent_stranger(server.port))
            probe.setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(probe, 1000)
            assert answer.startswith(b"HTTP/1.1 200 ")
        server.stop()

    asyncio.run(asyncio.wait_for(check(), 30))


def test_silent_connections_push_out_nobody_whose_answer_is_being_made() -> None:
    async def check() -> None:
        asked, enough = asyncio.Event(), asyncio.Event()

        async def answer(path: str, headers: Mapping[str, str]) -> HttpResponse:
            asked.set()
            await enough.wait()
            return HttpResponse(HTTPStatus.OK, b"made")

        server = HttpServer(answer, most=8)
        await server.start("127.0.0.1", 0, option="--port")
        asking = asyncio.create_task(scrape(server.port))
        await asked.wait()
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
        await until(lambda: sum(reader.at_eof() for reader, _ in silent) == 30 - 7)
        enough.set()
        assert await asking == (200, "made")
        for _, writer in silent:
            writer.close()
        server.stop()

    asyncio.run(asyncio.wait_for(check(), 30))


def test_of_too_many_whose_answers_are_being_made_the_oldest_goes() -> None:
    async def check() -> None:
        asked = 0

        async def answer(path: str, headers: Mapping[str, str]) -> HttpResponse:
            nonlocal asked
            asked += 1
            if path == "/long":
                await asyncio.Event().wait()
            return HttpResponse(HTTPStatus.OK)

        server = HttpServer(answer, most=3)
        await server.start("127.0.0.1", 0, option="--port")
        asking = []
        for number in range(1, 4):
            asking.append(await asyncio.open_connection("127.0.0.1", server.port))
            asking[-1][1].write(b"GET /long HTTP/1.1\r\n\r\n")
            await until(lambda number=number: asked == number)  # type: ignore[misc]
        assert (await scrape(server.port))[0] == 200
        assert await asking[0][0].read() == b""
        assert not any(reader.at_eof() for reader, _ in asking[1:])
        for _, writer in asking:
            writer.close()
        server.stop()

    asyncio.run(asyncio.wait_for(check(), 30))


def test_the_connection_of_one_who_takes_no_answer_is_closed_in_time() -> None:
    size = 32 * 1024**2

    async def answer(path: str, headers: Mapping[str, str]) -> HttpResponse:
        return HttpResponse(HTTPStatus.OK, bytes(size))

    async def check() -> None:
        server = HttpServer(answer, seconds=0.2)
        await server.start("127.0.0.1", 0, option="--port")
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.5) as idler:
            idler.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: bool(server._open))
            await until(lambda: not server._open)
            idler.setblocking(False)
            taken = 0
            with suppress(ConnectionError):
                while piece := await asyncio.get_running_loop().sock_recv(idler, 1024**2):
                    taken += len(piece)
            assert taken < size
        server.stop()

    asyncio.run(asyncio.wait_for(check(), 30))
