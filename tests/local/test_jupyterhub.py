"""The page about JupyterHub, with a real hub, its proxy and a notebook server. The hub's only user here is root."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
from release.progress import say_beside
from release.tool_environment import tool_environment

from tests.machines import TRANCHE, TestMachine, machine_in, needs_root, readable_folder, wait_until
from tests.support.page_commands import PYTHON, executed
from tranche_simulator.build import cache_directory

_ROOT = Path(__file__).parents[2]
EXECUTED = executed("docs/guides/jupyterhub.md")
"""The page's configuration, which JupyterHub reads as a program."""
_PROXY = "configurable-http-proxy@5.3.0"
_TOKEN = "0123456789abcdef0123456789abcdef"
_FOR_THE_TEST = """
SIZES["too large"] = ["--gpu-memory", "80G"]
LOGS = Path({folder!r}) / "logs"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/"
c.JupyterHub.hub_port = {hub}
c.JupyterHub.services = [{{"name": "test", "api_token": {token!r}, "admin": True}}]
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.Spawner.args = ["--allow-root"]
c.Spawner.environment = {environment!r}
"""


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses, each another: all are taken before one is free again."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


class _Hub:
    """A hub and one browser that is logged in."""

    def __init__(self, url: str) -> None:
        self._url, self._cookies = url, CookieJar()
        self._open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies)).open

    def _xsrf(self) -> str:
        return [each.value or "" for each in self._cookies if each.name == "_xsrf"][-1]

    def log_in(self) -> str:
        """Log in; the page on which the size is chosen."""
        self._open(f"{self._url}/hub/login").close()
        form = urllib.parse.urlencode({"username": "root", "password": "x", "_xsrf": self._xsrf()})
        with self._open(f"{self._url}/hub/login?next=/hub/spawn", form.encode()) as page:
            return str(page.read().decode())

    def choose(self, size: str) -> None:
        where = f"{self._url}/hub/spawn?_xsrf={urllib.parse.quote(self._xsrf())}"
        self._open(where, urllib.parse.urlencode({"size": size}).encode()).close()

    def progress(self) -> Iterator[dict[str, Any]]:
        """What the page shows while the server starts."""
        with self.ask("GET", "/users/root/server/progress", accept="text/event-stream") as lines:
            for line in lines:
                if line.startswith(b"data:"):
                    yield json.loads(line.removeprefix(b"data:"))

    def ask(self, method: str, path: str, accept: str = "application/json") -> Any:
        headers = {"Authorization": f"token {_TOKEN}", "Accept": accept}
        request = urllib.request.Request(f"{self._url}/hub/api{path}", headers=headers, method=method)
        return urllib.request.urlopen(request, timeout=120)

    def answers(self) -> bool:
        try:
            self.ask("GET", "/").close()
        except OSError:
            return False
        return True

    def server_version(self) -> str:
        with self._open(f"{self._url}/user/root/api") as answer:
            return str(json.load(answer)["version"])


@contextmanager
def _hub_on(machine: TestMachine) -> Iterator[_Hub]:
    programs = tool_environment(
        _ROOT / "requirements-hub.lock", cache_directory() / "hub-tools", "fetching JupyterHub, 110 MB", say_beside
    )
    modules = cache_directory() / "hub-proxy"
    if not (proxy := modules / "node_modules/.bin/configurable-http-proxy").exists():
        subprocess.run(["npm", "install", "--silent", "--prefix", str(modules), _PROXY], check=True, timeout=300)
    folder, ports = machine.folder / "hub", _free_ports(3)
    folder.mkdir()
    (folder / "tranche").write_text(f'#!/bin/sh\nexec {shlex.join(TRANCHE)} "$@"\n')
    (folder / "tranche").chmod(0o755)
    (configuration,) = EXECUTED
    path = os.pathsep.join((str(programs), str(folder), machine.environment["PATH"]))
    environment = {**machine.environment, "PATH": path, "HOME": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
    (folder / "jupyterhub_config.py").write_text(
        configuration.text.removeprefix(f"{PYTHON}\n").removesuffix("END")
        + _FOR_THE_TEST.format(
            folder=str(folder),
            port=ports[0],
            hub=ports[1],
            api=ports[2],
            token=_TOKEN,
            proxy=str(proxy),
            environment=environment,
        )
    )
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [programs / "jupyterhub"],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=said,
            text=True,
            start_new_session=True,
        )
    hub = _Hub(f"http://127.0.0.1:{ports[0]}")
    try:
        wait_until(hub.answers, process)
        yield hub
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _shown_until(hub: _Hub, over: Callable[[dict[str, Any]], bool]) -> str:
    shown = []
    for each in hub.progress():
        shown.append(each["message"])
        if over(each):
            break
    return "\n".join(shown)


@pytest.mark.long
@needs_root
@pytest.mark.skipif(shutil.which("npm") is None, reason="the hub's proxy comes from npm")
def test_a_server_waits_for_its_share_and_gives_it_back() -> None:
    # An MPS daemon's sockets need a short path, and pytest's own grows with the number of its processes.
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine, _hub_on(machine) as hub:
        assert "<option>8 GB of a GPU</option>" in hub.log_in()
        holder = machine.hold("--gpus", "1")
        hub.choose("8 GB of a GPU")
        shown = _shown_until(hub, lambda each: "waiting" in each["message"])
        assert "waiting, next in the queue: GPU 0: held whole by " in shown
        holder.process.terminate()
        shown = _shown_until(hub, lambda each: bool(each.get("ready")))
        assert "tranche: allocation " in shown
        assert hub.server_version()
        wait_until(lambda: len(machine.running()) == 1)
        share = machine.one_running()
        assert "jupyterhub-singleuser" in share["command"]
        environ = Path(f"/proc/{share['pid']}/environ").read_bytes().split(b"\0")
        assert f"TRANCHE_ALLOCATION={share['id']}".encode() in environ
        assert [each for each in environ if each.startswith(b"CUDA_VISIBLE_DEVICES=")]
        hub.ask("DELETE", "/users/root/server").close()
        wait_until(lambda: machine.running() == [])
        hub.choose("too large")
        shown = _shown_until(hub, lambda each: bool(each.get("failed")))
        assert "Spawn failed: error: " in shown
        assert "--gpu-memory 80G is more than any GPU on this machine has" in shown
