"""Debian's Prometheus on loopback, with the rules of deploy/monitoring at a pace of tests."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from release.monitoring import MONITORING
from release.programs import debian_program

from tests.kubernetes.waiting import PATIENCE_SECONDS, patiently

_PACE = "200ms"

Result = list[tuple[Mapping[str, str], float]]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    port: int
    log: Path

    async def query(self, expression: str) -> Result:
        """The instant vector of an expression now."""
        data = await self._get("/api/v1/query?" + urlencode({"query": expression}))
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    async def until(self, expression: str, condition: Callable[[Result], bool] = bool) -> Result:
        """Its first result for which the condition holds; AssertionError with the last one after a minute."""
        found: Result = []
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition(found := await self.query(expression)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{expression} is {found}\n{self.log.read_text()[-2000:]}") from None
        return found

    async def fires(self, alert: str, **labels: str) -> None:
        """Wait until an alert with these labels fires."""
        selector = ", ".join(f'{name}="{value}"' for name, value in {"alertname": alert, **labels}.items())
        await self.until(f'ALERTS{{alertstate="firing", {selector}}}')

    async def _get(self, path: str) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n".encode())
        body = (await patiently(reader.read())).partition(b"\r\n\r\n")[2]
        writer.close()
        answer: dict[str, Any] = json.loads(body)
        assert answer["status"] == "success", answer
        return dict(answer["data"])


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, int]) -> AsyncIterator[Prometheus]:
    """Scrape ports of loopback, each under its own name as `instance`; alerts do not wait for their time."""
    folder.mkdir()
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    # As the chart's monitors have it: the labels of the agent's own pod, which those of a metric win over, also empty ones.
    own = {"namespace": "tranche-system", "pod": "agent", "container": "agent"}
    jobs = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name, **own}} for name, port in targets.items()]
    config = {
        "global": {"scrape_interval": _PACE, "scrape_timeout": _PACE, "evaluation_interval": _PACE},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "tranche-agents", "honor_labels": True, "static_configs": jobs}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(debian_program("prometheus", "usr/bin/prometheus")),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "log"
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=subprocess.STDOUT)
    running = Prometheus(port, log)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await _answers(port):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.02)
        yield running
    finally:
        process.kill()
        await process.wait()


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /-/ready HTTP/1.0\r\nHost: prometheus\r\n\r\n")
    first = await reader.readline()
    writer.close()
    return b" 200 " in first
