"""The agent is killed at any moment while pods and commands share two GPUs: nothing is given twice, nothing is left at last.

A real agent, between an API server and a kubelet that stand in for a cluster's. A life has up to eight faults; there are half as
many lives as `TRANCHE_FAULT_CASES` brings to commands alone, in tests/local/test_random_faults.py. `TRANCHE_FAULT_SEED` is that
of the first.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.cli.test_agent import kubeconfig_in
from tests.kubernetes.device_plugin.kubelet import KubeletStandIn, until
from tests.kubernetes.fake_api_server import FakeApiServer, api_server
from tests.kubernetes.kubelet.test_pod_resources import answer_of
from tests.kubernetes.kubelet.test_pod_resources import kubelet as pod_resources
from tests.local.test_fractions import end_daemons, holders, later, tenant
from tests.local.test_random_faults import BUSY, FIRST_SEED, IN_ONE_LIFE, LIVES, REFUSED
from tests.machines import TRANCHE, TestMachine, machine_in
from tests.node.processes import isolated
from tests.node.test_mps_daemons import short
from tests.simulator.cuda_programs import PREAMBLE
from tranche.kubernetes.kubelet.proto.podresources_pb2 import ListPodResourcesResponse
from tranche.node.mps.mps_records import DaemonRecordStore
from tranche.node.state.session import StateFolder

__all__ = ["short"]  # a fixture
VGPU = "k8s.amazonaws.com/vgpu"
PODS = "/api/v1/namespaces/ns/pods"
SEVERAL = 3


@dataclass
class RunningPod:
    """A pod with one virtual GPU, and its program."""

    name: str
    device_id: str
    limit: int
    program: subprocess.Popen[str]


class NodeLife:
    """One node: its agent, its kubelet, what runs there, and who kills what."""

    def __init__(self, machine: TestMachine, server: FakeApiServer, folder: Path, seed: int) -> None:
        self.machine, self.server, self.folder = machine, server, folder
        self.random = random.Random(seed)
        self.kubelet = KubeletStandIn(folder / "plugins")
        self.listed = ListPodResourcesResponse()
        self.pods: dict[str, RunningPod] = {}
        self.agent: asyncio.subprocess.Process | None = None
        self.said: list[str] = []
        self.memory: dict[str, int] = {}
        self._count = 0

    async def start_agent(self) -> None:
        """A new agent, as a DaemonSet starts one; return when the kubelet knows its devices."""
        before = len(self.kubelet.registrations)
        await self.spawn_agent()
        await until(lambda: len(self.kubelet.registrations) > before and VGPU in self.kubelet.devices, "registered")

    async def spawn_agent(self) -> None:
        """A new agent, in its first moment."""
        parts = ("mig-manager", "feature-labels")
        with (self.folder / "agent.log").open("a") as log:
            self.agent = await asyncio.create_subprocess_exec(
                *TRANCHE,
                "agent",
                f"--kubeconfig={kubeconfig_in(self.folder, self.server.url)}",
                "--node-name=n1",
                "--namespace=tranche-system",
                "--health-port=0",
                "--metrics-port=0",
                "--refresh-seconds=0.3",
                "--vgpu=4",
                *(f"--without={part}" for part in parts),
                f"--kubelet-socket={self.kubelet.socket}",
                f"--cdi-folder={self.folder / 'cdi'}",
                f"--pod-resources-socket={self.folder / 'pods.sock'}",
                env=self.machine.environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    async def kill_agent(self) -> None:
        assert self.agent is not None
        with suppress(ProcessLookupError):
            self.agent.kill()
        await self.agent.wait()

    # Who comes and goes

    async def pod_comes(self) -> None:
        """The kubelet gives a pod a virtual GPU, and runs it, or turns it away."""
        held = {pod.device_id for pod in self.pods.values()}
        known = self.kubelet.devices.get(VGPU, {})
        free = [each for each, device in known.items() if device.health == "Healthy" and each not in held]
        if not free:
            return
        device_id = self.random.choice(sorted(free))
        self._count += 1
        name = f"pod-{self._count}"
        body = {"metadata": {"uid": f"uid-{name}", "namespace": "ns", "name": name}, "spec": {"nodeName": "n1"}}
        self.server.put(f"{PODS}/{name}", {**body, "status": {"phase": "Running"}})
        try:
            answer = await self.kubelet.allocate(VGPU, device_id)
        except (grpc.aio.AioRpcError, KeyError, asyncio.CancelledError):
            self.server.delete(f"{PODS}/{name}")
            return
        folders = {mount.container_path: mount.host_path for mount in answer.mounts}
        environment = {**self.machine.environment, **answer.envs}
        environment["CUDA_MPS_PIPE_DIRECTORY"] = folders[answer.envs["CUDA_MPS_PIPE_DIRECTORY"]]
        environment["LD_LIBRARY_PATH"] = self.machine.environment["LD_LIBRARY_PATH"]
        program = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + BUSY],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pods[name] = RunningPod(name, device_id, int(answer.envs["TRANCHE_GPU_MEMORY_LIMIT"]), program)
        self._list()
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline), self.said

    async def command_comes(self) -> None:
        """Somebody on the machine asks for a part too, and gets it or is refused."""
        memory = self.random.choice(["2G", "3G"])
        each = await asyncio.to_thread(tenant, self.machine, "--no-wait", "--gpu-memory", memory, code=BUSY)
        if await asyncio.to_thread(each.told_or_ended) is None:
            code, said = await asyncio.to_thread(each.ended)
            assert code in REFUSED, (code, said, self.said)

    async def pod_goes(self) -> None:
        for name in self.random.sample(sorted(self.pods), min(1, len(self.pods))):
            self.end_pod(name)

    def end_pod(self, name: str) -> None:
        pod = self.pods.pop(name)
        pod.program.kill()
        pod.program.communicate()
        self.server.delete(f"{PODS}/{name}")
        self._list()

    def _list(self) -> None:
        self.listed.CopyFrom(answer_of(*((pod.name, "main", VGPU, [pod.device_id]) for pod in self.pods.values())))

    # What goes wrong

    async def agent_dies(self) -> None:
        await self.kill_agent()
        await self.start_agent()

    async def agent_dies_as_it_gives(self) -> None:
        """At any instant of a hand-over; the kubelet turns the pod away then."""
        coming = asyncio.create_task(self.pod_comes())
        await asyncio.sleep(self.random.random() * 0.2)
        await self.kill_agent()
        await coming
        await self.start_agent()

    async def agent_dies_as_it_starts(self) -> None:
        await self.kill_agent()
        await self.spawn_agent()
        await asyncio.sleep(self.random.random())
        await self.agent_dies()

    async def daemon_dies(self) -> None:
        for record in DaemonRecordStore(StateFolder(self.machine.state_dir).mps).all():
            if record.pid:
                with suppress(ProcessLookupError):
                    os.kill(record.pid, signal.SIGKILL)

    async def command_dies(self) -> None:
        there = [each for each in await asyncio.to_thread(holders, self.machine) if each["pid"]]
        for holder in self.random.sample(there, min(1, len(there))):
            with suppress(ProcessLookupError):
                os.kill(holder["pid"], signal.SIGKILL)

    async def api_server_breaks(self) -> None:
        await self.server.break_connections()

    async def fault(self) -> None:
        agent = [
            self.agent_dies,
            self.agent_dies_as_it_gives,
            self.agent_dies_as_it_gives,
            self.agent_dies_as_it_starts,
        ]
        act = self.random.choice([*agent, self.daemon_dies, self.command_dies, self.api_server_breaks, self.pod_goes])
        self.said.append(act.__name__)
        await act()

    # What always holds

    async def check(self) -> None:
        """Whoever has more than he was given is said to; each pod's part is his, and a GPU has no more parts than memory."""
        used = {client.pid: client.memory for client in self.machine.machine.clients()}
        known = await asyncio.to_thread(holders, self.machine)
        given: dict[str, int] = {}
        for holder in known:
            for grant in holder["grants"]:
                given[grant["gpuUUID"]] = given.get(grant["gpuUUID"], 0) + grant["memoryBytes"]
        if not self.memory:  # what a GPU has stays the same
            found = await asyncio.to_thread(self.machine.json, "gpus")
            self.memory = {gpu["uuid"]: gpu["memoryBytes"] for gpu in found["gpus"]}
        assert all(amount <= self.memory[uuid] for uuid, amount in given.items()), (given, self.said)
        marked = {
            holder["keeper"]["name"] for holder in known if _unlimited(holder) and holder["keeper"]["kind"] == "pod"
        }
        for pod in self.pods.values():
            assert used.get(pod.program.pid, 0) <= pod.limit or pod.name in marked, (pod, self.said)

    async def end(self) -> None:
        """All go, also those who were never admitted, and nothing is left."""
        for name in list(self.pods):
            self.end_pod(name)
        for holder in await asyncio.to_thread(holders, self.machine):
            if holder["pid"]:
                with suppress(ProcessLookupError):
                    os.kill(holder["pid"], signal.SIGKILL)
        await asyncio.to_thread(self.machine.end_commands)
        async with asyncio.timeout(120):
            while await asyncio.to_thread(holders, self.machine):
                await asyncio.sleep(0.3)
        assert self.agent is not None
        self.agent.send_signal(signal.SIGTERM)
        assert await self.agent.wait() == 0
        later(self.machine)
        await asyncio.to_thread(self.machine.tranche, "gpus")
        modes = self.machine.smi("--query-gpu=compute_mode", "--format=csv,noheader").split()
        assert modes == ["Default"] * 2, self.said
        assert DaemonRecordStore(StateFolder(self.machine.state_dir).mps).all() == ()


def _unlimited(holder: dict[str, Any]) -> bool:
    return any(grant["isolation"] == "none" for grant in holder["grants"])


@isolated
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(1, LIVES // 2)))
def test_an_agent_that_is_killed_gives_nothing_twice_and_leaves_nothing(seed: int, short: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            machine = stack.enter_context(machine_in(short, "T4", "T4"))
            server = await stack.enter_async_context(api_server())
            server.put("/api/v1/nodes/n1", {"metadata": {"uid": "u1"}})
            life = NodeLife(machine, server, short, seed)
            await stack.enter_async_context(pod_resources(short / "pods.sock", life.listed))
            await life.kubelet.start()
            stack.push_async_callback(life.kubelet.stop)
            await life.start_agent()
            try:
                for _ in range(IN_ONE_LIFE):
                    for _ in range(life.random.randint(1, SEVERAL)):
                        await life.random.choice([life.pod_comes, life.pod_comes, life.command_comes])()
                        await life.check()
                    await life.fault()
                    await life.check()
                await life.end()
            except BaseException as error:
                error.add_note(f"seed {seed}: {' '.join(life.said)}")
                raise
            finally:
                await life.kill_agent()
                for pod in life.pods.values():
                    pod.program.kill()
                    pod.program.communicate()
                machine.end()
                end_daemons(machine)

    asyncio.run(run())
