"""The agent on a node in 56 slices: how soon it is registered, how fast it answers Allocate, how much memory it has.

It is a process of the node, not a pod: the figures are the agent's own, without the kubelet's share of a pod's start.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import grpc
from cluster.agent_process import AgentProcess, agent_process_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.waiting import wait_for

from bench.report import Report
from tranche.kubernetes.device_plugin.server import API_VERSION
from tranche.kubernetes.kubelet.proto import deviceplugin_pb2 as pb

STARTS = 7
CALLS = 1000
MEMORY_GOAL_BYTES = 100_000_000
_TRANCHE = str(Path(sys.executable).with_name("tranche"))
_LAYOUT, _RESOURCE, _SLICES = "all-1g.5gb", "nvidia.com/mig-1g.5gb", 56
_WITHOUT_PARTS = ("--without=device-plugin", "--without=mig-manager", "--without=feature-labels")
_IMPORTS = (
    "import tranche.kubernetes.agent.process, tranche.kubernetes.mig_manager.manager, "
    "tranche.kubernetes.device_plugin.plugin"
)


def run(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node whose GPUs are not cut; they are in 56 slices afterwards."""
    node.run(_TRANCHE, "layout", "apply", "-c", _LAYOUT)
    with agent_process_on(cluster, node, "--mig-strategy=mixed") as agent:
        _starts(report, node, agent)
        before = _memory(agent)
        _allocations(report, node)
        after = _memory(agent)
    with agent_process_on(cluster, node, *_WITHOUT_PARTS) as bare:
        baseline = _memory(bare)
    report.section(
        "Resident memory of the agent",
        f"8 GPUs in {_SLICES} slices; megabytes of 1,000,000 bytes. Baseline: the agent without its three parts.",
    )
    measured = {"once ready": before, f"after {CALLS} Allocates": after, "baseline, once ready": baseline}
    rows = [[name, *(f"{each / 1e6:.1f}" for each in bytes_used)] for name, bytes_used in measured.items()]
    report.table(["", "now", "most so far"], rows)
    report.verdict(f"at most {MEMORY_GOAL_BYTES // 1_000_000} MB", after[1] <= MEMORY_GOAL_BYTES)


def _starts(report: Report, node: Node, agent: AgentProcess) -> None:
    report.section(
        "From the agent's start to its registration",
        f"{STARTS} starts, in seconds. Baseline: a new Python on the node that imports what the agent imports, and ends.",
    )
    registered, ready, imports = [], [], []
    for _ in range(STARTS):
        agent.unit.stop()
        imports.append(_seconds_of_process(node, [sys.executable, "-c", _IMPORTS]))
        begun = perf_counter()
        again = agent.start_again()
        wait_for("the kubelet listens", partial(_listens, again), period=0.01)
        registered.append(perf_counter() - begun)
        wait_for("the agent is ready", partial(_ready, again), period=0.01)
        ready.append(perf_counter() - begun)
    measured = {"the kubelet listens": registered, "everything ready": ready, "baseline: imports alone": imports}
    rows = [[name, *(f"{f(each):.2f}" for f in (median, min, max))] for name, each in measured.items()]
    report.table(["", "median", "least", "most"], rows)


def _allocations(report: Report, node: Node) -> None:
    report.section(
        "Answering Allocate",
        f"{CALLS} calls one after the other over the plugin's socket, each for one of {_SLICES} slices in turn; milliseconds.",
        "Baseline: the same of GetDevicePluginOptions, which has nothing to look up.",
    )
    socket = node.paths.device_plugins / f"tranche-{_RESOURCE.rpartition('/')[2]}.sock"
    uuids = re.findall(r"UUID: (MIG-[^)]+)\)", node.run("nvidia-smi", "-L"))
    assert len(uuids) == _SLICES
    requests = [
        pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[uuid])]) for uuid in uuids
    ]
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        allocate = _method(channel, "Allocate", pb.AllocateRequest, pb.AllocateResponse)
        options = _method(channel, "GetDevicePluginOptions", pb.Empty, pb.DevicePluginOptions)
        for uuid, request in zip(uuids, requests, strict=True):  # the right answer first; the connection is warm then
            (answer,) = allocate(request).container_responses
            assert uuid in answer.envs.values(), answer
        ours, theirs = [], []
        for number in range(CALLS):
            ours.append(_milliseconds(allocate, requests[number % _SLICES]))
            theirs.append(_milliseconds(options, pb.Empty()))
    rows = []
    for name, measured in {"Allocate": ours, "baseline": theirs}.items():
        percentiles = quantiles(measured, n=100)
        rows.append([name, *(f"{each:.2f}" for each in (percentiles[49], percentiles[98], max(measured)))])
    report.table(["", "p50", "p99", "most"], rows)


def _method(channel: grpc.Channel, name: str, request: Any, response: Any) -> Callable[[Any], Any]:
    method: Callable[[Any], Any] = channel.unary_unary(
        f"/{API_VERSION}.DevicePlugin/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    return method


def _seconds_of_process(node: Node, command: Sequence[str]) -> float:
    """Seconds of a process on the node, which gets the agent's share of the processor. How it ended is not known."""
    begun = perf_counter()
    unit = node.start_program("timed", command)
    wait_for(f"{command[0]} ends", lambda: unit.pid is None, period=0.01)
    return perf_counter() - begun


def _listens(agent: AgentProcess) -> bool:
    """Whether the agent has said that the kubelet listens to the slices."""
    return any('"kubelet connected"' in line and f'"{_RESOURCE}"' in line for line in agent.log.splitlines())


def _ready(agent: AgentProcess) -> bool:
    return agent.health()[0] == 200


def _milliseconds(call: Callable[[Any], object], request: object) -> float:
    begun = perf_counter()
    call(request)
    return 1000 * (perf_counter() - begun)


def _memory(agent: AgentProcess) -> tuple[int, int]:
    """Bytes of resident memory now, and at most since the start."""
    status = Path(f"/proc/{agent.pid}/status").read_text()
    now, most = (re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE) for field in ("VmRSS", "VmHWM"))
    assert now is not None
    assert most is not None
    return int(now[1]) * 1024, int(most[1]) * 1024
