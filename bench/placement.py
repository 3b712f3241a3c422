"""Decisions per second as `tranche run` and a simulation make them, explanations, and whether the number of GPUs matters."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import median
from time import process_time

from bench.machine import ProductPath, Spot, board_of
from bench.plain_scan import decide_by_scan
from bench.report import Report, figure
from tranche.core.allocation import NodeView
from tranche.core.request import Request, parse_request
from tranche.planning.allocate import Granted, decide
from tranche.planning.explain import explain
from tranche.planning.indexed_view import IndexedView

BOARD = "A100-40GB"
SEED = 7
SIZES = (8, 100, 1_000, 10_000, 100_000)
SCANNED = 1_000
ALLOCATIONS = 5
# Of 1g, 1g with double memory, 2g, 3g, 4g, 7g: what the machine holds, and what is asked of it.
HELD_WEIGHTS = (70, 10, 20, 0, 0, 0)
ASKED_WEIGHTS = (45, 10, 20, 15, 5, 5)
REPETITIONS = 5


def run(report: Report) -> None:
    decisions = 20_000 if report.long else 1_000
    report.section(
        "Decisions per second, one core: decide() as tranche run calls it",
        f"{BOARD}, {ALLOCATIONS} slices held on each GPU; seed {SEED}.",
        f"Median of {REPETITIONS} repetitions of {decisions:,}, in CPU time.",
        "The scan asks every GPU and looks at every allocation for it; beyond 1,000 GPUs it takes minutes for one decision.",
        "Cycle: a random slice is released, a decision made, its plan applied and its slice promised; all of it is timed.",
    )
    rows: list[list[str]] = []
    explained: list[list[str]] = []
    rates: dict[int, float] = {}
    for gpus in SIZES:
        product, live = _filled(gpus)
        view = product.index.view
        held = len(live)
        requests = Random(SEED).choices(product.requests, ASKED_WEIGHTS, k=decisions)
        alone = median(_rate(product.index, requests) for _ in range(REPETITIONS))
        scan = f"{_scan_rate(view, requests):.3g}" if gpus <= SCANNED else "-"
        ratio = f"{alone / float(scan):,.0f}" if gpus <= SCANNED else "-"
        cycle = median(_cycle_rate(product, live, decisions) for _ in range(REPETITIONS))
        rates[gpus] = alone
        rows.append([f"{gpus:,}", f"{held:,}", figure(alone), scan, ratio, figure(cycle)])
        explained.append([f"{gpus:,}", *_explained(product, view)])
    report.table(["GPUs", "held", "decide()", "plain scan", "ratio", "cycles"], rows)
    report.verdict("at least 20,000 decisions per second at 1,000 GPUs", rates[1_000] >= 20_000)
    report.verdict("at 100,000 GPUs at least half as many as at 1,000", rates[100_000] * 2 >= rates[1_000])
    report.section(
        "Explanations, in ms of CPU time",
        f"The same machines; median of {REPETITIONS}, of 3 for the index.",
        "Waiting: for all GPUs, whole; remedies are looked for on 64.",
        "The index of a machine is built once from what is observed; tranche run does so for each decision.",
    )
    report.table(["GPUs", "startable", "waiting", "the index built"], explained)
    _one_machine(report)


def _filled(gpus: int) -> tuple[ProductPath, list[Spot]]:
    """A machine on which slices came and went until so many are held."""
    random = Random(SEED)
    product = ProductPath(board_of(BOARD), gpus)
    live: list[Spot] = []
    while len(live) < ALLOCATIONS * gpus:
        spot = product.place(random.choices(range(len(HELD_WEIGHTS)), HELD_WEIGHTS)[0])
        if spot is not None:
            live.append(spot)
        if spot is None or random.random() < 0.1:
            _release_one(product, live, random)
    return product, live


def _release_one(product: ProductPath, live: list[Spot], random: Random) -> None:
    chosen = int(random.random() * len(live))
    live[chosen], live[-1] = live[-1], live[chosen]
    product.release(live.pop())


def _rate(view: IndexedView, requests: list[Request]) -> float:
    start = process_time()
    for request in requests:
        decide(view, request)
    return len(requests) / (process_time() - start)


def _scan_rate(view: NodeView, requests: list[Request]) -> float:
    """The plain scan's, over as many decisions as a few seconds allow."""
    number = max(3, min(len(requests), 2_000_000 // (len(view.node.gpus) * (1 + len(view.allocations)))))
    start = process_time()
    for request in requests[:number]:
        decide_by_scan(view, request)
    return number / (process_time() - start)


def _cycle_rate(product: ProductPath, live: list[Spot], cycles: int) -> float:
    random = Random(SEED)
    shapes = random.choices(range(len(HELD_WEIGHTS)), HELD_WEIGHTS, k=cycles)
    start = process_time()
    for shape in shapes:
        _release_one(product, live, random)
        spot = product.place(shape)
        if spot is not None:
            live.append(spot)
    return cycles / (process_time() - start)


def _explained(product: ProductPath, view: NodeView) -> tuple[str, str, str]:
    waits = parse_request(gpus=str(len(view.node.gpus)))
    startable = _milliseconds(lambda: explain(product.index, product.requests[0]))
    waiting = _milliseconds(lambda: explain(product.index, waits))
    built = _milliseconds(lambda: IndexedView(view), 3)
    return figure(startable), figure(waiting), figure(built)


def _milliseconds(work: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    times = []
    for _ in range(repetitions):
        start = process_time()
        work()
        times.append(1000 * (process_time() - start))
    return median(times)


def _one_machine(report: Report) -> None:
    """The whole of `decide` from an observed machine, as each `tranche run` pays it: the index is built, and asked once."""
    product, _ = _filled(8)
    view, request = product.index.view, product.requests[0]
    assert isinstance(decide(view, request), Granted)
    ours = _milliseconds(lambda: decide(view, request), 200)
    scan = _milliseconds(lambda: decide_by_scan(view, request), 200)
    report.table(
        ["decide() on 8 GPUs as observed, with 40 slices held", "ms of CPU time"],
        [["the index built, and asked once", figure(ours)], ["plain scan", figure(scan)]],
    )
    report.verdict("building the index and asking it once takes no longer than the scan", ours <= scan)
