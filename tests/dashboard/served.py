"""A real `tranche dashboard` on loopback, and a client that asks it over HTTP as browsers do."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

from tests.machines import TRANCHE, TestMachine

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(slots=True)
class ServedDashboard:
    """The server's process, where it is, and its token."""

    process: subprocess.Popen[str]
    port: int
    token: str

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(
        self, path: str, *, method: str = "GET", token: bool = True, body: str | None = None, **headers: str
    ) -> Answered:
        """The answer to one request; `token=False` leaves the token out. A header's `_` is `-`."""
        given = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if token:
            given["Authorization"] = f"Bearer {self.token}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        try:
            connection.request(method, path, body, headers=given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answered(answer.status, found, answer.read().decode(errors="replace"))
        finally:
            connection.close()

    def json(self, path: str) -> dict[str, Any]:
        answer = self.ask(path)
        assert answer.status == 200, answer.text
        document: dict[str, Any] = json.loads(answer.text)
        return document

    @contextmanager
    def news(self) -> Iterator[Iterator[dict[str, Any]]]:
        """What the server says of changes, for as long as the block lasts."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        connection.request("GET", "/live", headers={"Host": self.host, "Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")

        def lines() -> Iterator[dict[str, Any]]:
            while line := answer.readline().decode():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

        try:
            yield lines()
        finally:
            connection.close()


@dataclass(slots=True)
class Dashboards:
    """Starts servers of one machine, with a folder for the token."""

    machine: TestMachine
    _running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, port: int = 0, *options: str) -> ServedDashboard:
        process = subprocess.Popen(
            [*TRANCHE, "dashboard", "--port", str(port), *options],
            env={**self.machine.environment, "XDG_STATE_HOME": str(self.machine.folder / "xdg")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/enter\?token=(\S+)", line)
        assert found is not None, line + process.stderr.read()
        return ServedDashboard(process, int(found[1]), found[2])

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
