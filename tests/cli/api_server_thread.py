"""The stand-in for an API server beside commands that run in processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.kubernetes.fake_api_server import FakeApiServer

KUBECONFIG = "kubeconfig"
"""The name of the file, in the folder of a server."""


@dataclass
class ServedApi:
    """A server on a thread of its own. `change` changes it there."""

    server: FakeApiServer
    loop: asyncio.AbstractEventLoop
    kubeconfig: Path

    def change(self, what: Callable[[FakeApiServer], None]) -> None:
        async def changed() -> None:
            what(self.server)

        asyncio.run_coroutine_threadsafe(changed(), self.loop).result(timeout=30)


@contextmanager
def served_api(folder: Path, namespace: str = "team-a") -> Iterator[ServedApi]:
    """A server and a kubeconfig that leads to it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = FakeApiServer()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(timeout=30)
        kubeconfig = folder / KUBECONFIG
        content = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": namespace}}],
            "clusters": [{"name": "k", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(content))
        yield ServedApi(server, loop, kubeconfig)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(timeout=30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=30)
        loop.close()
