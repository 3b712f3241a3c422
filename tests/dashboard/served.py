"""A real `tranche dashboard` on loopback, and a client that asks it over HTTP as browsers do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.dashboard import asking
from tests.dashboard.asking import Answered
from tests.machines import TestMachine
from tests.support import in_process


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
        return asking.ask(self.port, method, path, self.token if token else "", body, headers)

    def json(self, path: str) -> dict[str, Any]:
        return self.ask(path).json()

    def news(self) -> AbstractContextManager[Iterator[dict[str, Any]]]:
        """What the server says of changes, for as long as the block lasts."""
        return asking.news(self.port, "/live", self.token)


@dataclass(slots=True)
class Dashboards:
    """Starts servers of one machine, with a folder for the token."""

    machine: TestMachine
    _running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, port: int = 0, *options: str) -> ServedDashboard:
        environment = {**self.machine.environment, "XDG_STATE_HOME": str(self.machine.folder / "xdg")}
        process = in_process.start(["dashboard", "--port", str(port), *options], environment)
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
