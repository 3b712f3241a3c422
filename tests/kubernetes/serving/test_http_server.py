"""The agent's small HTTP server: who opens many connections keeps nobody out, and takes no memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from http import HTTPStatus

import pytest

from tests.kubernetes.agent.measured_node import scrape
from tests.kubernetes.waiting import until
from tranche.kubernetes.serving.http_server import HttpAnswer, HttpServer


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_an_answer_is_sent_at_once(host: str) -> None:
    waits: list[bool] = []

    async def answer(path: str, headers: Mapping[str, str]) -> HttpAnswer:
        (writer,) = server._open
        waits.append(not writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return HttpAnswer(HTTPStatus.OK)

    async def check() -> None:
        await server.start(host, 0, option="--port")
        await scrape(server.port)
        server.stop()

    server = HttpServer(answer)
    asyncio.run(asyncio.wait_for(check(), 30))
    assert waits == [False]


def test_of_too_many_connections_the_oldest_goes_and_the_next_request_is_answered() -> None:
    async def answer(path: str, headers: Mapping[str, str]) -> HttpAnswer:
        return HttpAnswer(HTTPStatus.OK, path.encode())

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
