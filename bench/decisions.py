"""What somebody waits for until a share is chosen: by commands on one machine, and among the nodes of a cluster."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from bench.commands import TRANCHE, environment_of, milliseconds, tranche
from bench.machine import BOARD, ProductPath, Spot
from bench.report import Report
from tranche.core.allocation import NodeView
from tranche.core.request import Request, parse_request
from tranche.kubernetes.fleet.objects import FleetNode
from tranche.kubernetes.gated.scheduler.cluster_pods import ClusterPod
from tranche.kubernetes.gated.scheduler.placer import GpuNode, place
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.decide.recording import (
    RecordedDecision,
    RecordedRequest,
    answer,
    decision_from_dict,
    decision_to_dict,
)

SEED = 7
MACHINES = (1, 8, 16)
NODES = (10, 100, 1_000)
GPUS_OF_A_NODE = 8
HELD = 5
_KINDS_OF_NODES = 5
_COMMANDS = 9
_REPETITIONS = 5
_TARGET_MS, _TARGET_RATIO = 150, 2.5
_ASKED = parse_request(mig_profile="1g.5gb"), parse_request(mig_profile="7g.40gb")
"""A request that can start, and one that waits."""
# Of 1g, 1g with double memory, 2g: what the machines hold.
_HELD_WEIGHTS = (70, 10, 20, 0, 0, 0)


def run(report: Report) -> None:
    _commands(report)
    _nodes(report)


def _commands(report: Report) -> None:
    report.section(
        "Commands and decisions",
        f"The simulated machines have {BOARD} GPUs with MIG mode on. The baseline, in the last column, is a new Python process.",
        f"Each cell gives a new process's wall time and CPU time in milliseconds, as medians of {_COMMANDS} runs.",
        "GPU operations take no time.",
    )
    commands = {
        "`tranche gpus -o json`": ("gpus", "-o", "json"),
        "`tranche run -- true`": ("run", "-q", "--mig-profile", "1g.5gb", "--", "true"),
        "`tranche explain`, startable": ("explain", "--mig-profile", "1g.5gb"),
        "`tranche explain`, waiting": ("explain", "--gpus", "{all}"),
    }
    empty = (sys.executable, "-c", "import click")
    rows = []
    answer = baseline = 0.0
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(Path(folder), TRANCHE_SIM_TIME_SCALE="0")
        for gpus in MACHINES:
            name = f"with-{gpus}"
            tranche(environment, "sim", "create", name, *("--gpu", BOARD) * gpus, "--time-scale", "0")
            tranche(environment, "--simulate", name, "layout", "apply", "-c", "all-enabled")
            found = [
                _spent((*TRANCHE, "--simulate", name, *(word.format(all=gpus) for word in words)), environment)
                for words in commands.values()
            ]
            found.append(_spent(empty, environment))
            if gpus == GPUS_OF_A_NODE:
                (answer, _), (baseline, _) = found[0], found[-1]
            rows.append([gpus, *(f"{wall:.0f}, {processor:.0f}" for wall, processor in found)])
    report.table(["GPUs", *commands, "`python -c 'import click'`"], rows)
    report.verdict(
        f"For {GPUS_OF_A_NODE} GPUs, `tranche gpus` takes at most {_TARGET_MS} ms, "
        f"and at most {_TARGET_RATIO} times as long as the baseline.",
        answer <= min(_TARGET_MS, _TARGET_RATIO * baseline),
    )


def _nodes(report: Report) -> None:
    report.section(
        "Choosing a node and a share for a gated pod",
        f"Each node has {GPUS_OF_A_NODE} of these GPUs, each with {HELD} slices in use.",
        f"Each cell gives the controller's CPU time in milliseconds, as the median of {_REPETITIONS} runs.",
    )
    machines = [filled(GPUS_OF_A_NODE, SEED + number) for number in range(_KINDS_OF_NODES)]
    rows = []
    for count in NODES:
        nodes = [
            GpuNode(FleetNode(f"node-{number:04}"), _renamed(machines[number % _KINDS_OF_NODES], number))
            for number in range(count)
        ]
        found = [_processor_time(partial(place, [_pod(asked)], nodes)) for asked in _ASKED]
        rows.append([f"{count:,}", *(f"{each:,.0f}" for each in found)])
    report.table(["nodes", "startable", "waiting"], rows)


def filled(gpus: int, seed: int) -> NodeView:
    """A machine on which slices came and went until so many are held."""
    random, product = Random(seed), ProductPath(gpus)
    live: list[Spot] = []
    while len(live) < HELD * gpus:
        spot = product.place(random.choices(range(len(_HELD_WEIGHTS)), _HELD_WEIGHTS)[0])
        if spot is not None:
            live.append(spot)
        if spot is None or random.random() < 0.1:
            product.release(live.pop(random.randrange(len(live))))
    return product.view


def _renamed(view: NodeView, number: int) -> NodeView:
    """The machine as one of many: its GPUs have names of their own."""
    recorded = RecordedRequest(view, (WaitingRequest("w-1", _ASKED[0]),), "w-1")
    line = json.dumps(decision_to_dict(RecordedDecision(0.0, recorded, answer(recorded))))
    question = decision_from_dict(json.loads(line.replace('"GPU-', f'"GPU-{number}-'))).question
    assert isinstance(question, RecordedRequest)
    return question.view


def _pod(request: Request) -> ClusterPod:
    return ClusterPod("default", "train", "uid-train", request)


def _spent(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Wall time and processor time of a new process; the first run only warms the file cache."""
    times = [milliseconds(command, environment) for _ in range(_COMMANDS + 1)][1:]
    wall, processor = map(median, zip(*times, strict=True))
    return wall, processor


def _processor_time(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPETITIONS):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return median(times)
