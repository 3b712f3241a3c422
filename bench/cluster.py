"""Tranche on a real Kubernetes node: from a label to slices, the agent's start and memory, Allocate, what a slice costs a pod.

A cluster of its own with one node, a simulated p4d.24xlarge, is made and removed: root on Linux only.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import grpc
from cluster.agents import AgentProcess, agent_on, agent_process_on
from cluster.cluster import Cluster
from cluster.node import Node
from cluster.node_layouts import (
    CutTimes,
    label,
    remove_layouts,
    time_command,
    time_label,
    wait_for_slices,
    write_layouts,
)
from cluster.waiting import wait_for
from cluster.workloads import deployment, phase, phases, pod, pods_in

from bench.own_cluster import P4D, own_cluster
from bench.report import Report
from tranche.kubernetes.device_plugin.server import API_VERSION
from tranche.kubernetes.kubelet.proto import deviceplugin_pb2 as pb

OFFERED: Mapping[str, Mapping[str, int]] = {
    "all-disabled": {"gpu": 8},
    "all-balanced": {"mig-1g.5gb": 16, "mig-2g.10gb": 8, "mig-3g.20gb": 8},
    "all-1g.5gb": {"mig-1g.5gb": 56},
    "pairs": {"mig-2g.10gb": 16, "mig-3g.20gb": 8},
}
# A round begins and ends with the same layout; the first one on a new machine.
WHOLE_MACHINE = ("all-disabled", "all-1g.5gb", "all-balanced", "all-1g.5gb", "all-disabled")
AROUND_PODS = ("all-balanced", "pairs", "all-balanced")
LABEL_RUNS = 7
COMMAND_RUNS = 3
GOAL_SECONDS = 2.0
_PAIRS = """
version: v1
mig-configs:
  pairs: [{devices: all, mig-enabled: true, mig-devices: {2g.10gb: 2, 3g.20gb: 1}}]
"""
_SEED = 1
_STATUS_PERIOD_SECONDS = 1.0
_NAMESPACE = "bench"

STARTS = 7
CALLS = 1000
PODS = 10
_RESOURCE, _SLICES = "nvidia.com/mig-1g.5gb", 56
# As in the chart's default: a driver for claims on the node would leave the device plugin nothing to offer.
_BY_DEVICE_PLUGIN = ("--mig-strategy=mixed", "--without=dra")
_WITHOUT_PARTS = ("--without=device-plugin", "--without=mig-manager", "--without=feature-labels", "--without=dra")
_IMPORTS = (
    "import tranche.kubernetes.agent.process, tranche.kubernetes.mig_manager.manager, "
    "tranche.kubernetes.device_plugin.plugin"
)

Change = tuple[str, ...]
Measured = dict[Change, list[CutTimes]]
Row = tuple[str, str, str]


def run(report: Report) -> None:
    with own_cluster(P4D) as cluster:
        (node,) = cluster.nodes
        cluster.make_namespace(_NAMESPACE)
        _layouts(report, cluster, node)
        rows = [*_agent(cluster, node), *_pods(cluster, node)]
    report.section(
        "The agent and its pods",
        f"The p4d.24xlarge is divided into {_SLICES} slices, and the agent does not run in a pod.",
    )
    report.table(["", "Tranche", "for comparison"], rows)


def _layouts(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node whose GPUs are not cut; they are not cut afterwards."""
    commanded = _commanded(node)
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        write_layouts(cluster, _PAIRS)
        labelled = _labelled(cluster, node, WHOLE_MACHINE)
        around_pods = _labelled_around_pods(cluster, node)
        time_label(cluster, node, "all-disabled", OFFERED["all-disabled"])
        remove_layouts(cluster)
    label(cluster, node, None)
    report.section(
        "A Kubernetes node",
        f"A real kubelet runs on a simulated {node.record.machine}, and a node label selects each layout.",
        f"Times are medians of {LABEL_RUNS} runs, in seconds. The kubelet writes its node's status once a second.",
        "For comparison, the last three columns show `tranche layout apply` without Kubernetes,"
        f" as medians of {COMMAND_RUNS} runs.",
    )
    measured = labelled | {(*change, "8 pods hold 3g.20gb"): times for change, times in around_pods.items()}
    report.table(
        ["layout", "label to NVML", "NVML busy", "NVML to allocatable", "command to NVML", "NVML busy", "NVML to exit"],
        [
            [_name(*change), *_medians(times), *(_medians(commanded[change]) if change in commanded else ("", "", ""))]
            for change, times in measured.items()
        ],
    )
    worst = max(median(each.after for each in times) for times in measured.values())
    report.verdict(f"Slices are allocatable within {GOAL_SECONDS:g} s after NVML finishes.", worst <= GOAL_SECONDS)


def _name(start: str, end: str, meanwhile: str = "") -> str:
    return f"{start} to {end}" + (f", while {meanwhile}" if meanwhile else "")


def _medians(times: Sequence[CutTimes]) -> list[str]:
    spans = ([each.before for each in times], [each.driver for each in times], [each.after for each in times])
    return [f"{median(span):.2f}" for span in spans]


def _commanded(node: Node) -> Measured:
    """Each change by the command line."""
    measured: Measured = {}
    for _ in range(COMMAND_RUNS):
        for change in pairwise(WHOLE_MACHINE):
            target = change[1]
            times = time_command(node, ["tranche", "layout", "apply", "-c", target])
            measured.setdefault(change, []).append(times)
            node.run("tranche", "layout", "assert", "-c", target)
    return measured


def _labelled(cluster: Cluster, node: Node, layouts: Sequence[str]) -> Measured:
    """Each change by label; the node must have the first layout, or be on the way to it."""
    measured: Measured = {}
    rng = random.Random(_SEED)
    for _ in range(LABEL_RUNS):
        for change in pairwise(layouts):
            # The wish before was seen to be fulfilled just after the kubelet wrote its status: come at any time instead.
            time.sleep(rng.uniform(0, _STATUS_PERIOD_SECONDS))
            times = time_label(cluster, node, change[1], OFFERED[change[1]])
            measured.setdefault(change, []).append(times)
    return measured


def _labelled_around_pods(cluster: Cluster, node: Node) -> Measured:
    """Each change of the 1g part while 8 pods run in the 3g part: the same containers in the same slices from first to last."""
    time_label(cluster, node, AROUND_PODS[0], OFFERED[AROUND_PODS[0]])
    cluster.apply(deployment("large", _NAMESPACE, 8, limits={"nvidia.com/mig-3g.20gb": 1}))
    wait_for("8 pods run", lambda: phases(cluster, _NAMESPACE) == {"Running": 8})
    before = _running(cluster), _large_slices(node)
    measured = _labelled(cluster, node, AROUND_PODS)
    assert before == (_running(cluster), _large_slices(node)), "a pod or its slice did not stay"
    cluster.kubectl("delete", "deployment", "large", "--namespace", _NAMESPACE, "--cascade=foreground")
    wait_for("the pods are gone", lambda: not pods_in(cluster, _NAMESPACE))
    return measured


def _running(cluster: Cluster) -> set[str]:
    """The containers that run now; one that is started again has another id."""
    statuses = [pod["status"]["containerStatuses"][0] for pod in pods_in(cluster, _NAMESPACE)]
    return {status["containerID"] for status in statuses if "running" in status["state"]}


def _large_slices(node: Node) -> set[str]:
    return {line.split()[-1] for line in node.run("nvidia-smi", "-L").splitlines() if "MIG 3g.20gb" in line}


def _agent(cluster: Cluster, node: Node) -> list[Row]:
    """Measure the agent on a node whose GPUs are not cut; they are in 56 slices afterwards.

    It is a process of the node, not a pod: the figures are the agent's own, without the kubelet's share of a pod's start.
    """
    node.run("tranche", "layout", "apply", "-c", "all-1g.5gb")
    with agent_process_on(cluster, node, *_BY_DEVICE_PLUGIN) as agent:
        starts = _starts(node, agent)
        before = _memory(agent)
        allocations = _allocations(node)
        after = _memory(agent)
    with agent_process_on(cluster, node, *_WITHOUT_PARTS) as bare:
        baseline = _memory(bare)
    memory = (f"agent's memory; after {CALLS:,} calls", f"{before}; {after}", f"{baseline} without its components")
    return [starts, allocations, memory]


def _starts(node: Node, agent: AgentProcess) -> Row:
    registered, imports = [], []
    for _ in range(STARTS):
        agent.unit.stop()
        imports.append(_seconds_of_process(node, [sys.executable, "-c", _IMPORTS]))
        begun = perf_counter()
        again = agent.start_again()
        wait_for("the kubelet listens", partial(_listens, again), period=0.01)
        registered.append(perf_counter() - begun)
        wait_for("the agent is ready", partial(_ready, again), period=0.01)
    return (
        "from the agent's start to its registration",
        f"{median(registered):.2f} s",
        f"{median(imports):.2f} s for its imports alone",
    )


def _allocations(node: Node) -> Row:
    """Calls one after the other over the plugin's socket, each for one of the slices in turn."""
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
            assert uuid in str(answer), answer
        ours, theirs = [], []
        for number in range(CALLS):
            ours.append(_milliseconds(allocate, requests[number % _SLICES]))
            theirs.append(_milliseconds(options, pb.Empty()))
    cells = [f"{(found := quantiles(each, n=100))[49]:.2f}, {found[98]:.2f} ms" for each in (ours, theirs)]
    return f"`Allocate`, {CALLS:,} calls: p50, p99", cells[0], f"{cells[1]} for an empty call"


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


def _memory(agent: AgentProcess) -> str:
    """Its resident memory now."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{agent.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return f"{int(found[1]) * 1024 / 1e6:.0f} MB"


def _pods(cluster: Cluster, node: Node) -> list[Row]:
    """Measure on a node in 56 slices: one pod at a time, with a slice and without one in turn."""
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        wait_for_slices(cluster, node, mig_1g_5gb=56)
        _start(cluster, "warm-up", {})
        sliced, plain = [], []
        for number in range(PODS):
            sliced.append(_start(cluster, f"sliced-{number}", {"nvidia.com/mig-1g.5gb": 1}))
            plain.append(_start(cluster, f"plain-{number}", {}))
    return [("start of a pod with a slice", f"{median(sliced):.2f} s", f"{median(plain):.2f} s without one")]


def _start(cluster: Cluster, name: str, limits: dict[str, int | str]) -> float:
    """Seconds until a new pod runs; it is gone again then."""
    pods = f"/api/v1/namespaces/{_NAMESPACE}/pods"
    begun = perf_counter()
    cluster.api.request("POST", pods, pod(name, _NAMESPACE, limits=limits))
    wait_for(f"{name} runs", lambda: phase(cluster, _NAMESPACE, name) == "Running", period=0.01)
    seconds = perf_counter() - begun
    cluster.api.request("DELETE", f"{pods}/{name}")
    wait_for(f"{name} is gone", lambda: not pods_in(cluster, _NAMESPACE))
    return seconds
