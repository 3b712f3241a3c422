"""Which list of devices has a stock scheduler accept the most: ours, one that never changes, or any; and what the list costs.

Nodes are API objects with eight GPUs each, pods are bound and never run. Arrivals are Poisson, services exponential with mean 1;
who finds no room is lost. Load is the offered population over the most of the mix that the GPUs hold when everything may be moved
at will. Every order sees the same arrivals. A cluster of its own is made and removed: root on Linux only.
"""

from __future__ import annotations

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
from bench.claim_nodes import GPUS, ORDERS, OUR_ORDER, PROFILES, Refused, ShownNode, play, refused
from bench.own_cluster import own_cluster
from bench.report import Report, on_all_cores
from tranche.kubernetes.api.object_client import encode_slice

# Weights in the order of PROFILES: 1g, 1g with double memory, 2g, 3g, 4g, 7g.
MIXES = {"1g and 3g": (1, 0, 0, 1, 0, 0), "1g, 2g and 3g": (1, 0, 1, 1, 0, 0), "1g to 7g": (4, 1, 2, 2, 1, 1)}
LOADS = (0.9, 1.0)
# Weights of mixes in which large requests are few, and the load that finds too little room for them.
KEPT_MIXES = {"1g and 7g": (20, 0, 0, 0, 0, 1), "1g to 7g": (4, 1, 2, 2, 1, 1)}
KEPT_SIZES = ("", "7g.40gb", "7g.40gb=2")
KEPT_NODES, KEPT_ARRIVALS, KEPT_LOAD = 2, 4_000, 1.0
FLEET, ARRIVALS = 20, 5_000
SEEDS, KEPT_SEEDS = range(1, 4), range(1, 4)
SCHEDULED_NODES, SCHEDULED_ARRIVALS, SCHEDULED_LOAD = 2, 400, 1.1
WRITERS, WRITE_SECONDS = 4, 5.0
_CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def run(report: Report) -> None:
    """Measure; ClusterError where no cluster can run."""
    report.section(
        "The order of devices for Kubernetes' scheduler",
        f"A simulated scheduler serves claims on {FLEET} nodes with {GPUS} A100-40GB GPUs each.",
        "It picks a random node that has room, and then the first fitting device in the node's list.",
        "At a load of 1, the pods would fill every GPU if slices could move freely.",
        f"Each cell gives the percentage of pods that cannot be placed, as the mean of {len(SEEDS)} seeds.",
    )
    _simulated(report)
    _kept(report)
    with own_cluster({}) as cluster:
        chart = render({"namespace": {"create": True}, "dra": {"enabled": True}})
        cluster.apply(*(item for item in chart if item["kind"] == "DeviceClass"))
        api = replace(cluster.api, keeps=True)
        _scheduled(report, api)
        _writes(report, api)


def _simulated(report: Report) -> None:
    runs = {
        (mix, load, order, seed): (refused, order, FLEET, _path(weights, load, FLEET, ARRIVALS, seed))
        for mix, weights in MIXES.items()
        for load in LOADS
        for order in ORDERS
        for seed in SEEDS
    }
    found: dict[Any, Refused] = on_all_cores(runs)

    def cell(mix: str, load: float, order: str) -> str:
        several = [found[mix, load, order, seed] for seed in SEEDS]
        return f"{mean(100 * sum(each.lost) / sum(each.came) for each in several):.1f}"

    rows = [[mix, load, *(cell(mix, load, order) for order in ORDERS)] for mix in MIXES for load in LOADS]
    report.table(["requests", "load", *ORDERS], rows)


def _kept(report: Report) -> None:
    report.section(
        "Kept room for large requests",
        f"The same scheduler serves {KEPT_ARRIVALS:,} pods on {KEPT_NODES} nodes, in our order, at load {KEPT_LOAD:g}.",
        "Each cell gives the percentage of a profile's requests that cannot be placed.",
        "The last column gives the percentage of requested compute slices that were granted.",
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
        for seed in KEPT_SEEDS
    }
    found: dict[Any, Refused] = on_all_cores(runs)
    rows = []
    for mix, weights in KEPT_MIXES.items():
        for keep in KEPT_SIZES:
            several = [found[mix, keep, seed] for seed in KEPT_SEEDS]
            cells = [
                f"{mean(100 * each.lost[shape] / (each.came[shape] or 1) for each in several):.1f}" if weight else ""
                for shape, weight in enumerate(weights)
            ]
            given = mean(100 * (1 - _slices(each.lost) / _slices(each.came)) for each in several)
            rows.append([mix, keep or "nothing", *cells, f"{given:.1f}"])
    report.table(["requests", "kept", *map(str, PROFILES), "compute given"], rows)


def _slices(counts: Sequence[int]) -> int:
    return sum(profile.slices * count for profile, count in zip(PROFILES, counts, strict=True))


def _path(weights: Sequence[int], load: float, nodes: int, number: int, seed: int) -> list[Arrival]:
    return arrivals(weights, load * fullest(weights) * nodes * GPUS, number, seed)


def _scheduled(report: Report, api: ApiClient) -> None:
    report.section(
        "Claims by Kubernetes' own scheduler",
        f"{SCHEDULED_NODES} nodes with {GPUS} A100-40GB GPUs each are API objects: pods are bound and never run.",
        f"{SCHEDULED_ARRIVALS} pods with 1g and 3g arrive one after another, at a load of {SCHEDULED_LOAD}.",
        "The last two thirds count.",
    )
    rows = []
    for order in ORDERS:
        shown = _nodes(api, order, SCHEDULED_NODES)
        try:
            outcome = play(
                api, shown, _path(MIXES["1g and 3g"], SCHEDULED_LOAD, SCHEDULED_NODES, SCHEDULED_ARRIVALS, seed=1)
            )
        finally:
            _remove(api, shown)
        accepted = f"{100 * outcome.accepted / outcome.offered:.1f} %"
        rows.append(
            [order, accepted, f"{outcome.bound / outcome.seconds:.1f}", f"{outcome.writes / outcome.bound:.2f}"]
        )
    report.table(["", "placed", "pods bound a second", "ResourceSlices written for a pod"], rows)


def _nodes(api: ApiClient, order: str, number: int) -> dict[str, ShownNode]:
    names = [f"paper-{index}" for index in range(number)]
    return {name: ShownNode(name, add_paper_node(api, name), order, api) for name in names}


def _remove(api: ApiClient, shown: dict[str, ShownNode]) -> None:
    api.delete_all(SLICES)
    for name in shown:
        api.delete(f"{NODES}/{name}")


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
        "Writes of ResourceSlices",
        f"{WRITERS} writers each write one object again and again for {WRITE_SECONDS:g} s.",
        f"The object is a ResourceSlice of {len(largest[0].devices)} devices, then a small ConfigMap.",
        "One API server and its etcd handle this many writes a second:",
    )
    report.table(["ResourceSlices", "ConfigMaps"], [[f"{rate:.0f}", f"{plain:.0f}"]])


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
