"""The agent installs the cut at boot, and takes it away when its DaemonSet is deleted or asks for it no more."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kubernetes.agent.test_state_folder import agent
from tests.kubernetes.fake_api_server import api_server
from tests.kubernetes.waiting import patiently, until
from tests.machines import machine_in
from tranche.core.errors import PartitionInvalid, PermissionDenied
from tranche.kubernetes.agent.boot_unit import BootUnit
from tranche.kubernetes.agent.leaving import last_look_at
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.kubeconfig import ApiServer
from tranche.kubernetes.api.objects import DaemonSet
from tranche.kubernetes.serving.supervisor import Supervisor

SETS = "/apis/apps/v1/namespaces/tranche-system/daemonsets"
ASKING = ("tranche", "agent", "--boot-program=/usr/bin/tranche")


@dataclass(slots=True)
class NotedInstallation:
    """Notes what is asked of it; the first `refusals` installations fail."""

    refusals: int = 0
    done: list[str] = field(default_factory=list)

    def install(self) -> str:
        self.done.append("install")
        if len(self.done) <= self.refusals:
            raise PermissionDenied("cannot write /host/etc/default/mig")
        return "written"

    def remove(self) -> str:
        self.done.append("remove")
        if self.refusals:
            raise PermissionDenied("cannot remove it")
        return "removed"


@pytest.mark.parametrize(
    ("daemon_set", "removed"),
    [
        (DaemonSet("t", "a", arguments=ASKING), False),
        (DaemonSet("t", "a", arguments=ASKING, deleting=True), True),
        (DaemonSet("t", "a", arguments=("tranche", "agent", "--boot-partition=19")), True),
        (None, False),
    ],
)
def test_the_unit_goes_when_the_daemon_set_does_or_asks_no_more(daemon_set: DaemonSet | None, removed: bool) -> None:
    installation = NotedInstallation()
    BootUnit(installation).end(daemon_set)
    assert installation.done == (["remove"] if removed else [])


def test_a_unit_that_cannot_be_removed_does_not_keep_the_agent() -> None:
    installation = NotedInstallation(refusals=1)
    BootUnit(installation).end(DaemonSet("t", "a", deleting=True))
    assert installation.done == ["remove"]


def test_an_agent_that_cannot_install_the_unit_is_not_ready_says_why_and_tries_again() -> None:
    async def run() -> None:
        paused, go_on = asyncio.Event(), asyncio.Event()

        async def sleep(_: float) -> None:
            paused.set()
            await go_on.wait()

        installation = NotedInstallation(refusals=1)
        agent = Supervisor([BootUnit(installation)], clock=lambda: 0.0, sleep=sleep)
        running = asyncio.create_task(agent.run())
        await patiently(paused.wait())
        assert "/host/etc/default/mig" in agent.readiness()["boot-unit"].why
        go_on.set()
        await until(lambda: agent.readiness()["boot-unit"].ready)
        running.cancel()
        assert installation.done == ["install", "install"]

    asyncio.run(run())


def test_the_last_look_sees_what_the_daemon_sets_pods_are_started_with() -> None:
    async def run() -> None:
        async with api_server() as server:
            connection = ApiConnection(ApiServer(server.url))
            container = {"command": ["tranche", "agent"], "args": ["--boot-program=/usr/bin/tranche"]}
            server.put(f"{SETS}/agents", {"spec": {"template": {"spec": {"containers": [container]}}}})
            found = await patiently(last_look_at(connection, "tranche-system", "agents"))
            assert found is not None
            assert found.words == ASKING
            assert (found.has_option("--boot-program"), found.has_option("--boot")) == (True, False)
            await connection.aclose()

    asyncio.run(run())


def test_the_unit_of_a_real_agent_stays_through_an_upgrade_and_goes_when_it_is_switched_off(tmp_path: Path) -> None:
    root = tmp_path / "host"
    root.mkdir()
    unit = root / "etc" / "systemd" / "system" / "tranche-boot.service"
    asked = root / "etc" / "default" / "mig"
    options = ("--namespace=tranche-system", f"--host-root={root}", ASKING[-1], "--boot-partition=all-1g.5gb")

    async def run() -> None:
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            for arguments in (list(options), ["--verbose"]):
                container = {"name": "agent", "args": arguments}
                server.put(f"{SETS}/tranche-agent", {"spec": {"template": {"spec": {"containers": [container]}}}})
                async with agent(machine, server, *options) as one:
                    await one.until(lambda found: found.get("boot-unit") == "ready")
                    assert unit.stat().st_mode & 0o777 == 0o644
                    assert asked.stat().st_mode & 0o777 == 0o644
                    one.process.send_signal(signal.SIGTERM)
                    await patiently(one.process.wait())
                assert (unit.exists(), asked.exists()) == (
                    (True, True) if "--verbose" not in arguments else (False, False)
                )

    with machine_in(tmp_path, "A100-40GB") as machine:
        asyncio.run(run())


@pytest.mark.parametrize("wrong", ["--boot-program=tranche", "--boot-partition=7 slices"])
def test_a_word_that_the_unit_cannot_have_is_refused(tmp_path: Path, wrong: str) -> None:
    with machine_in(tmp_path, "A100-40GB") as machine:
        done = machine.tranche("agent", "--without=mig-manager", "--boot-program=/usr/bin/tranche", wrong, code=None)
    assert done.returncode in (2, PartitionInvalid.exit_code)
    assert "tranche is not an absolute path" in done.stderr or "'7 slices'" in done.stderr
