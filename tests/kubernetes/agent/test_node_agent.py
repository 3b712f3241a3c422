"""The host of components: restarts, readiness, health over HTTP, logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.kubernetes.waiting import patiently, until
from tranche.core.errors import HardwareError, UsageError
from tranche.kubernetes.component import Component, Readiness
from tranche.kubernetes.serving import logs
from tranche.kubernetes.serving.http_server import serve_health
from tranche.kubernetes.serving.supervisor import Supervisor

READY = Readiness(True)


@dataclass
class Part:
    """A component that does what it is told to."""

    name: str
    work: Callable[[], Awaitable[None]]
    state: Readiness = READY
    runs: int = 0

    async def run(self) -> None:
        self.runs += 1
        await self.work()

    def ready(self) -> Readiness:
        return self.state


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise HardwareError("broken")


async def crashing() -> None:
    raise ZeroDivisionError("oops")


async def failing_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(forever())
        group.create_task(failing())


async def ending() -> None:
    return


def hosted(components: list[Part], check: Callable[[Supervisor, list[float]], Awaitable[None]]) -> None:
    async def run() -> None:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0.001)

        host: list[Component] = [*components]
        agent = Supervisor(host, clock=lambda: 0.0, sleep=sleep)
        running = asyncio.create_task(agent.run())
        await patiently(check(agent, pauses))
        running.cancel()
        with suppress(asyncio.CancelledError):
            await patiently(running)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (failing, "broken"),
        (failing_in_a_group, "broken"),
        (crashing, "ZeroDivisionError: oops"),
        (ending, "it exited unexpectedly"),
    ],
)
def test_what_fails_is_started_again_after_growing_pauses_and_the_rest_runs_on(
    work: Callable[[], Awaitable[None]], why: str
) -> None:
    steady = Part("steady", forever)
    sick = Part("sick", work, Readiness(False, "has not begun"))

    async def check(agent: Supervisor, pauses: list[float]) -> None:
        await until(lambda: sick.runs > 7)
        assert pauses[:7] == [1, 2, 4, 8, 16, 30, 30]
        assert steady.runs == 1
        assert agent.readiness() == {"steady": Readiness(True), "sick": Readiness(False, why)}

    hosted([steady, sick], check)


def test_a_component_that_recovers_is_ready_again_and_an_old_failure_is_forgotten() -> None:
    sick = Part("sick", failing, Readiness(False, "waiting"))

    async def check(agent: Supervisor, pauses: list[float]) -> None:
        await until(lambda: sick.runs > 1)
        sick.work = forever
        await until(lambda: agent.readiness()["sick"].why == "broken")
        runs = sick.runs
        await until(lambda: sick.runs > runs)
        sick.state = Readiness(True)
        assert agent.readiness()["sick"].ready
        sick.state = Readiness(False, "waiting")
        assert agent.readiness()["sick"].why == "waiting"

    hosted([sick], check)


async def http(port: int, request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await patiently(reader.read())).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def test_health_and_readiness_over_http() -> None:
    async def run() -> None:
        state = {"inventory": Readiness(False, "no driver"), "node-watch": Readiness(True)}
        server = await serve_health("127.0.0.1", 0, lambda: state)
        assert await http(server.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == (200, '{"ok": true}')
        status, body = await http(server.port, b"GET /readyz?verbose HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == 503
        assert json.loads(body) == {
            "ready": False,
            "components": {"inventory": "no driver", "node-watch": "ready"},
        }
        state["inventory"] = Readiness(True)
        assert (await http(server.port, b"GET /readyz HTTP/1.1\r\n\r\n"))[0] == 200
        assert await http(server.port, b"HEAD /readyz HTTP/1.1\r\n\r\n") == (200, "")
        assert (await http(server.port, b"GET /other HTTP/1.1\r\n\r\n"))[0] == 404
        assert (await http(server.port, b"POST /healthz HTTP/1.1\r\n\r\n"))[0] == 405
        assert await http(server.port, b"nonsense\r\n\r\n") == (0, "")
        assert await http(server.port, b"x" * 100_000 + b"\r\n\r\n") == (0, "")
        assert (await http(server.port, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200, "it serves on after all of that"
        with pytest.raises(UsageError, match="cannot listen"):
            await serve_health("127.0.0.1", server.port, dict)
        server.stop()

    asyncio.run(run())


def test_every_address_is_served_on_one_port() -> None:
    async def run() -> None:
        server = await serve_health("", 0, dict)
        assert await http(server.port, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, '{"ok": true}')
        server.stop()

    asyncio.run(run())


def record(message: str, **extra: object) -> logging.LogRecord:
    logger = logging.Logger("tranche.test")
    return logger.makeRecord("tranche.test", logging.WARNING, "f.py", 1, message, (), None, extra=extra)


def test_a_json_line_has_a_constant_message_and_its_details_beside_it() -> None:
    line = json.loads(logs.JsonFormatter().format(record("cannot watch", gpu="GPU-a", pod=Readiness(True))))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "tranche.test",
        "message": "cannot watch",
        "gpu": "GPU-a",
        "pod": "Readiness(ready=True, why='')",
    }


def test_a_json_line_stays_one_line_with_a_traceback() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.Logger("tranche.test")
    logger.addHandler(handler)
    try:
        raise ValueError("a\nb")
    except ValueError:
        logger.exception("failed", extra={"component": "x"})
    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in json.loads(line)["traceback"]


def test_a_plain_line_is_for_people() -> None:
    text = logs.PlainFormatter().format(record("cannot watch", gpu="GPU-a"))
    assert text.endswith("warning cannot watch gpu='GPU-a'")
