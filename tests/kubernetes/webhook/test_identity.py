"""The webhook's certificate: trusted before it serves, renewed in time, put back when somebody writes over it."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import patiently, until
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.serving.http_server import HttpResponse, HttpServer
from tranche.kubernetes.webhook.identity import WebhookIdentity, read_bundle, webhook_configurations

NAME = "tranche-agent-controller"
HOST = f"{NAME}.tranche-system.svc"
PATH = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{NAME}"
EMPTY = {"webhooks": [{"name": "pods.tranche.dev", "clientConfig": {"service": {"name": NAME}}}]}


class Steps:
    """Sleeps that end when the test says so, by their length; short ones of the informer end at once."""

    def __init__(self) -> None:
        self.waiting: dict[float, asyncio.Event] = {}

    async def sleep(self, seconds: float) -> None:
        event = self.waiting.setdefault(seconds, asyncio.Event())
        await event.wait()
        del self.waiting[seconds]

    async def end(self, condition: Callable[[float], bool]) -> None:
        await until(lambda: any(condition(each) for each in self.waiting))
        next(event for seconds, event in self.waiting.items() if condition(seconds)).set()


class Replica:
    def __init__(self, server: FakeApiServer, name: str) -> None:
        self.connection = ApiConnection(ApiServer(server.url))
        self.steps = Steps()
        self.now = datetime.now(UTC) - timedelta(days=4)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.identity = WebhookIdentity(
            webhook_configurations(self.connection),
            NAME,
            self.tls,
            name,
            [HOST],
            timedelta(days=7),
            now=lambda: self.now,
            sleep=self.steps.sleep,
        )
        self.pages = HttpServer(None, _echo, longest=1000)


async def _echo(path: str, body: bytes) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, path.encode() + b" " + body)


@asynccontextmanager
async def serving(server: FakeApiServer, name: str = "one") -> AsyncIterator[Replica]:
    replica = Replica(server, name)
    await replica.identity.prepare()
    await replica.pages.start("127.0.0.1", 0, option="--webhook-port", tls=replica.tls)
    work = asyncio.create_task(replica.identity.run())
    try:
        yield replica
    finally:
        replica.pages.stop()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        await replica.connection.aclose()


def bundle(server: FakeApiServer) -> str:
    webhooks: list[dict[str, Any]] = server.objects[PATH]["webhooks"]
    return base64.b64decode(webhooks[0]["clientConfig"].get("caBundle", "")).decode()


async def asked(replica: Replica, trusted: str, body: bytes = b"{}") -> tuple[str, bytes]:
    """The answer to a POST as the API server asks, and the certificate that it met; ssl.SSLError where it does not trust it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusted)
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.pages.port, ssl=context, server_hostname=HOST)
    met = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(f"POST /pods?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return ssl.DER_cert_to_PEM_cert(met).strip(), answer


def run(check: Callable[[FakeApiServer], Any]) -> None:
    async def with_server() -> None:
        async with api_server() as server:
            await check(server)

    asyncio.run(patiently(with_server()))


def test_it_is_trusted_before_it_is_ready_and_renewed_before_it_ends() -> None:
    async def check(server: FakeApiServer) -> None:
        server.put(PATH, EMPTY)
        async with serving(server) as replica:
            await until(lambda: "CERTIFICATE" in bundle(server))
            assert not replica.identity.ready().ready
            await replica.steps.end(lambda seconds: seconds == 2.0)
            await until(lambda: replica.identity.ready().ready)
            first, answer = await asked(replica, bundle(server))
            assert answer.endswith(b"/pods {}")
            # Half of seven days later the next one is made. It serves only when it is trusted, and the first is trusted still.
            replica.now += timedelta(days=3.5)
            await replica.steps.end(lambda seconds: seconds > 300_000)
            await until(lambda: len(read_bundle(bundle(server))) == 2)
            assert (await asked(replica, bundle(server)))[0] == first
            await replica.steps.end(lambda seconds: seconds == 2.0)
            await until(lambda: any(seconds > 300_000 for seconds in replica.steps.waiting))
            second, _ = await asked(replica, bundle(server))
            assert second != first
            assert [each.pem for each in read_bundle(bundle(server))] == [first, second]
            # Of a replica no more than two are trusted, and none that has ended.
            replica.now += timedelta(days=3.6)
            await replica.steps.end(lambda seconds: seconds > 300_000)
            await until(lambda: first not in bundle(server))
            assert read_bundle(bundle(server))[0].pem == second

    run(check)


def test_what_somebody_writes_over_is_put_back_beside_theirs() -> None:
    async def check(server: FakeApiServer) -> None:
        server.put(PATH, EMPTY)
        async with serving(server, "one") as one, serving(server, "two") as two:
            await until(lambda: len(read_bundle(bundle(server))) == 2)
            for replica in (one, two):
                await replica.steps.end(lambda seconds: seconds == 2.0)
                await until(lambda replica=replica: replica.identity.ready().ready)  # type: ignore[misc]
            made = {"creationTimestamp": server.objects[PATH]["metadata"]["creationTimestamp"]}
            server.put(PATH, {**EMPTY, "metadata": {**made, "labels": {"of": "an upgrade"}}})
            await until(lambda: {each.name for each in read_bundle(bundle(server))} == {"one", "two"})
            assert server.objects[PATH]["metadata"]["labels"] == {"of": "an upgrade"}
            server.put(PATH, {"webhooks": [{"clientConfig": {"caBundle": "%%%"}}], "metadata": made})
            await until(lambda: {each.name for each in read_bundle(bundle(server))} == {"one", "two"})

    run(check)


def test_without_its_configuration_it_is_not_ready_and_says_so() -> None:
    async def check(server: FakeApiServer) -> None:
        async with serving(server) as replica:
            await until(lambda: "MutatingWebhookConfiguration" in replica.identity.ready().why)
            server.put(PATH, EMPTY)
            await replica.steps.end(lambda seconds: seconds == 2.0)
            await until(lambda: replica.identity.ready().ready)
            server.delete(PATH)
            await until(lambda: not replica.identity.ready().ready)

    run(check)


def test_the_port_answers_nobody_in_the_clear_and_no_longer_question_than_it_takes() -> None:
    async def check(server: FakeApiServer) -> None:
        server.put(PATH, EMPTY)
        async with serving(server) as replica:
            reader, writer = await asyncio.open_connection("127.0.0.1", replica.pages.port)
            writer.write(b"POST /pods HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            assert b"HTTP/1.1 200" not in await reader.read()
            writer.close()
            await until(lambda: "CERTIFICATE" in bundle(server))
            _, answer = await asked(replica, bundle(server), b"x" * 1001)
            assert answer.startswith(b"HTTP/1.1 413")

    run(check)
