"""The agent's small HTTP server: who opens many connections keeps nobody out, and takes no memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from tests.kubernetes.agent.measured_node import scrape
from tests.kubernetes.waiting import until
from tranche.kubernetes.serving.http_server import HttpAnswer, HttpServer


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
