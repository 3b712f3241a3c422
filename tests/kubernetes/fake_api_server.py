"""A small API server on a loopback socket: nodes, ConfigMaps, pods, events and leases, versions, watches, faults on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Json = dict[str, Any]

_TURNS_OF_A_NEW_CONNECTION = 6
"""More turns of the event loop than go by from a connection's being taken to its first line here."""


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Json


@dataclass
class FakeApiServer:
    """Objects by path. Everything a test may turn: `failures` are answers to the next requests, whatever they ask; `refusals`
    are answers to every request of that method to a path with that end. `lost` is how many of the next requests are carried out
    and not answered: their connection breaks. `pages` are texts by path, such as logs. `reviews` answer what is posted to a path,
    of which nothing is stored. Requests that are `silent` are never answered.
    """

    objects: dict[str, Json] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    failures: list[tuple[int, Json]] = field(default_factory=list)
    refusals: dict[tuple[str, str], tuple[int, Json]] = field(default_factory=dict)
    lost: int = 0
    close_after_answer: bool = False
    version: int = 100
    oldest_version: int = 0
    port: int = 0
    pages: dict[str, str] = field(default_factory=dict)
    reviews: dict[str, Callable[[Json], Json]] = field(default_factory=dict)
    silent: Callable[[Seen], bool] = lambda seen: False

    def __post_init__(self) -> None:
        self._history: list[tuple[int, str, str, Json]] = []
        self._grown = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._end_watches = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, path: str, content: Json) -> None:
        """Create or replace an object, as some other client would."""
        existed = path in self.objects
        self.version += 1
        namespace = path.partition("/namespaces/")[2].partition("/")[0]
        meta = {"name": path.rsplit("/", 1)[1], **({"namespace": namespace} if namespace else {})}
        meta |= {"creationTimestamp": f"{self.version:09}"} if not existed else {}
        meta |= content.get("metadata", {})
        self.objects[path] = {**content, "metadata": {**meta, "resourceVersion": str(self.version)}}
        self._remember("MODIFIED" if existed else "ADDED", path)

    def delete(self, path: str) -> None:
        self.version += 1
        self.objects[path]["metadata"]["resourceVersion"] = str(self.version)
        self._remember("DELETED", path)
        del self.objects[path]

    def compact(self) -> None:
        """Forget the history: a watch from an older version is told 410."""
        self.oldest_version = self.version

    def end_watches(self) -> None:
        """End every open watch in peace, as at the end of its timeoutSeconds."""
        self._end_watches.set()
        self._end_watches = asyncio.Event()

    def watches(self) -> list[Seen]:
        return [seen for seen in self.requests if "watch" in seen.query]

    def lists(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.method == "GET" and "watch" not in seen.query]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the socket and break every connection without a word."""
        assert self._server is not None
        # asyncio loses a connection that it has just taken when its server closes.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(_TURNS_OF_A_NEW_CONNECTION):
            await asyncio.sleep(0)
        self._server.close()
        await self.break_connections()
        await self._server.wait_closed()

    async def break_connections(self) -> None:
        tasks = list(self._connections)
        for task, writer in list(self._connections.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remember(self, what: str, path: str) -> None:
        self._history.append((self.version, what, path, json.loads(json.dumps(self.objects[path]))))
        self._grown.set()
        self._grown = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while seen := await _read_request(reader):
                self.requests.append(seen)
                if self.silent(seen):
                    await asyncio.Event().wait()
                if self.failures:
                    _answer(writer, *self.failures.pop(0))
                elif seen.path in self.pages:
                    _answer_text(writer, self.pages[seen.path])
                elif "watch" in seen.query:
                    await self._watch(seen, writer)
                elif self.lost:
                    self.lost -= 1
                    self._handle(seen)
                    writer.transport.abort()
                    break
                else:
                    _answer(writer, *self._handle(seen))
                await writer.drain()
                if self.close_after_answer:
                    break
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            del self._connections[task]
            writer.close()

    async def _watch(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        since = int(seen.query["resourceVersion"])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if since < self.oldest_version:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            _chunk(writer, {"type": "ERROR", "object": gone})
        else:
            end = self._end_watches
            while not end.is_set():
                grown = self._grown
                for version, what, path, content in self._history:
                    if version > since and _matches(seen, path, content):
                        since = version
                        _chunk(writer, {"type": what, "object": content})
                await writer.drain()
                waits = [asyncio.create_task(event.wait()) for event in (grown, end)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
        writer.write(b"0\r\n\r\n")

    def _handle(self, seen: Seen) -> tuple[int, Json]:
        for (method, end), (code, body) in self.refusals.items():
            if seen.method == method and seen.path.endswith(end):
                return code, body
        if seen.path.endswith("/eviction"):
            pod = seen.path.removesuffix("/eviction")
            if pod not in self.objects:
                return _status(404, f'pods "{pod.rsplit("/", 1)[1]}" not found')
            if seen.body["deleteOptions"]["preconditions"]["uid"] != self.objects[pod]["metadata"].get("uid"):
                return _status(409, "the UID in the precondition does not match the UID in record")
            self.delete(pod)
            return 201, {"kind": "Status", "status": "Success"}
        if seen.method == "POST" and seen.path in self.reviews:
            return 201, {**seen.body, "status": self.reviews[seen.path](seen.body)}
        if seen.method == "POST":
            path = f"{seen.path}/{seen.body['metadata']['name']}"
            if path in self.objects:
                return _status(409, "already exists")
            made = {**seen.body, "metadata": {"uid": f"uid-{self.version + 1}", **seen.body["metadata"]}}
            if "dryRun" in seen.query:
                return 201, made
            self.put(path, made)
            return 201, self.objects[path]
        path = seen.path.removesuffix("/status")
        if seen.method == "DELETE" and not _names_an_object(path):
            for key in [key for key, content in self.objects.items() if _matches(seen, key, content)]:
                self.delete(key)
            return 200, {"kind": "Status", "status": "Success"}
        if seen.method == "GET" and path not in self.objects and not _names_an_object(path):
            found = [content for key, content in sorted(self.objects.items()) if _matches(seen, key, content)]
            return 200, {"items": found, "metadata": {"resourceVersion": str(self.version)}}
        if path not in self.objects:
            return _status(404, f'"{path.rsplit("/", 1)[1]}" not found')
        if seen.method in ("PUT", "DELETE"):
            asked = seen.body.get("preconditions" if seen.method == "DELETE" else "metadata", {}).get("resourceVersion")
            if asked not in (None, self.objects[path]["metadata"]["resourceVersion"]):
                return _status(409, "the object has been modified")
            if seen.method == "DELETE":
                self.delete(path)
                return 200, {"kind": "Status", "status": "Success"}
            kept = {"creationTimestamp": self.objects[path]["metadata"]["creationTimestamp"]}
            self.put(path, {**seen.body, "metadata": {**kept, **seen.body["metadata"]}})
        if seen.method == "PATCH":
            strategic = "strategic" in seen.headers["content-type"]
            self.put(path, _patched(self.objects[path], seen.body, strategic=strategic))
        return 200, self.objects[path]


@asynccontextmanager
async def api_server() -> AsyncIterator[FakeApiServer]:
    server = FakeApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _names_an_object(path: str) -> bool:
    parts = path.strip("/").split("/")
    parts = parts[2 if parts[0] == "api" else 3 :]
    return bool(parts) and len(parts) == (4 if parts[0] == "namespaces" else 2)


def _matches(seen: Seen, path: str, content: Json) -> bool:
    kind = seen.path.rsplit("/", 1)[1]
    parent, name = path.rsplit("/", 1)
    selector = dict(each.split("=") for each in seen.query.get("fieldSelector", "").split(",") if each)
    spec = {f"spec.{key}": value for key, value in content.get("spec", {}).items()}
    event = {f"involvedObject.{key}": value for key, value in content.get("involvedObject", {}).items()}
    event |= {key: content.get(key) for key in ("reason", "type")} if event else {}
    return (
        parent.endswith(f"/{kind}")
        and parent.startswith(seen.path.removesuffix(kind))
        and selector.get("metadata.name", name) == name
        and all(spec.get(key) == value for key, value in selector.items() if key in ("spec.driver",))
        and all(event.get(key) == value for key, value in selector.items() if event and key != "source")
        and ("labelSelector" not in seen.query or _labelled(content, seen.query["labelSelector"]))
    )


def _labelled(content: Json, selector: str) -> bool:
    key, given, value = selector.partition("=")
    labels = content["metadata"].get("labels", {})
    return key in labels and (not given or bool(labels[key] == value))


def _patched(before: Any, patch: Any, *, strategic: bool) -> Any:
    if isinstance(patch, list) and strategic:
        by_type = {item["type"]: item for item in before or ()}
        merged = {**by_type, **{item["type"]: item for item in patch}}
        return [item for item in merged.values() if item.get("$patch") != "delete"]
    if not isinstance(patch, dict):
        return patch
    result = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _patched(result.get(key), value, strategic=strategic)
    return result


def _status(code: int, message: str, *causes: str) -> tuple[int, Json]:
    details = {"causes": [{"reason": cause} for cause in causes]}
    return code, {"kind": "Status", "code": code, "message": message, "details": details}


def _answer(writer: asyncio.StreamWriter, status: int, body: Json) -> None:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def _answer_text(writer: asyncio.StreamWriter, text: str) -> None:
    content = text.encode()
    writer.write(
        f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
    )


def _chunk(writer: asyncio.StreamWriter, line: Json) -> None:
    data = json.dumps(line).encode() + b"\n"
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    head = await reader.readline()
    if not head:
        return None
    method, target, _ = head.decode().split()
    headers = {}
    while line := (await reader.readline()).decode().strip():
        key, _, value = line.partition(":")
        headers[key.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    return Seen(method, parts.path, dict(parse_qsl(parts.query)), headers, json.loads(body) if body else {})
