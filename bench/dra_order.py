"""Which list of devices has a stock scheduler accept the most: ours, one that never changes, or any; and what the list costs.

Nodes are API objects with eight GPUs each, pods are bound and never run. Arrivals are Poisson, services exponential with mean 1;
who finds no room is lost. Load is the offered population over the most of the mix that the GPUs hold when everything may be moved
at will. Every order sees the same arrivals. A cluster of its own is made and removed: root on Linux only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import mean
from time import monotonic
from typing import Any

from cluster.claims import NODES, SLICES, add_paper_node
from cluster.client import ApiClient
from release.chart import render

from bench.acceptance import Arrival, arrivals, fullest
from bench.claim_nodes import GPUS, ORDERS, OUR_ORDER, PROFILES, Outcome, Refused, ShownNode, play, refused
from bench.machine import BOARD
from bench.own_cluster import own_cluster
from bench.report import Report, on_all_cores
from tranche.kubernetes.api.resource_slices import encode_slice

# Weights in the order of PROFILES: 1g, 1g with double memory, 2g, 3g, 4g, 7g.
MIXES = {"1g and 3g": (1, 0, 0, 1, 0, 0), "1g, 2g and 3g": (1, 0, 1, 1, 0, 0), "1g to 7g": (4, 1, 2, 2, 1, 1)}
LOADS = (0.8, 0.9, 1.0)
# Weights of mixes in which large requests are few, and the load that finds too little room for them.
KEPT_MIXES = {"1g and 7g": (20, 0, 0, 0, 0, 1), "1g and 3g": (7, 0, 0, 2, 0, 0), "1g to 7g": (4, 1, 2, 2, 1, 1)}
KEPT_SIZES = ("", "3g.20gb", "7g.40gb", "7g.40gb=2")
KEPT_NODES, KEPT_ARRIVALS, KEPT_LOAD = 2, 4_000, 1.0
FLEET, ARRIVALS = 20, 5_000
SCHEDULED_SHORT, SCHEDULED_LONG = (2, 400), (20, 2_000)
WRITERS, WRITE_SECONDS = 4, 5.0
_CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
_SCHEDULERS = (
    "POST pods/binding",
    "PUT resourceclaims/status",
    "PATCH resourceclaims/status",
    "PATCH pods/status",
    "PATCH resourceclaims",
)
_REQUESTS = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def run(report: Report) -> None:
    """Measure; ClusterError, after what needs no cluster, where none can run."""
    _simulated(report, range(1, 11 if report.long else 4))
    _kept(report, range(1, 6 if report.long else 2))
    nodes, number = SCHEDULED_LONG if report.long else SCHEDULED_SHORT
    report.section(
        "The same by the scheduler of Kubernetes itself",
        f"{nodes} nodes with {GPUS} GPUs of {BOARD} each; {number:,} arrivals at a load of 1.1; the first third does not count.",
        "Pods come one after another, each after the last was bound or refused.",
    )
    with own_cluster({}) as cluster:
        chart = render({"namespace": {"create": True}, "dra": {"enabled": True}})
        cluster.apply(*(item for item in chart if item["kind"] == "DeviceClass"))
        api = replace(cluster.api, keeps=True)
        _scheduled(report, api, _path(MIXES["1g and 3g"], 1.1, nodes, number, seed=1), nodes)
        _writes(report, api)


def _simulated(report: Report, seeds: range) -> None:
    report.section(
        "Pods refused by a scheduler that takes the first device that fits, by the order of the list",
        f"{FLEET} nodes with {GPUS} GPUs of {BOARD} each; {ARRIVALS:,} arrivals a run, the first third does not count; seeds "
        f"{seeds[0]} to {seeds[-1]}, the same for every order. The node is drawn among those where it fits.",
        "Cells: percent refused / refused though one GPU had as many slices free, mean over the seeds.",
    )
    runs = {
        (mix, load, order, seed): (refused, order, FLEET, _path(weights, load, FLEET, ARRIVALS, seed))
        for mix, weights in MIXES.items()
        for load in LOADS
        for order in ORDERS
        for seed in seeds
    }
    found: dict[Any, Refused] = on_all_cores(runs)

    def cell(mix: str, load: float, order: str) -> str:
        several = [found[mix, load, order, seed] for seed in seeds]
        lost = mean(100 * sum(each.lost) / sum(each.came) for each in several)
        return f"{lost:.1f} / {mean(100 * each.fragmented / sum(each.came) for each in several):.1f}"

    rows = [[mix, load, *(cell(mix, load, order) for order in ORDERS)] for mix in MIXES for load in LOADS]
    report.table(["mix", "load", *ORDERS], rows)


def _kept(report: Report, seeds: range) -> None:
    report.section(
        "Pods refused by that scheduler where nodes keep room for large requests",
        f"{KEPT_NODES} nodes with {GPUS} GPUs of {BOARD} each, in our order, at a load of {KEPT_LOAD}; {KEPT_ARRIVALS:,} "
        f"arrivals, the first third does not count; seeds {seeds[0]} to {seeds[-1]}. What nodes keep: tranche.dev/keep.",
        "Cells: percent of the requests for a profile that were refused, and of all compute slices asked for that were given.",
    )
    runs = {
        (mix, keep, seed): (
            refused,
            OUR_ORDER,
            KEPT_NODES,
            _path(weights, KEPT_LOAD, KEPT_NODES, KEPT_ARRIVALS, seed),
            keep,
        )
        for mix, weights in KEPT_MIXES.items()
        for keep in KEPT_SIZES
        for seed in seeds
    }
    found: dict[Any, Refused] = on_all_cores(runs)
    rows = []
    for mix, weights in KEPT_MIXES.items():
        for keep in KEPT_SIZES:
            several = [found[mix, keep, seed] for seed in seeds]
            cells = [
                f"{mean(100 * each.lost[shape] / (each.came[shape] or 1) for each in several):.1f}" if weight else ""
                for shape, weight in enumerate(weights)
            ]
            given = mean(100 * (1 - _slices(each.lost) / _slices(each.came)) for each in several)
            rows.append([mix, keep or "nothing", *cells, f"{given:.1f}"])
    report.table(["mix", "kept", *map(str, PROFILES), "compute given"], rows)


def _slices(counts: Sequence[int]) -> int:
    return sum(profile.slices * count for profile, count in zip(PROFILES, counts, strict=True))


def _path(weights: Sequence[int], load: float, nodes: int, number: int, seed: int) -> list[Arrival]:
    return arrivals(weights, load * fullest(weights) * nodes * GPUS, number, seed)


def _scheduled(report: Report, api: ApiClient, path: Sequence[Arrival], nodes: int) -> None:
    rows = []
    for order in ORDERS:
        shown = _nodes(api, order, nodes)
        requests = _requests(api)
        try:
            outcome = play(api, shown, path)
        finally:
            asked = _requests(api) - requests
            _remove(api, shown)
        rows.append(_row(order, outcome, asked))
    report.table(
        [
            "1g and 3g, by",
            "accepted",
            "pods bound per s",
            "slices written per pod",
            "API requests per pod",
            "of the scheduler",
        ],
        rows,
    )


def _row(order: str, outcome: Outcome, asked: Counter[str]) -> list[str]:
    pods = outcome.bound
    ours = {"GET", "LIST"}  # the measurement's own questions, for the most part
    written = sum(count for name, count in asked.items() if name.split()[0] not in ours)
    scheduler = sum(asked[name] for name in _SCHEDULERS)
    return [
        order,
        f"{100 * outcome.accepted / outcome.offered:.1f} %",
        f"{pods / outcome.seconds:.1f}",
        f"{outcome.writes / pods:.2f}",
        f"{written / pods:.1f}",
        f"{scheduler / pods:.1f}",
    ]


def _nodes(api: ApiClient, order: str, number: int) -> dict[str, ShownNode]:
    names = [f"paper-{index}" for index in range(number)]
    return {name: ShownNode(name, add_paper_node(api, name), order, api) for name in names}


def _remove(api: ApiClient, shown: dict[str, ShownNode]) -> None:
    api.delete_all(SLICES)
    for name in shown:
        api.delete(f"{NODES}/{name}")


def _requests(api: ApiClient) -> Counter[str]:
    """How many requests the API server has answered, by verb and resource, without watches and leases."""
    found: Counter[str] = Counter()
    for labels, count in _REQUESTS.findall(api.text("/metrics")):
        known = dict(_LABEL.findall(labels))
        if known["verb"] not in ("WATCH", "CONNECT") and known["resource"] not in ("leases", "events", ""):
            sub = f"/{known['subresource']}" if known.get("subresource") else ""
            found[f"{known['verb'].replace('APPLY', 'PATCH')} {known['resource']}{sub}"] += int(float(count))
    return found


def _writes(report: Report, api: ApiClient) -> None:
    """How many reorderings one API server takes, with four that write at once; beside objects of a few bytes."""
    shown = _nodes(api, OUR_ORDER, WRITERS)
    largest = [max(node.known, key=lambda each: len(each.devices)) for node in shown.values()]

    def reordered(made: dict[str, Any]) -> dict[str, Any]:
        devices = made["spec"]["devices"]
        return {**made, "spec": {**made["spec"], "devices": [*devices[1:], devices[0]]}}

    def renewed(made: dict[str, Any]) -> dict[str, Any]:
        return {**made, "data": {"number": str(int(made["data"]["number"]) + 1)}}

    slices = {f"{SLICES}/{each.name}": dict(encode_slice(each)) for each in largest}
    small = {}
    for number in range(WRITERS):
        made = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"small-{number}"},
            "data": {"number": "0"},
        }
        small[f"{_CONFIG_MAPS}/small-{number}"] = api.request("POST", _CONFIG_MAPS, made)
    rate, plain = _rate(api, slices, reordered), _rate(api, small, renewed)
    _remove(api, shown)
    report.section(
        "ResourceSlices written anew",
        f"{WRITERS} writers at once, each a slice of {len(largest[0].devices)} devices, then each a ConfigMap of a few bytes, "
        f"for {WRITE_SECONDS:.0f} s.",
    )
    report.table(
        ["", "slices", "ConfigMaps", "slices by ConfigMaps"],
        [
            ["one API server and etcd take a second", f"{rate:.0f}", f"{plain:.0f}", f"{rate / plain:.2f}"],
            ["500 nodes, each once in", f"{500 / rate:.1f} s", f"{500 / plain:.1f} s", ""],
        ],
    )


def _rate(
    api: ApiClient, objects: Mapping[str, dict[str, Any]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> float:
    """How often in a second the objects, by path, are written when each is changed again and again by a writer of its own."""
    until = monotonic() + WRITE_SECONDS

    def write(path: str, made: dict[str, Any]) -> int:
        count = 0
        while monotonic() < until:
            made = change(made)
            made = {**made, "metadata": api.request("PUT", path, made)["metadata"]}
            count += 1
        return count

    with ThreadPoolExecutor(len(objects)) as pool:
        return sum(pool.map(write, *zip(*objects.items(), strict=True))) / WRITE_SECONDS
