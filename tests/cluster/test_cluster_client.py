"""The client of the test cluster's API server, against a server of its own."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cluster.client import ApiClient
from cluster.errors import NotFound
from cluster.pki import Pki

from tests.node.processes import in_child


class Server(http.server.ThreadingHTTPServer):
    """Answers with the number of the connection, and can end those that are open."""

    daemon_threads = False
    ending = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: list[socket.socket] = []

    def end(self) -> None:
        """Leave no thread: commands of later tests are forked only where there is none."""
        self.shutdown()
        for each in self.connections:
            with suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.request)
        self.number = len(self.server.connections)

    def do_GET(self) -> None:
        if self.server.ending:
            self.server.ending = False
            self.close_connection = True
            return
        self._answer(404 if self.path == "/none" else 200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201)

    def _answer(self, status: int) -> None:
        content = json.dumps({"connection": self.number, "message": "said"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *words: object) -> None:
        return


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.create_authority()
    made.issue_server("server", ["IP:127.0.0.1"])
    made.issue_client("admin", "admin")
    return made


@contextmanager
def serving(pki: Pki) -> Iterator[tuple[Server, ApiClient]]:
    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.certificate("server"), pki.key("server"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, ApiClient(f"https://127.0.0.1:{server.server_port}", pki, "admin")
    finally:
        server.end()
        thread.join()


def test_who_asks_again_and_again_keeps_one_connection(pki: Pki) -> None:
    with serving(pki) as (_, client):
        assert {client.get("/x")["connection"] for _ in range(5)} == {1}
        with pytest.raises(NotFound, match="said"):
            client.get("/none")
        assert client.get("/x")["connection"] == 1
        assert client.request("POST", "/x", {})["connection"] == 2, (
            "what changes something is sent once, over a new one"
        )
        assert client.get("/x")["connection"] == 1


def test_a_connection_that_was_ended_meanwhile_is_replaced(pki: Pki) -> None:
    with serving(pki) as (server, client):
        assert client.get("/x")["connection"] == 1
        server.ending = True
        assert client.get("/x")["connection"] == 2
        server.ending = True
    with pytest.raises(OSError, match="refused"):
        client.get("/x")


def test_another_process_has_connections_of_its_own(pki: Pki, tmp_path: Path) -> None:
    with serving(pki) as (_, client):
        assert client.get("/x")["connection"] == 1
        assert in_child(lambda: client.get("/x")["connection"]) == 2
        assert client.get("/x")["connection"] == 1
