"""`tranche agent` as a process: what it refuses at the start, how it serves without a kubelet, how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.fake_api_server import api_server
from tests.kubernetes.waiting import patiently
from tests.machines import TRANCHE, TestMachine


def kubeconfig_in(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_without_a_way_to_an_api_server_it_ends_and_says_what_to_set(two_a100: TestMachine) -> None:
    done = two_a100.tranche("agent", code=44, KUBECONFIG="", KUBERNETES_SERVICE_HOST="")
    assert "KUBECONFIG" in done.stderr
    assert done.stdout == ""


def test_a_wish_of_nvidias_manager_that_is_not_served_is_refused_by_name(two_a100: TestMachine, tmp_path: Path) -> None:
    options = [
        f"--kubeconfig={kubeconfig_in(tmp_path, 'http://127.0.0.1:1')}",
        "--node-name=n1",
        "--health-port=0",
        "--metrics-port=0",
    ]
    done = two_a100.tranche("agent", *options, code=2, WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    assert "WITH_SHUTDOWN_HOST_GPU_CLIENTS is not supported" in done.stderr


def test_a_restart_of_the_machine_needs_the_hosts_root(two_a100: TestMachine, tmp_path: Path) -> None:
    options = [
        f"--kubeconfig={kubeconfig_in(tmp_path, 'http://127.0.0.1:1')}",
        "--health-port=0",
        "--metrics-port=0",
        "--with-reboot",
    ]
    done = two_a100.tranche("agent", *options, f"--host-root={tmp_path / 'none'}", code=2)
    assert "--with-reboot needs the host's root" in done.stderr
    assert "migManager.withReboot=true" in done.stderr


@pytest.mark.parametrize(
    ("holds", "mode", "words"),
    [(("dpkg", "dbus"), 0o755, "it contains dbus, dpkg"), ((), 0o1777, "all users can write to it")],
)
def test_a_folder_that_is_everybodys_stays_as_it_is(
    two_a100: TestMachine, tmp_path: Path, holds: tuple[str, ...], mode: int, words: str
) -> None:
    """The agent closes its state folder to others, which of /var/lib or /tmp would stop the machine."""
    folder = tmp_path / "var-lib"
    for name in ("", *holds):
        (folder / name).mkdir()
    folder.chmod(mode)
    options = [f"--kubeconfig={kubeconfig_in(tmp_path, 'http://127.0.0.1:1')}", "--health-port=0", "--metrics-port=0"]
    done = two_a100.tranche("agent", *options, code=60, TRANCHE_STATE_DIR=str(folder))
    assert words in done.stderr
    assert stat.S_IMODE(folder.stat().st_mode) == mode
    assert sorted(each.name for each in folder.iterdir()) == sorted(holds)


def test_a_taken_health_port_is_said(two_a100: TestMachine, tmp_path: Path) -> None:
    config = kubeconfig_in(tmp_path, "http://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = [f"--kubeconfig={config}", "--health-host=127.0.0.1", f"--health-port={port}"]
        done = two_a100.tranche("agent", *options, code=2)
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--health-port" in done.stderr


async def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
    head, _, body = (await patiently(reader.read())).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


def test_it_serves_without_a_kubelet_says_what_is_missing_and_ends_in_peace(
    two_a100: TestMachine, tmp_path: Path
) -> None:
    async def run() -> None:
        async with api_server() as server:
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            options = [
                f"--kubeconfig={kubeconfig_in(tmp_path, server.url)}",
                "--node-name=n1",
                "--health-port=0",
                "--metrics-port=0",
            ]
            options += ["--without=device-plugin", "--without=mig-manager", "--without=feature-labels"]
            agent = await asyncio.create_subprocess_exec(
                *TRANCHE,
                "agent",
                *options,
                f"--pod-resources-socket={tmp_path / 'none.sock'}",
                env=two_a100.environment,
                stderr=asyncio.subprocess.PIPE,
            )
            assert agent.stderr is not None
            try:
                serving = json.loads(await patiently(agent.stderr.readline()))
                assert (serving["message"], serving["node"]) == ("serving", "n1")
                port = serving["health_port"]
                assert await get(port, "/healthz") == (200, {"ok": True})
                async with asyncio.timeout(60):
                    while True:
                        status, body = await get(port, "/readyz")
                        components = body["components"]
                        if components.get("node-watch") == "ready" and "kubelet" in components.get("inventory", ""):
                            break
                        await asyncio.sleep(0.02)
                assert (status, body["ready"]) == (503, False)
            finally:
                agent.send_signal(signal.SIGTERM)
                said = (await patiently(agent.stderr.read())).decode()
                code = await patiently(agent.wait())
        assert code == 0
        lines = [json.loads(line) for line in said.splitlines()]
        assert "ending" in [line["message"] for line in lines]
        assert not [line for line in lines if "traceback" in line]

    asyncio.run(run())
