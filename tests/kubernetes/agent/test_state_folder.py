"""One agent for each state folder: the second one serves nothing, says why, and takes over when the first has ended."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.test_agent import get, kubeconfig_in
from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.waiting import PATIENCE_SECONDS, patiently
from tests.machines import TRANCHE, TestMachine, machine_in, remove_under_writers


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


@dataclass
class RunningAgent:
    """One agent as a process."""

    process: asyncio.subprocess.Process
    port: int

    async def readiness(self) -> dict[str, str]:
        return dict((await get(self.port, "/readyz"))[1]["components"])

    async def until(self, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(found := await self.readiness()):
                await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def agent(machine: TestMachine, server: FakeApiServer, *more: str) -> AsyncIterator[RunningAgent]:
    options = [
        f"--kubeconfig={kubeconfig_in(machine.folder, server.url)}",
        "--node-name=n1",
        "--health-port=0",
        "--metrics-port=0",
    ]
    options += [f"--pod-resources-socket={machine.folder / 'none.sock'}"]
    options += ["--without=mig-manager", "--without=feature-labels", "--without=device-plugin"]
    process = await asyncio.create_subprocess_exec(
        *TRANCHE, "agent", *options, *more, env=machine.environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    reading = None
    try:
        serving = json.loads(await patiently(process.stderr.readline()))
        assert serving["message"] == "serving"
        reading = asyncio.create_task(process.stderr.read())
        yield RunningAgent(process, serving["health_port"])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_second_agent_serves_nothing_until_the_first_has_ended(machine: TestMachine, end: signal.Signals) -> None:
    async def run() -> None:
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            async with agent(machine, server) as first:
                await first.until(lambda found: found.get("state-folder") == "ready")
                async with agent(machine, server) as second:
                    found = await second.until(lambda found: "another agent" in found["state-folder"])
                    assert list(found) == ["state-folder"]
                    assert f"process {first.process.pid}" in found["state-folder"]
                    assert (await get(second.port, "/healthz"))[0] == 200
                    first.process.send_signal(end)
                    await patiently(first.process.wait())
                    await second.until(lambda found: found["state-folder"] == "ready" and "inventory" in found)

    asyncio.run(run())


def test_an_agent_that_stands_by_is_ready_and_takes_over(machine: TestMachine) -> None:
    async def run() -> None:
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            async with agent(machine, server, "--stand-by") as first:
                await first.until(lambda found: found.get("state-folder") == "ready")
                async with agent(machine, server, "--stand-by") as second:
                    await second.until(lambda found: "another agent" in found["state-folder"])
                    status, body = await get(second.port, "/readyz")
                    assert (status, list(body["components"])) == (200, ["state-folder"])
                    first.process.terminate()
                    await patiently(first.process.wait())
                    await second.until(lambda found: found["state-folder"] == "ready" and "inventory" in found)

    asyncio.run(run())


def test_nobody_else_reads_the_state_of_a_node(machine: TestMachine) -> None:
    async def run() -> None:
        machine.tranche("gpus")
        machine.state_dir.mkdir(exist_ok=True)
        machine.state_dir.chmod(0o755)
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            async with agent(machine, server) as only:
                await only.until(lambda found: found.get("state-folder") == "ready")
                assert machine.state_dir.stat().st_mode & 0o077 == 0
                assert (machine.state_dir / "locks" / "agent").stat().st_mode & 0o077 == 0

    asyncio.run(run())


def test_an_agent_whose_state_folder_is_deleted_ends_since_it_works_in_files_that_nobody_else_sees(
    machine: TestMachine,
) -> None:
    async def run() -> None:
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            async with agent(machine, server) as only:
                await only.until(lambda found: found.get("state-folder") == "ready")
                remove_under_writers(machine.state_dir)
                assert await patiently(only.process.wait()) != 0
            async with agent(machine, server) as again:
                await again.until(lambda found: found.get("state-folder") == "ready")

    asyncio.run(run())


def test_a_state_folder_that_cannot_be_written_makes_the_agent_unready(machine: TestMachine) -> None:
    async def run() -> None:
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            async with agent(machine, server) as only:
                await only.until(lambda found: found.get("state-folder") == "ready")
                probes = machine.state_dir / "locks" / ".probe"
                probes.mkdir()  # stands for a folder that takes no file: root may write in every other one
                await only.until(lambda found: "cannot be written" in found["state-folder"])
                probes.rmdir()
                await only.until(lambda found: found["state-folder"] == "ready")

    asyncio.run(run())
