"""What an agent of a test cluster says of itself: its health pages and its log."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping

from cluster.waiting import wait_for

_TIMEOUT_SECONDS = 10.0


class AgentHealth(ABC):
    """An agent that can be asked, wherever it runs."""

    __slots__ = ()

    @property
    @abstractmethod
    def health_address(self) -> str:
        """Address and port of its health pages; ConnectionError while they are not known."""

    @property
    @abstractmethod
    def log(self) -> str:
        """What it has logged since this start."""

    def health(self, path: str = "/readyz") -> tuple[int, Mapping[str, object]]:
        """Status and body of one of its health pages; OSError while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://{self.health_address}{path}", timeout=_TIMEOUT_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_until_ready(self) -> None:
        """Wait until every component does its work."""
        wait_for("the agent is ready", lambda: self.health()[0] == 200, explain=lambda: f"{self._last()}\n{self.log}")

    def wait_until_not_ready(self, component: str, why: str) -> None:
        """Wait until that component says such a reason."""

        def says() -> bool:
            status, body = self.health()
            components = body["components"]
            assert isinstance(components, dict)
            return status == 503 and why in components[component]

        wait_for(f"{component} says: {why}", says, explain=lambda: f"{self._last()}\n{self.log}")

    def _last(self) -> str:
        try:
            return str(self.health())
        except OSError as error:
            return str(error)
