"""Which list of devices has a stock scheduler accept the most: ours, one that never changes, or any; and what the list costs.

Nodes are API objects with eight GPUs each, pods are bound and never run. Arrivals are Poisson, services exponential with mean 1;
who finds no room is lost. Load is the offered population over the most of the mix that the GPUs hold when everything may be moved
at will. Every order sees the same arrivals. A cluster of its own is made and removed: root on Linux only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction
from statistics import mean
from time import monotonic
from typing import Any

from cluster.client import ApiClient
from cluster.cluster import Cluster
from cluster.paper_nodes import NODES, SLICES, add_paper_node
from release.chart import render

from bench.acceptance import arrivals
from bench.claim_arrivals import GPUS, ORDERS, KeptConnection, Outcome, ShownNode, play, shown_node
from bench.claim_lists import refused, refused_by_profile
from bench.machine import board_of
from bench.optimum import fluid_optimum
from bench.own_cluster import own_cluster
from bench.report import Report
from tranche.core.profile import ProfileName, parse_profile
from tranche.kubernetes.api.resource_slices import encode_slice
from tranche.planning.decide.tables import geometry_of

BOARD = "A100-40GB"
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
# Weights in the order of PROFILES.
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
    weights = MIXES["1g and 3g"]
    with own_cluster({}) as cluster:
        chart = render({"namespace": {"create": True}, "dra": {"enabled": True}})
        cluster.apply(*(item for item in chart if item["kind"] == "DeviceClass"))
        _scheduled(report, cluster, weights, 1.1 * _most(weights) * nodes * GPUS, nodes, number)
        _writes(report, cluster)


def _simulated(report: Report, seeds: range) -> None:
    report.section(
        "Pods refused by a scheduler that takes the first device that fits, by the order of the list",
        f"{FLEET} nodes with {GPUS} GPUs of {BOARD} each; {ARRIVALS:,} arrivals a run, the first third does not count; seeds "
        f"{seeds[0]} to {seeds[-1]}, the same for every order. The node is drawn among those where it fits.",
        "Cells: percent refused / refused though one GPU had as many slices free, mean over the seeds.",
    )
    runs = [
        (
            (mix, load, order),
            (
                refused,
                order,
                FLEET,
                BOARD,
                _profiles(),
                arrivals(weights, load * _most(weights) * FLEET * GPUS, ARRIVALS, seed),
            ),
        )
        for mix, weights in MIXES.items()
        for load in LOADS
        for order in ORDERS
        for seed in seeds
    ]
    found = _by_key(runs)
    rows = []
    for mix in MIXES:
        for load in LOADS:
            cells = [
                f"{mean(each[0] for each in several):.1f} / {mean(each[1] for each in several):.1f}"
                for several in (found[mix, load, order] for order in ORDERS)
            ]
            rows.append([mix, str(load), *cells])
    report.table(["mix", "load", *ORDERS], rows)


def _kept(report: Report, seeds: range) -> None:
    report.section(
        "Pods refused by that scheduler where nodes keep room for large requests",
        f"{KEPT_NODES} nodes with {GPUS} GPUs of {BOARD} each, in our order, at a load of {KEPT_LOAD}; {KEPT_ARRIVALS:,} "
        f"arrivals, the first third does not count; seeds {seeds[0]} to {seeds[-1]}. What nodes keep: tranche.dev/keep.",
        "Cells: percent of the requests for a profile that were refused, and of all compute slices asked for that were given.",
    )
    runs = [
        (
            (mix, keep),
            (
                refused_by_profile,
                KEPT_NODES,
                BOARD,
                _profiles(),
                arrivals(weights, KEPT_LOAD * _most(weights) * KEPT_NODES * GPUS, KEPT_ARRIVALS, seed),
                keep,
            ),
        )
        for mix, weights in KEPT_MIXES.items()
        for keep in KEPT_SIZES
        for seed in seeds
    ]
    rows = []
    for (mix, keep), several in _by_key(runs).items():
        cells = [
            f"{mean(each[0][number] for each in several):.1f}" if KEPT_MIXES[mix][number] else ""
            for number in range(len(PROFILES))
        ]
        rows.append([mix, keep or "nothing", *cells, f"{mean(each[1] for each in several):.1f}"])
    report.table(["mix", "kept", *PROFILES, "compute given"], rows)


def _by_key(runs: Sequence[tuple[Hashable, tuple[Any, ...]]]) -> dict[Any, list[Any]]:
    """What each function returns for its arguments, by key, on all cores."""
    found: dict[Any, list[Any]] = {}
    with ProcessPoolExecutor() as pool:
        jobs = [(key, pool.submit(*call)) for key, call in runs]
        for key, job in jobs:
            found.setdefault(key, []).append(job.result())
    return found


def _profiles() -> list[ProfileName]:
    return [parse_profile(each) for each in PROFILES]


def _most(weights: Sequence[int]) -> float:
    """How many slices of the mix one GPU holds at the most."""
    board = board_of(BOARD)
    assert board.memory_slices is not None
    mix = [Fraction(weight, sum(weights)) for weight in weights]
    return float(fluid_optimum(geometry_of(board.memory_slices, board.profiles), mix).population)


def _scheduled(
    report: Report, cluster: Cluster, weights: tuple[int, ...], rate: float, nodes: int, number: int
) -> None:
    path = arrivals(weights, rate, number, seed=1)
    rows = []
    for order in ORDERS:
        connection = KeptConnection(cluster.api)
        shown = _nodes(cluster.api, connection, order, nodes)
        requests = _requests(cluster.api)
        try:
            outcome = play(connection, shown, _profiles(), path)
        finally:
            asked = _requests(cluster.api) - requests
            _remove(cluster, shown)
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


def _nodes(api: ApiClient, connection: KeptConnection, order: str, number: int) -> dict[str, ShownNode]:
    found = {}
    for index in range(number):
        name = f"paper-{index}"
        node = shown_node(name, add_paper_node(api, name), ORDERS[order], connection, BOARD)
        node.show()
        found[name] = node
    return found


def _remove(cluster: Cluster, shown: dict[str, ShownNode]) -> None:
    cluster.api.delete_all(SLICES)
    for name in shown:
        cluster.api.delete(f"{NODES}/{name}")


def _requests(api: ApiClient) -> Counter[str]:
    """How many requests the API server has answered, by verb and resource, without watches and leases."""
    found: Counter[str] = Counter()
    for labels, count in _REQUESTS.findall(api.text("/metrics")):
        known = dict(_LABEL.findall(labels))
        if known["verb"] not in ("WATCH", "CONNECT") and known["resource"] not in ("leases", "events", ""):
            sub = f"/{known['subresource']}" if known.get("subresource") else ""
            found[f"{known['verb'].replace('APPLY', 'PATCH')} {known['resource']}{sub}"] += int(float(count))
    return found


def _writes(report: Report, cluster: Cluster) -> None:
    """How many reorderings one API server takes, with four that write at once; beside objects of a few bytes."""
    connection = KeptConnection(cluster.api)
    shown = list(_nodes(cluster.api, connection, "our order", WRITERS).values())
    largest = [max(node.known, key=lambda each: len(each.devices)) for node in shown]

    def reordered(made: dict[str, Any]) -> dict[str, Any]:
        devices = made["spec"]["devices"]
        return {**made, "spec": {**made["spec"], "devices": [*devices[1:], devices[0]]}}

    def renewed(made: dict[str, Any]) -> dict[str, Any]:
        return {**made, "data": {"number": str(int(made["data"]["number"]) + 1)}}

    slices = [(f"{SLICES}/{each.name}", dict(encode_slice(each))) for each in largest]
    small = [
        (
            f"{_CONFIG_MAPS}/{name}",
            connection.ask(
                "POST",
                _CONFIG_MAPS,
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"number": "0"}},
            ),
        )
        for name in (f"small-{number}" for number in range(WRITERS))
    ]
    rate, plain = _rate(cluster.api, slices, reordered), _rate(cluster.api, small, renewed)
    _remove(cluster, {node.name: node for node in shown})
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
    api: ApiClient, objects: Sequence[tuple[str, dict[str, Any]]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> float:
    """How often in a second the objects, by path, are written when each is changed again and again by a writer of its own."""
    until = monotonic() + WRITE_SECONDS

    def write(path: str, made: dict[str, Any]) -> int:
        own, count = KeptConnection(api), 0
        while monotonic() < until:
            made = change(made)
            made = {**made, "metadata": own.ask("PUT", path, made)["metadata"]}
            count += 1
        return count

    with ThreadPoolExecutor(len(objects)) as pool:
        return sum(pool.map(lambda each: write(*each), objects)) / WRITE_SECONDS
