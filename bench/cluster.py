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
MEMORY_GOAL_BYTES = 100_000_000
_RESOURCE, _SLICES = "nvidia.com/mig-1g.5gb", 56
# As in the chart's default: a driver for claims on the node would leave the device plugin nothing to offer.
_BY_DEVICE_PLUGIN = ("--mig-strategy=mixed", "--without=dra")
_WITHOUT_PARTS = ("--without=device-plugin", "--without=mig-manager", "--without=feature-labels", "--without=dra")
_IMPORTS = (
    "import tranche.kubernetes.agent.process, tranche.kubernetes.mig_manager.manager, "
    "tranche.kubernetes.device_plugin.plugin"
)

Change = tuple[str, str]
Measured = dict[Change, list[CutTimes]]


def run(report: Report) -> None:
    with own_cluster(P4D) as cluster:
        (node,) = cluster.nodes
        cluster.make_namespace(_NAMESPACE)
        _layouts(report, cluster, node)
        _agent(report, cluster, node)
        _pods(report, cluster, node)


def _layouts(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node whose GPUs are not cut; they are not cut afterwards."""
    report.section(
        "From a node's label to allocatable slices",
        f"simulated {node.record.machine}, operations as long as on hardware; medians of {LABEL_RUNS} runs, in seconds.",
        "All observed. NVML at work: from the first call that asks for a change until the last change has taken effect.",
        "Up to 1 s of what follows is the kubelet's, which writes its node's status once a second here: labels come at random",
        "instants of that second.",
        f"Baseline: `tranche layout apply` on the node, without Kubernetes, medians of {COMMAND_RUNS} runs. It ends when it has",
        "seen that every change is there.",
    )
    commanded = _commanded(node)
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        write_layouts(cluster, _PAIRS)
        labelled = _labelled(cluster, node, WHOLE_MACHINE)
        around_pods = _labelled_around_pods(cluster, node)
        time_label(cluster, node, "all-disabled", OFFERED["all-disabled"])
        remove_layouts(cluster)
    label(cluster, node, None)
    report.table(
        [
            "",
            "label to first call",
            "NVML at work",
            "to allocatable",
            "baseline: to first call",
            "at work",
            "to its end",
        ],
        [[" to ".join(change), *_medians(labelled[change]), *_medians(commanded[change])] for change in labelled],
    )
    report.table(
        ["with 8 pods in 3g.20gb, which run on", "label to first call", "NVML at work", "to allocatable"],
        [[" to ".join(change), *_medians(around_pods[change])] for change in around_pods],
    )
    worst = max(median(each.after for each in times) for times in (*labelled.values(), *around_pods.values()))
    report.verdict(
        f"allocatable at most {GOAL_SECONDS:g} s after NVML is done (worst median of {len(labelled) + len(around_pods)}: "
        f"{worst:.2f} s)",
        worst <= GOAL_SECONDS,
    )


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


def _agent(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure the agent on a node whose GPUs are not cut; they are in 56 slices afterwards.

    It is a process of the node, not a pod: the figures are the agent's own, without the kubelet's share of a pod's start.
    """
    node.run("tranche", "layout", "apply", "-c", "all-1g.5gb")
    with agent_process_on(cluster, node, *_BY_DEVICE_PLUGIN) as agent:
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
    _table(report, measured)


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
            assert uuid in str(answer), answer
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


def _pods(report: Report, cluster: Cluster, node: Node) -> None:
    """Measure on a node in 56 slices."""
    report.section(
        "From a pod's creation until it runs",
        f"one pod at a time, with nvidia.com/mig-1g.5gb: 1 and without in turn, {PODS} each; in seconds.",
    )
    with agent_on(cluster, node, "--mig-strategy=mixed"):
        wait_for_slices(cluster, node, mig_1g_5gb=56)
        _start(cluster, "warm-up", {})
        sliced, plain = [], []
        for number in range(PODS):
            sliced.append(_start(cluster, f"sliced-{number}", {"nvidia.com/mig-1g.5gb": 1}))
            plain.append(_start(cluster, f"plain-{number}", {}))
    _table(report, {"with a slice": sliced, "baseline: the same without one": plain})


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


def _table(report: Report, measured: Mapping[str, Sequence[float]]) -> None:
    rows = [[name, *(f"{f(each):.2f}" for f in (median, min, max))] for name, each in measured.items()]
    report.table(["", "median", "least", "most"], rows)
